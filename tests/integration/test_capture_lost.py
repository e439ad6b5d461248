"""A capture's journal is lost: what Pumps and archive say of its transactions, and what is refused by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.archive import Archive
from pumphouse.archive.init import init_archive
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.capture import recover
from pumphouse.capture.journal import Journal, Mark
from pumphouse.capture.lease import Lease, Progress
from pumphouse.capture.publish import Entry, Publisher
from pumphouse.capture.recover import Recovery, Written
from pumphouse.capture.source.gtid import Flavor
from pumphouse.client.pump_client import PumpClient
from pumphouse.client.resolver import ROLLED_BACK
from pumphouse.client.transactions import held_by, write_outcomes
from pumphouse.codec.payload import PrewriteValueBuilder, make_commit, make_prewrite, make_rollback
from pumphouse.errors import CaptureFenced, CaptureRefused, PumpUnavailable
from pumphouse.model.captured import key_of
from pumphouse.model.node import NodeKind, NodeStatus
from pumphouse.model.tso import Tso
from pumphouse.registry.base import CaptureRecord
from pumphouse.registry.file import FileCluster
from pumphouse.settings import ArchiveSettings, Settings, TlsSettings
from tests.support.nojobs import NoJobHistory
from tests.support.pumpserver import PumpServer
from tests.support.waiting import eventually

PREFIX = b"capture/main/"


class Capture:
    """A capture's publisher on one Pump, its record, and an archive that may begin."""

    def __init__(self, directory: Path, pump: PumpServer) -> None:
        self.pump, self.cluster = pump, pump.cluster
        self.settings = Settings(archive=ArchiveSettings(root=f"file://{directory / 'archive'}"))
        self.archive = Archive.open(self.settings.archive, self.cluster.cluster_id())
        self.lease = Lease.take(self.cluster, "main", source="", server="")
        mark = Mark(gtid="0-1-0", moment=0.0, schema=1, transactions=0, start_ts=self.cluster.tso())
        self.journal = Journal.begin(directory / "c", {"capture": "main"}, mark)
        self.client = PumpClient(self.cluster)
        self.publisher = Publisher(
            self.client, self.journal, PREFIX, held=self.lease.held, add_jobs=lambda _: None, stop=threading.Event()
        )  # fmt: skip
        self.done = 0

    def publish(self, count: int) -> None:
        mark = Mark(gtid=f"0-1-{self.done + count}", moment=0.0, schema=1, transactions=self.done + count)
        made = range(self.done + 1, self.done + count + 1)
        values = [PrewriteValueBuilder(each).build() for each in made]
        self.publisher.publish(
            [Entry(f"0-1-{at}".encode(), value=value) for at, value in zip(made, values, strict=True)], mark
        )
        self.done += count
        assert self.client.flush(60)

    def say(self) -> CaptureRecord:
        self.lease.say(Progress(mark=self.publisher.said))
        (found,) = self.cluster.captures()
        return found

    def snapshot(self) -> None:
        run_snapshot(self.archive, self.cluster, self.cluster.tso(), self.settings, NoJobHistory())

    def recover(self, said: CaptureRecord) -> str:
        found = Recovery(self.cluster, self.archive, [], said, PREFIX, self.lease.held, TlsSettings()).run(
            Flavor.MARIADB
        )
        return str(found.gtids)


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Capture]:
    cluster = FileCluster(tmp_path / "cluster")
    settings: dict[str, Any] = {"value_log_file_bytes": 4096, "retention_s": 0.1, "max_txn_timeout_s": 600.0}
    with PumpServer(tmp_path, cluster, **settings) as pump:
        made = Capture(tmp_path, pump)
        yield made
        made.client.close(flush_s=0)


@pytest.mark.row("Q2")
def test_what_the_pumps_have_dropped_is_found_in_the_archive(capture: Capture) -> None:
    init_archive(capture.archive, capture.cluster, NoJobHistory(), settings=capture.settings)
    capture.publish(3)
    said = capture.say()
    capture.publish(200)
    capture.snapshot()
    status = eventually(lambda: found if (found := capture.pump.gc()).freed_files else None)
    assert status.gc_point > said.start_ts
    capture.publish(2)
    assert capture.recover(said) == "0-1-205"
    nowhere = Archive.open(ArchiveSettings(root=capture.settings.archive.root + "-2"), capture.cluster.cluster_id())
    capture.archive = nowhere
    with pytest.raises(CaptureRefused, match="the archive does not have all of it"):
        capture.recover(said)


