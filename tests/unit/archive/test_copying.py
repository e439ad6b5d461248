"""A copy of an archive: equal, killed at every write, beside an expiry, damaged, and never taken for the archive (row A5)."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pumphouse.archive import consumer, layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.copied import held_by_copy
from pumphouse.archive.copying import CopyReport, copy_archive
from pumphouse.archive.copyof import CopyOf, read_copy_of
from pumphouse.archive.expire import Ages, expire
from pumphouse.archive.layout import COPY
from pumphouse.archive.marks import mark, unmark
from pumphouse.archive.range import Range
from pumphouse.archive.retention import Policy
from pumphouse.archive.schema_store import rebuild
from pumphouse.archive.verify import verify
from pumphouse.archive.view import read_view
from pumphouse.cli import cli
from pumphouse.errors import BadManifest, BadSegment, ConfigError, ManifestConflict, UnsafeStore
from pumphouse.folding.run import fold_base
from pumphouse.model.tso import Tso
from pumphouse.objectstore.open import open_store
from pumphouse.registry.open import open_cluster
from pumphouse.runs.copy import require_two_places
from pumphouse.settings import ArchiveSettings, LoadSettings
from tests.support import formats
from tests.support.agedarchive import Aged, aged, require_restorable
from tests.support.killed import Killed
from tests.support.memorystore import MemoryStore

pytestmark = pytest.mark.row("A5")
# What tells of tasks and proofs of the archive itself.
_ITS_OWN = ("verified.json", "failed/", "proofs/", "drills/", "probe/")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Aged:
    """Four dumps, and a folded base, which names parts of the last of them."""
    found = aged(tmp_path_factory.mktemp("aged"))
    fold_base(found.source.archive, LoadSettings(), found.source.settings)
    return found


@pytest.fixture
def archive(made: Aged) -> Archive:
    return made.in_memory()[1]


@pytest.fixture
def there() -> MemoryStore:
    return MemoryStore("memory://there")


def at(store: MemoryStore, archive: Archive) -> Archive:
    """As another process sees it."""
    return Archive(store, archive.cluster_id)


def run(archive: Archive, store: MemoryStore, *, full: bool = False, dry_run: bool = False) -> CopyReport:
    return copy_archive(at(_of(archive), archive), at(store, archive), full=full, dry_run=dry_run)


def _of(archive: Archive) -> MemoryStore:
    store: MemoryStore = archive.store._store  # type: ignore[attr-defined]
    return store


def require_equal(archive: Archive, store: MemoryStore) -> None:
    """Every object that the archive's documents name is there, and none that is another one."""
    ours = _of(archive).objects
    prefix = f"{archive.cluster_id}/"
    found = {key: data for key, data in store.objects.items() if key != prefix + COPY and "/probe/" not in key}
    assert {key: ours[key] for key in found} == found
    lacking = {key.removeprefix(prefix) for key in ours.keys() - found.keys()}
    notes = {key for key in lacking if key.startswith("base/") and key.endswith("begun.json")}
    older = {key for key in lacking if key.startswith(layout.SCHEMA)}  # stored schemas from before the newest
    assert not [key for key in lacking - notes - older if not key.startswith(_ITS_OWN)]


def moments(made: Aged, upto: Tso) -> list[Tso]:
    return [ts for ts, _ in made.moments if ts <= upto]


def test_a_copy_is_the_archive_and_copying_again_copies_nothing(
    archive: Archive, there: MemoryStore, made: Aged
) -> None:
    first = run(archive, there)
    assert (first.was, first.end, first.windows) == (None, archive.end(), len(archive.windows()))
    assert first.bases == len(archive.every_base())
    require_equal(archive, there)
    require_restorable(at(there, archive), moments(made, first.end))
    formats.check("copy", json.loads(there.objects[f"{archive.cluster_id}/{COPY}"]))
    puts: list[str] = []
    there.before = lambda verb, key: puts.append(f"{verb} {key}")
    again = run(archive, there)
    assert (again.was, again.objects, again.bytes, puts) == (first.end, 0, 0, [])


