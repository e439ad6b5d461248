"""What manifests say is not in a range."""

from pumphouse.archive.losses import Range, losses_of
from pumphouse.archive.manifest import Declaration, Manifest, PumpEntry
from pumphouse.archive.windows import Windows
from pumphouse.loader.report import LoadReport
from pumphouse.model.tso import Tso


def declaration(start: int, end: int, node_id: str = "pump-1") -> Declaration:
    return Declaration(
        node_id=node_id, incarnation="i", from_ts=Tso(start), to_ts=Tso(end), reason="its disk died", who="ops"
    )


def window(
    start: int, end: int, *declared: Declaration, skipped: bool | None = None, unsynced: tuple[str, ...] = ()
) -> Manifest:
    pumps = tuple(
        PumpEntry(node_id=each, incarnation="i", start_count=1, state="online", reached=Tso(end), sync_log=False)
        for each in unsynced
    )
    return Manifest(
        cluster_id=1, attempt="a", start=Tso(start), planned_end=Tso(end), end=Tso(end), fence=Tso(end + 1), previous="",
        pumps=pumps, segments=(), declared=declared, binlog_skipped=skipped,
    )  # fmt: skip


def test_a_declaration_counts_once_and_only_where_it_touches_the_range() -> None:
    lost = declaration(10, 30)
    chain = [window(0, 10), window(10, 20, lost), window(20, 30, lost), window(30, 40)]
    assert losses_of(Windows.of(chain), after=Tso(0), upto=Tso(40)).declared == (lost,)
    assert losses_of(Windows.of(chain), after=Tso(25), upto=Tso(40)).declared == (lost,)
    assert losses_of(Windows.of(chain), after=Tso(0), upto=Tso(10)).declared == ()
    assert losses_of(Windows.of(chain), after=Tso(30), upto=Tso(40)).declared == ()
    late = [window(0, 40, declaration(20, 40))]
    assert not losses_of(Windows.of(late), after=Tso(0), upto=Tso(20))


def test_windows_side_by_side_in_which_binlogs_were_skipped_are_one_range() -> None:
    chain = [
        window(0, 10, skipped=True), window(10, 20, skipped=True), window(20, 30, skipped=False), window(30, 40),
        window(40, 50, skipped=True),
    ]  # fmt: skip
    assert losses_of(Windows.of(chain), after=Tso(0), upto=Tso(50)).binlog_skipped == (
        Range(start=Tso(0), end=Tso(20)),
        Range(start=Tso(40), end=Tso(50)),
    )


def test_pumps_without_fsync_are_named_once() -> None:
    chain = [window(0, 10, unsynced=("b", "a")), window(10, 20, unsynced=("a",))]
    found = losses_of(Windows.of(chain), after=Tso(0), upto=Tso(20))
    assert found.unsynced == ("a", "b")
    assert [line.split(":")[0] for line in found.lines()] == ["without fsync"] * 2


def test_a_report_adds_up_what_several_ranges_lack() -> None:
    report = LoadReport(target="t", task="main", from_ts=Tso(0), to_ts=Tso(20))
    chain = [window(0, 10, declaration(0, 20), unsynced=("b",)), window(10, 20, declaration(0, 20), unsynced=("a",))]
    report.add_losses(losses_of(Windows.of(chain), after=Tso(0), upto=Tso(10)))
    report.add_losses(losses_of(Windows.of(chain), after=Tso(10), upto=Tso(20)))
    assert report.unsynced == ["a", "b"]
    assert [each["reason"] for each in report.to_dict()["declared"]] == ["its disk died"]