@pytest.mark.row("Q2")
def test_an_old_prewrite_that_is_open_is_settled_by_what_was_decided_then(capture: Capture) -> None:
    """Two Pumps took it, as an answer was lost, and its rollback or its commit got to one of them alone."""
    capture.publish(3)
    before = capture.journal.mark.start_ts
    pump, cluster = capture.pump, capture.cluster
    first = cluster.tso()
    key = PREFIX + key_of(b"0-1-4", first, first, before, 1)
    pump.write(make_prewrite(first, key, PrewriteValueBuilder(4).build()))  # a try that failed; its rollback is lost
    capture.publish(5)
    said = capture.say()
    capture.publish(2)
    (node,) = cluster.nodes(NodeKind.PUMP)
    held = held_by(node, cluster.cluster_id(), PREFIX, said.start_ts)
    assert held.open == {first}
    assert held.above == first - 1
    assert len(held.prewrites) == 8
    assert held_by(node, cluster.cluster_id(), b"other/", said.start_ts).prewrites == {}
    assert capture.recover(said) == "0-1-10"
    assert held_by(node, cluster.cluster_id(), PREFIX, said.start_ts).open == set()
    fence = cluster.tso()
    assert len(pump.pull_until(fence)) == 10


@pytest.mark.row("Q2", "Q5")
def test_what_is_open_on_two_pumps_is_settled_on_both_with_one_call_for_many(
    capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that was decided, and whose commits got to one of them but for the last."""
    capture.publish(1)
    said, cluster = capture.say(), capture.cluster
    with PumpServer(tmp_path, cluster, node_id="pump-2", max_txn_timeout_s=600.0) as other:
        starts = [cluster.tso() for _ in range(300)]
        keys = [
            PREFIX + key_of(b"0-1-%d" % (2 + at), ts, starts[0], starts[at - 1] if at else said.start_ts, 1)
            for at, ts in enumerate(starts)
        ]
        for ts, key in zip(starts, keys, strict=True):
            for pump in (capture.pump, other):
                pump.write(make_prewrite(ts, key, PrewriteValueBuilder(1).build()))
        commits = {ts: cluster.tso() for ts in starts[:200]}
        for (ts, commit_ts), key in zip(commits.items(), keys, strict=False):
            capture.pump.write(make_commit(ts, commit_ts, key))
        written: list[tuple[str, int]] = []

        def counted(pump: NodeStatus, cluster_id: int, outcomes: Mapping[Tso, bytes], tls: TlsSettings) -> None:
            written.append((pump.node_id, len(outcomes)))
            write_outcomes(pump, cluster_id, outcomes, tls)

        monkeypatch.setattr(recover, "write_outcomes", counted)
        assert capture.recover(said) == "0-1-301"
        assert written == [("pump-2", 200), ("pump-1", 100), ("pump-2", 100)]
        held = [held_by(each, cluster.cluster_id(), PREFIX, said.start_ts) for each in cluster.nodes(NodeKind.PUMP)]
        assert [each.open for each in held] == [set(), set()]
        assert held[0].commits == held[1].commits
        assert {ts: held[1].commits[ts] for ts in commits} == commits
        found = [held[0].commits[ts] for ts in starts]
        assert found == sorted(set(found))


@pytest.mark.row("Q2")
def test_what_somebody_else_committed_meanwhile_is_not_taken_for_rolled_back(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture.publish(1)
    said, start = capture.say(), capture.cluster.tso()
    key = PREFIX + key_of(b"0-1-2", start, start, said.start_ts, 1)
    capture.pump.write(make_prewrite(start, key, PrewriteValueBuilder(2).build()))

    def too_late(pump: NodeStatus, cluster_id: int, outcomes: Mapping[Tso, bytes], tls: TlsSettings) -> None:
        capture.pump.write(make_commit(start, capture.cluster.tso(), key))
        write_outcomes(pump, cluster_id, outcomes, tls)

    monkeypatch.setattr(recover, "write_outcomes", too_late)
    with pytest.raises(PumpUnavailable, match="somebody else settled it"):
        capture.recover(said)
    assert capture.recover(said) == "0-1-2"


@pytest.mark.row("Q2")
def test_a_commit_that_the_pump_keeps_out_is_named(capture: Capture) -> None:
    capture.publish(1)
    said = capture.say()
    start = capture.cluster.tso()
    key = PREFIX + key_of(b"0-1-2", start, start, said.start_ts, 1)
    for each in (
        make_prewrite(start, key, PrewriteValueBuilder(2).build()),
        make_rollback(start, key),
        make_commit(start, capture.cluster.tso(), key),  # a second outcome: it was on its way when the first was given
    ):
        capture.pump.write(each)
    eventually(lambda: capture.pump.status().late)
    with pytest.raises(CaptureRefused, match="keeps commits of the capture out of its stream"):
        capture.recover(said)


@pytest.mark.row("Q2")
def test_a_record_that_does_not_fit_what_the_pumps_have_is_named(capture: Capture) -> None:
    capture.publish(3)
    said = capture.say()
    capture.publish(3)
    with pytest.raises(CaptureRefused, match="does not come behind start ts"):
        capture.recover(replace(said, start_ts=said.start_ts + 1))


@pytest.mark.row("Q2")
def test_keys_lead_from_one_to_the_one_before(capture: Capture) -> None:
    capture.publish(3)
    capture.publish(2)
    (node,) = capture.cluster.nodes(NodeKind.PUMP)
    held = held_by(node, capture.cluster.cluster_id(), PREFIX, 0)
    made = [Written.of(ts, key.removeprefix(PREFIX)) for ts, key in sorted(held.prewrites.items())]
    assert [each.before for each in made] == [0, *(each.start_ts for each in made[:-1])]
    assert [each.first for each in made] == [made[0].start_ts] * 3 + [made[3].start_ts] * 2
    assert held.commits.keys() == held.prewrites.keys()


@pytest.mark.row("Q2")
def test_who_was_taken_over_settles_nothing(capture: Capture) -> None:
    capture.publish(1)
    said = capture.say()
    start = capture.cluster.tso()
    key = PREFIX + key_of(b"0-1-2", start, start, said.start_ts, 1)
    capture.pump.write(make_prewrite(start, key, PrewriteValueBuilder(2).build()))
    taken = Lease.take(capture.cluster, "main", source="", server="", dead=said.owner)
    capture.lease.say(None)  # it hears of it
    with pytest.raises(CaptureFenced):
        capture.recover(said)
    (node,) = capture.cluster.nodes(NodeKind.PUMP)
    assert held_by(node, capture.cluster.cluster_id(), PREFIX, said.start_ts).open == {start}
    taken.release(None)


@pytest.mark.row("Q2")
def test_who_was_taken_over_tells_no_pump_that_a_transaction_was_rolled_back(capture: Capture) -> None:
    """The other one may have committed it."""
    capture.publish(1)
    said, strange = capture.say(), capture.cluster.tso()
    assert capture.publisher.answer(strange, b"", decide=True) == ROLLED_BACK
    taken = Lease.take(capture.cluster, "main", source="", server="", dead=said.owner)
    capture.lease.say(None)  # it hears of it
    with pytest.raises(CaptureFenced):
        capture.publisher.answer(strange, b"", decide=True)
    assert capture.publisher.answer(Tso(said.start_ts), b"", decide=True).commit_ts == said.commit_ts
    taken.release(None)


@pytest.mark.row("Q2")
def test_the_record_says_what_is_committed_on_the_pumps(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position that it tells, and a commit ts that no Pump got, would leave a hole once the journal is lost."""
    capture.publish(1)
    assert capture.publisher.said.gtid == "0-1-1"
    with monkeypatch.context() as patch:
        patch.setattr(capture.client, "write_commits", lambda _: None)  # queued, and not sent yet
        patch.setattr(capture.client, "flush", lambda timeout_s: timeout_s > 0)
        capture.publish(2)
        assert capture.publisher.said.gtid == "0-1-1"
        capture.lease.say(Progress(mark=capture.publisher.said))
    (said,) = capture.cluster.captures()
    assert capture.recover(said) == "0-1-1"