def test_what_was_published_since_is_copied_and_nothing_else(made: Aged, there: MemoryStore, archive: Archive) -> None:
    whole = dict(_of(archive).objects)
    before_last, last = archive.windows()[-2:]
    of_it = [last.key, *(each.key for each in last.segments), *([last.ddl.key] if last.ddl else [])]
    later = {f"{archive.cluster_id}/{key}" for key in of_it}
    bases = [base for base in archive.every_base() if base.ts > last.start]
    later |= {f"{archive.cluster_id}/{base.key}" for base in bases}
    for key in later:
        del _of(archive).objects[key]
    at(_of(archive), archive).store.delete(layout.HEAD)
    at(_of(archive), archive).write_head(before_last)
    before = run(archive, there)
    assert before.end == last.start
    require_restorable(at(there, archive), moments(made, before.end))
    _of(archive).objects = whole
    dry = run(archive, there, dry_run=True)
    done = run(archive, there)
    assert (done.was, done.end, done.windows, done.bases) == (last.start, last.end, 1, len(bases))
    assert (dry.windows, dry.bases, dry.dry_run) == (1, len(bases), True)
    assert dry.bytes == done.bytes
    require_equal(archive, there)


def killed_at(archive: Archive, write: int) -> MemoryStore:
    """What a run leaves that ends at a write."""
    there, lock, left = MemoryStore("memory://there"), threading.Lock(), [write]

    def deadly(verb: str, key: str) -> None:
        del verb, key
        with lock:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

    there.before = deadly
    with pytest.raises(Killed):
        run(archive, there)
    there.before = lambda verb, key: None
    return there


def writes(archive: Archive) -> list[str]:
    calls: list[str] = []
    counted = MemoryStore("memory://there")
    counted.before = lambda verb, key: calls.append(f"{verb} {key}")
    run(archive, counted)
    return calls


def test_killed_at_every_write_it_is_readable_at_each_and_equal_after_the_next_run(
    archive: Archive, made: Aged
) -> None:
    calls = writes(archive)
    assert not [call for call in calls if call.startswith("delete") and "probe/" not in call]
    readable = 0
    for write in range(0, len(calls), 3):
        there = killed_at(archive, write)
        copy = at(there, archive)
        if copy.begun():
            readable += 1
            assert [each.what for each in verify(copy, deep=False).problems] == []
            if write % 9 == 0:
                view = read_view(copy)
                require_restorable(copy, [ts for ts in moments(made, view.end) if view.base_for(ts) is not None])
        run(archive, there)
        require_equal(archive, there)
    assert readable > len(calls) // 6


def test_two_at_once_put_the_same(archive: Archive, there: MemoryStore, made: Aged) -> None:
    failed: list[BaseException] = []

    def one() -> None:
        try:
            run(archive, there)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
    require_equal(archive, there)
    require_restorable(at(there, archive), moments(made, archive.end()))


def test_what_expires_in_the_archive_stays_in_the_copy(archive: Archive, there: MemoryStore, made: Aged) -> None:
    run(archive, there)
    expire(archive, Ages(), Policy(bases=1), (), now=archive.end(), who="me")
    assert archive.range().number == 1
    after = run(archive, there)
    assert (after.windows, after.bases, after.only_here) == (
        0,
        0,
        len(made.source.archive.windows()) - len(archive.windows()),
    )
    assert after.start < after.of_start
    assert at(there, archive).range().number == 0
    require_restorable(at(there, archive), moments(made, archive.end()))
    # And a copy that is begun now begins where the archive does.
    late = MemoryStore("memory://late")
    report = run(archive, late)
    assert (report.start, report.was) == (archive.range().start, None)
    base = archive.range().base
    assert base is not None
    require_restorable(at(late, archive), [ts for ts in moments(made, archive.end()) if ts >= base.ts])
    require_equal(archive, late)


def test_a_late_copy_is_killed_at_every_write_too(archive: Archive) -> None:
    expire(archive, Ages(), Policy(bases=1), (), now=archive.end(), who="me")
    for write in range(0, len(writes(archive)), 2):
        there = killed_at(archive, write)
        if at(there, archive).begun():
            assert [each.what for each in verify(at(there, archive), deep=False).problems] == []
        run(archive, there)
        require_equal(archive, there)


def test_an_expiry_meanwhile_makes_the_run_look_again(archive: Archive, there: MemoryStore, made: Aged) -> None:
    expired: list[int] = []

    def later(verb: str, key: str) -> None:
        del verb
        if "segments/" in key and not expired:
            expired.append(1)
            expire(at(_of(archive), archive), Ages(), Policy(bases=1), (), now=archive.end(), who="me")

    there.before = later
    report = run(archive, there)
    assert expired
    assert report.end == archive.end()
    base = archive.range().base
    assert base is not None
    require_restorable(at(there, archive), [ts for ts in moments(made, report.end) if ts >= base.ts])


def test_a_copy_that_was_left_behind_an_expiry_is_kept_as_it_is(
    archive: Archive, there: MemoryStore, made: Aged
) -> None:
    whole, windows = dict(_of(archive).objects), archive.windows()
    second = windows[1]
    for each in windows[2:]:
        del _of(archive).objects[f"{archive.cluster_id}/{each.key}"]
    at(_of(archive), archive).store.delete(layout.HEAD)
    at(_of(archive), archive).write_head(second)
    run(archive, there)
    _of(archive).objects = whole
    expire(at(_of(archive), archive), Ages(), Policy(bases=1), (), now=made.source.archive.end(), who="me")
    before = dict(there.objects)
    with pytest.raises(BadManifest, match="has let go of the windows from there"):
        run(archive, there)
    assert there.objects == before
    require_restorable(at(there, archive), moments(made, second.end))


def test_an_object_of_the_archive_that_is_damaged_ends_the_copy_before_it(
    archive: Archive, there: MemoryStore, made: Aged
) -> None:
    window = next(each for each in archive.windows()[3:] if each.segments)
    key = f"{archive.cluster_id}/{window.segments[0].key}"
    data = _of(archive).objects[key]
    _of(archive).objects[key] = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(BadSegment, match=window.segments[0].key):
        run(archive, there)
    assert at(there, archive).end() <= window.start
    assert not [each.what for each in verify(at(there, archive)).problems]
    _of(archive).objects[key] = data
    run(archive, there)
    require_equal(archive, there)
    require_restorable(at(there, archive), moments(made, archive.end()))


def test_full_puts_again_what_is_damaged_or_lost_in_the_copy(archive: Archive, there: MemoryStore, made: Aged) -> None:
    run(archive, there)
    prefix = f"{archive.cluster_id}/"
    whole = dict(there.objects)
    names = [key for key in whole if "/schema/" not in key]
    for number, key in enumerate(names):
        if number % 2 and not key.endswith(COPY):
            del there.objects[key]
        else:
            there.objects[key] = whole[key][: len(whole[key]) // 2] + b"?" + whole[key][len(whole[key]) // 2 + 1 :]
        report = run(archive, there, full=True)
        # A lost base is as one that is not copied yet, and without a genesis there is no copy.
        assert report.mended or report.bases or key in (prefix + layout.HEAD, prefix + layout.GENESIS), key
        assert there.objects == whole, key
    require_restorable(at(there, archive), moments(made, archive.end()))


def test_a_damaged_copy_says_how_it_is_mended(archive: Archive, there: MemoryStore) -> None:
    run(archive, there)
    del there.objects[f"{archive.cluster_id}/{archive.windows()[-1].key}"]
    with pytest.raises(BadManifest, match="is damaged") as caught:
        run(archive, there)
    assert "--full" in caught.value.hint


def test_another_archive_is_never_written_to(archive: Archive, there: MemoryStore, made: Aged) -> None:
    with pytest.raises(ConfigError, match="the archive itself"):
        run(archive, _of(archive))
    other = MemoryStore("memory://other")
    other.objects = dict(_of(archive).objects)
    before = dict(other.objects)
    with pytest.raises(ConfigError, match="is no copy"):
        run(archive, other)
    assert other.objects == before
    run(archive, there)
    key = f"{archive.cluster_id}/{COPY}"
    there.objects[key] = dataclasses.replace(_copy_of(there, archive), genesis_sha256="0" * 64).to_json()
    with pytest.raises(ConfigError, match="a copy of another archive"):
        run(archive, there)


def _copy_of(store: MemoryStore, archive: Archive) -> CopyOf:
    found = read_copy_of(at(store, archive).store)
    assert found is not None
    return found


def test_a_copy_whose_history_is_another_one_is_refused(archive: Archive, there: MemoryStore) -> None:
    run(archive, there)
    newest = archive.windows()[-1]
    key = f"{archive.cluster_id}/{newest.key}"
    _of(archive).objects[key] = dataclasses.replace(newest, fence=Tso(newest.fence + 1)).to_json()
    at(_of(archive), archive).store.delete(layout.HEAD)
    found = at(_of(archive), archive)
    found.write_head(found.listed()[-1])
    before = dict(there.objects)
    with pytest.raises(BadManifest, match="of another history"):
        run(archive, there)
    assert there.objects == before


def test_an_archive_that_lost_its_newest_windows_is_told_by_its_copy(archive: Archive, there: MemoryStore) -> None:
    run(archive, there)
    found = at(_of(archive), archive)
    newest, before = found.windows()[-1], found.windows()[-2]
    found.store.delete(newest.key)
    found.store.delete(layout.HEAD)
    found.write_head(before)
    with pytest.raises(BadManifest, match="has lost its newest windows"):
        run(archive, there)


def test_nobody_takes_a_copy_for_the_archive(archive: Archive, made: Aged, there: MemoryStore, tmp_path: Path) -> None:
    run(archive, there)
    copy = at(there, archive)
    cluster = open_cluster(f"file://{tmp_path}/cluster", create=True)
    try:
        before = dict(there.objects)
        for what in (
            lambda: consumer.publish(copy, cluster, copy.end()),
            lambda: consumer.move(copy, cluster, copy.end()),
            lambda: consumer.put_back(copy, cluster),
            lambda: fold_base(copy, LoadSettings(), ArchiveSettings(), Tso(copy.end() - 1)),
        ):
            with pytest.raises(ConfigError, match="is a copy of the archive at memory://"):
                what()
        assert there.objects == before
        assert consumer.registered(cluster, "main") is None
    finally:
        cluster.close()


def test_a_window_that_somebody_else_put_there_is_not_replaced(archive: Archive, there: MemoryStore) -> None:
    third = archive.windows()[2]
    of = CopyOf(cluster_id=archive.cluster_id, genesis_sha256=archive.genesis().sha256, url="memory://", range=None)
    there.objects[f"{archive.cluster_id}/{COPY}"] = of.to_json()
    there.objects[f"{archive.cluster_id}/{third.key}"] = dataclasses.replace(third, fence=Tso(1)).to_json()
    with pytest.raises(ManifestConflict, match=third.key):
        run(archive, there)


def names_of(store: MemoryStore, archive: Archive, *prefixes: str) -> list[str]:
    return [key for key in store.objects if key.startswith(tuple(f"{archive.cluster_id}/{each}" for each in prefixes))]


@pytest.fixture(scope="module")
def folded_early(tmp_path_factory: pytest.TempPathFactory) -> Aged:
    """A base that was folded at a window's end, and windows behind it."""
    found = aged(tmp_path_factory.mktemp("early"), rounds=1)
    source = found.source
    for number in range(3):
        with source.txn() as txn:
            txn.insert("new0", id=900 + number)
        source.cut()
        if not number:
            fold_base(source.archive, LoadSettings(), source.settings, source.archive.end())
    return found


def test_a_copy_that_begins_with_a_folded_base_has_it_whenever_the_copying_ends(folded_early: Aged) -> None:
    archive = folded_early.in_memory()[1]
    expire(archive, Ages(), Policy(bases=1), (), now=archive.end(), who="me")
    kept, begun = archive.range(), 0
    assert kept.base is not None
    assert kept.start == kept.base.ts
    for write in range(len(writes(archive))):
        there = killed_at(archive, write)
        copy = at(there, archive)
        if copy.begun():
            begun += 1
            assert [each.what for each in verify(copy, deep=False).problems] == []
            assert read_view(copy).base_for(copy.end()) is not None
        run(archive, there)
        require_equal(archive, there)
    assert begun > 3


@pytest.mark.parametrize("prefix", ["segments/", "base/", "windows/", "ddl/expired/", "range/"])
def test_each_run_sees_what_the_copy_has_lost_also_what_the_archive_let_go_of(
    archive: Archive, there: MemoryStore, prefix: str
) -> None:
    if prefix in ("ddl/expired/", "range/"):
        expire(archive, Ages(), Policy(bases=2), (), now=archive.end(), who="me")
    run(archive, there)
    expire(archive, Ages(), Policy(bases=1), (), now=archive.end(), who="me")
    whole = dict(there.objects)
    gone = set(whole) - set(_of(archive).objects)
    candidates = [
        key for key in names_of(there, archive, prefix) if key in gone or prefix in ("ddl/expired/", "range/")
    ]
    key = min(each for each in candidates if not each.endswith("objects"))
    del there.objects[key]
    if prefix == "range/":  # the copy has its text
        assert run(archive, there).mended == 1
        assert there.objects[key] == whole[key]
        return
    if key not in gone:
        with pytest.raises(BadManifest, match="is damaged"):
            run(archive, there)
        assert run(archive, there, full=True).mended == 1
        return
    for full in (False, True):
        with pytest.raises((BadManifest, BadSegment), match=r"is damaged|are damaged or lost"):
            run(archive, there, full=full)
    if not prefix.startswith("windows"):
        there.objects = whole | {key: whole[key][:-1] + bytes([whole[key][-1] ^ 1])}
        with pytest.raises((BadSegment, BadManifest), match="damaged"):
            run(archive, there, full=True)


def test_a_rule_that_deletes_is_seen_in_every_run(archive: Archive, there: MemoryStore) -> None:
    run(archive, there)
    there.rules = ("a rule deletes after 30 days",)
    with pytest.raises(UnsafeStore, match="30 days"):
        run(archive, there)


def test_expiry_keeps_what_the_copy_lacks(archive: Archive, there: MemoryStore, made: Aged) -> None:
    copy, policy = at(there, archive), Policy(bases=1)

    def expired() -> Range:
        held = held_by_copy(archive, copy, "archive.copy_root")
        expire(archive, Ages(), policy, held, now=archive.end(), who="me")
        return archive.range()

    assert expired().number == 0, "there is none"

    def ends(verb: str, key: str) -> None:
        if verb == "put_if_absent" and key == f"{archive.cluster_id}/{layout.GENESIS}":
            raise Killed

    there.after = ends
    with pytest.raises(Killed):
        run(archive, there)
    there.after = lambda verb, key: None
    assert expired().start <= copy.end(), "as far as it has come"
    assert run(archive, there).end == archive.end()
    lost = next(key for key in names_of(there, archive, "segments/"))
    data = there.objects.pop(lost)
    before = archive.range()
    assert expired() == before, "it is damaged"
    there.objects[lost] = data
    after = expired()
    assert after.number == before.number + 1
    assert after.base is not None
    assert after.base.ts == archive.every_base()[-1].ts


@pytest.mark.parametrize("full", [False, True])
def test_the_genesis_of_a_copy_comes_back_and_what_it_has_stays_in_sight(
    archive: Archive, there: MemoryStore, made: Aged, full: bool
) -> None:
    run(archive, there)
    expire(archive, Ages(), Policy(bases=1), (), now=archive.end(), who="me")
    run(archive, there)
    whole = dict(there.objects)
    del there.objects[f"{archive.cluster_id}/genesis.json"]
    report = run(archive, there, full=full)
    assert report.was == archive.end()
    assert report.mended == 1
    assert there.objects == whole
    require_restorable(at(there, archive), moments(made, archive.end()))


def test_a_copy_json_that_is_damaged_is_made_again_and_one_that_is_lost_is_refused(
    archive: Archive, there: MemoryStore
) -> None:
    expire(archive, Ages(), Policy(bases=2), (), now=archive.end(), who="me")
    run(archive, there)
    whole, key = dict(there.objects), f"{archive.cluster_id}/{COPY}"
    there.objects[key] = whole[key][:-5]
    with pytest.raises(BadManifest, match="is damaged") as caught:
        run(archive, there)
    assert "--full" in caught.value.hint
    assert run(archive, there, full=True).mended == 1
    assert there.objects == whole
    del there.objects[key]
    before = dict(there.objects)
    for full in (False, True):
        with pytest.raises(ConfigError, match=r"no copy\.json"):
            run(archive, there, full=full)
    del there.objects[f"{archive.cluster_id}/genesis.json"]
    before.pop(f"{archive.cluster_id}/genesis.json")
    with pytest.raises(ConfigError, match=r"no copy\.json"):
        run(archive, there)
    assert there.objects == before


def test_marks_come_into_the_copy_and_its_range_stays_its_own(archive: Archive, there: MemoryStore) -> None:
    run(archive, there)
    expire(archive, Ages(), Policy(bases=2), (), now=archive.end(), who="me")
    base = archive.range().base
    assert base is not None
    mark(at(_of(archive), archive), base.ts, "audit", who="me")
    run(archive, there)
    copied = at(there, archive).range()
    assert [each.reason for each in copied.marks] == ["audit"]
    assert (copied.start, copied.base) == (archive.genesis().ts, None)
    assert verify(at(there, archive)).problems == []
    unmark(at(_of(archive), archive), base.ts)
    run(archive, there)
    assert at(there, archive).range().marks == ()
    newest = max(names_of(there, archive, "range/"))
    data = there.objects.pop(newest)
    run(archive, there)
    assert there.objects[newest] == data


def test_two_archives_that_begin_in_one_place_do_not_mix(archive: Archive, there: MemoryStore) -> None:
    prefix = f"{archive.cluster_id}/"
    other = CopyOf(cluster_id=archive.cluster_id, genesis_sha256="0" * 64, url="memory://other", range=None).to_json()

    def first(verb: str, key: str) -> None:
        if verb == "put_if_absent" and key == prefix + COPY:
            there.objects.setdefault(key, other)

    there.before = first
    with pytest.raises(ConfigError, match="a copy of another archive"):
        run(archive, there)
    assert there.objects == {prefix + COPY: other}


@pytest.mark.parametrize("inner", ["copy", "77/windows", "77/segments"])
def test_no_copy_lies_in_its_archive_and_no_archive_in_its_copy(archive: Archive, tmp_path: Path, inner: str) -> None:
    of = Archive.open(ArchiveSettings(root=f"file://{tmp_path}/there"), archive.cluster_id)
    for key, data in _of(archive).objects.items():
        open_store(ArchiveSettings(root=f"file://{tmp_path}/there")).put(key, data)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    before = [each.key for each in of.store.list("")]
    for root in (f"file://{tmp_path}/there/{inner}", f"file://{tmp_path}/link/{inner}"):
        inside = Archive.open(ArchiveSettings(root=root), archive.cluster_id)
        for one, two in ((of, inside), (inside, of)):
            with pytest.raises(ConfigError, match="lies in the other"):
                copy_archive(one, two)
    assert [each.key for each in of.store.list("")] == before


def test_a_stored_schema_that_was_made_anew_stops_no_copy(archive: Archive, there: MemoryStore) -> None:
    found = at(_of(archive), archive)
    rebuild(found)
    run(archive, there)
    for key in names_of(_of(archive), archive, "schema/"):
        del _of(archive).objects[key]
    rebuild(found)
    with_its_own = dict(there.objects)
    for full in (False, True):
        run(archive, there, full=full)
    assert there.objects == with_its_own


@pytest.mark.row("O2")
def test_a_copy_on_another_server_has_another_url_unless_it_is_the_archive(world: Any) -> None:
    """Nothing else tells the two apart. A copy that was promoted goes on under the settings of the copy."""
    world.pump()
    options = world.sets()
    both = [f"--set=archive.copy_root={world.store.url}/", "--set=archive.copy_s3_region=us-east-1"]
    for words in (("init",), ("copy",), ("copy", world.store.url)):
        refused = CliRunner().invoke(cli, [*options, *both, "archive", *words])
        assert "archive.copy_root is the same URL as archive.root" in str(refused.exception), words
        assert "another bucket or prefix" in refused.exception.hint  # type: ignore[union-attr]
    assert not world.archive.begun()
    world.init()
    for words in (("snapshot",), ("archive", "ls")):
        done = CliRunner().invoke(cli, [*options, *both, "--log-level", "error", *words])
        assert done.exit_code == 0, done.output
    with pytest.raises(ConfigError, match="same URL"):
        require_two_places(ArchiveSettings(root="s3://a/b", copy_s3_region="us-east-1"), "s3://a/b/")
    require_two_places(ArchiveSettings(root="s3://a/b"), "s3://a/b")
