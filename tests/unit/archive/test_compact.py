"""Packs: every reader reads what it read before, killed at every write, twice at once, beside readers, expiry and copies."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pumphouse.archive import layout, packs
from pumphouse.archive.archive import Archive
from pumphouse.archive.compact import CompactReport, compact
from pumphouse.archive.copying import copy_archive
from pumphouse.archive.expire import Ages, delete_orphans, expire
from pumphouse.archive.indexing import NEWEST, RUN
from pumphouse.archive.packs import Pack
from pumphouse.archive.retention import Policy
from pumphouse.archive.segment import fetched
from pumphouse.archive.verify import verify
from pumphouse.archive.view import read_view
from pumphouse.cli import cli
from pumphouse.errors import BadManifest, BadSegment, BinlogError, ObjectNotFound
from pumphouse.export.run import export_pb
from pumphouse.folding.run import fold_base
from pumphouse.history.changes import Asked, changes
from pumphouse.history.rows import moment_of, rows_at
from pumphouse.history.shown import objects
from pumphouse.objectstore.base import ObjectStore
from pumphouse.settings import LoadSettings
from tests.support import formats
from tests.support.agedarchive import Aged, aged, fresh, kept_moments, require_restorable
from tests.support.killed import Killed
from tests.support.madearchive import MadeSource, column
from tests.support.manywindows import add_windows
from tests.support.memorystore import MemoryStore

pytestmark = pytest.mark.row("A5")


def run(archive: Archive, *, dry_run: bool = False) -> CompactReport:
    """Two windows a pack, and the newest stays as it is."""
    return compact(archive, run=2, newest=1, dry_run=dry_run)


def packs_of(store: ObjectStore) -> list[Pack]:
    return [*packs.packs_of(store)]


def alone(store: MemoryStore) -> list[str]:
    """Objects of windows that lie by themselves, without the cluster's folder."""
    keys = (key.partition("/")[2] for key in sorted(store.objects))
    return [key for key in keys if layout.folder_start(key) is not None]


def contents(archive: Archive) -> dict[str, bytes]:
    """Whatever manifests name, as readers get it, held against the digests."""
    found = {}
    for manifest in archive.windows():
        for entry in (*manifest.segments, *([manifest.ddl] if manifest.ddl else [])):
            assert archive.store.size(entry.key) == entry.bytes
            assert archive.store.get_range(entry.key, 3, 5) == archive.store.get(entry.key)[3:8]
            with fetched(archive.store, entry) as data:
                found[entry.key] = bytes(data)
    return found


def test_every_reader_reads_what_it_read_before(archive: Archive, store: MemoryStore, made: Aged) -> None:
    before, objects = contents(archive), dict(store.objects)
    dry = run(fresh(archive), dry_run=True)
    assert store.objects == objects
    done = run(fresh(archive))
    assert (dry.packs, dry.windows, dry.objects, dry.bytes) == (done.packs, done.windows, done.objects, done.bytes)
    assert done.packs == 3
    assert done.deleted == done.objects == len(before) - len(alone(store))
    assert done.packed_bytes < done.bytes
    newest = archive.windows()[-1].segments
    assert {each.key for each in newest} <= {*alone(store)}
    assert contents(archive) == before  # it was opened before
    found = fresh(archive)
    assert contents(found) == before
    require_restorable(found, kept_moments(found, made))
    again = run(fresh(archive))
    assert (again.packs, again.deleted) == (0, 0)
    shown = formats.Shown()
    for key in [key for key in store.objects if "/packs/" in key and key.endswith(".json")]:
        shown.check("pack", json.loads(store.objects[key]))
    assert shown.missing("pack") == []


def test_a_moment_inside_of_a_pack_has_the_rows_of_the_source(made: Aged, tmp_path: Path) -> None:
    own = aged(tmp_path, rounds=2)
    run(own.source.archive)
    archive = own.source.archive
    assert len(packs_of(archive.store)) == 2
    for at, rows in own.moments:
        view = read_view(Archive.open(own.source.settings, archive.cluster_id), upto=at)
        for name, expected in rows.items():
            moment = moment_of(view, f"d.{name}", at, archive=own.source.settings, load=LoadSettings())
            found = Counter(tuple(row.values()) for batch in rows_at(moment) for row in batch.to_pylist())
            assert found == expected, (at, name)
    fold_base(archive, LoadSettings(), own.source.settings)
    assert verify(archive).problems == []


def test_exported_files_and_changes_are_the_same(tmp_path: Path) -> None:
    source = aged(tmp_path, rounds=2).source

    def told() -> tuple[dict[str, bytes], list[str]]:
        archive, out = Archive.open(source.settings, source.cluster_id), MemoryStore()
        export_pb(archive, out, since=archive.genesis().ts, upto=None)
        view = read_view(archive, since=archive.genesis().ts)
        asked = Asked(table="d.t", after=view.start, upto=view.end)
        return out.objects, [str(each) for found in changes(archive, view, asked) for each in objects(found)]

    before = told()
    assert run(source.archive).packs
    assert told() == before
    assert len(before[1]) > 10


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_write_and_run_again_nothing_is_lost(made: Aged, when: str) -> None:
    store, archive = made.in_memory()
    before = contents(archive)
    calls = list[str]()
    setattr(store, when, lambda _verb, key: calls.append(key))
    run(archive)
    count, whole = len(calls), {shape(key) for key in store.objects}
    assert count > 20
    for kill in range(count):
        store, archive = made.in_memory()
        left = itertools.count()

        def hook(_verb: str, _key: str, left: Iterator[int] = left, kill: int = kill) -> None:
            if next(left) == kill:
                raise Killed

        setattr(store, when, hook)
        with pytest.raises(Killed):
            run(archive)
        store.before = store.after = lambda _verb, _key: None
        assert contents(fresh(archive)) == before
        assert verify(fresh(archive)).problems == []
        run(fresh(archive))
        assert contents(fresh(archive)) == before
        store.put_s = dict.fromkeys(store.objects, 0.0)
        delete_orphans(fresh(archive), Ages())
        assert {shape(key) for key in store.objects} == whole
    require_restorable(fresh(archive), kept_moments(archive, made))


def shape(key: str) -> str:
    """A name without what is random in it."""
    return f"{key[:-21]}.bin" if key.endswith(".bin") else key


def at_once(*some: Callable[[], object]) -> list[BaseException]:
    gate, errors = threading.Barrier(len(some)), list[BaseException]()

    def one(do: Callable[[], object]) -> None:
        try:
            gate.wait()
            do()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(do,)) for do in some]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return errors


def test_two_at_once_leave_one_pack_of_each_run(made: Aged) -> None:
    for _ in range(10):
        store, archive = made.in_memory()
        before = contents(archive)
        assert at_once(lambda archive=archive: run(fresh(archive)), lambda archive=archive: run(fresh(archive))) == []
        assert contents(fresh(archive)) == before
        assert verify(fresh(archive)).problems == []
        there = packs_of(archive.store)
        assert len(there) == 3
        bins = {key.partition("/")[2] for key in store.objects if key.endswith(".bin")}
        assert bins == {pack.data for pack in there}


def test_who_reads_while_it_is_compacted_reads_everything(made: Aged) -> None:
    for turn in range(10):
        store, archive = made.in_memory()
        before = contents(archive)
        store.after = lambda _verb, _key: time.sleep(1e-4)
        reader, seen = fresh(archive), list[dict[str, bytes]]()

        def read(reader: Archive = reader, seen: list[dict[str, bytes]] = seen) -> None:
            seen.extend(contents(reader) for _ in range(4))

        assert at_once(lambda archive=archive: run(fresh(archive)), read) == []
        assert all(each == before for each in seen), turn


def test_many_threads_find_packs_at_once(archive: Archive) -> None:
    before = contents(archive)
    run(fresh(archive))
    for _ in range(20):
        reader, seen = fresh(archive), list[dict[str, bytes]]()
        read = lambda reader=reader, seen=seen: seen.append(contents(reader))  # noqa: E731
        assert at_once(*[read] * 6) == []
        assert all(each == before for each in seen)


def test_packs_expire_with_the_last_of_their_windows(archive: Archive, store: MemoryStore, made: Aged) -> None:
    compact(fresh(archive), run=6, newest=1)
    gone, spanning = packs_of(archive.store)
    report = expire(fresh(archive), Ages(), Policy(bases=1), (), now=archive.end(), who="me")
    assert report.windows_gone
    start = archive.range().start
    assert gone.end <= start
    assert spanning.start < start < spanning.end
    assert packs_of(archive.store) == [spanning]
    assert all(end > start for _, end in map(layout.pack_range, keys(store, layout.PACKS)))
    found = fresh(archive)
    require_restorable(found, kept_moments(found, made))
    run(fresh(archive))
    assert verify(fresh(archive)).problems == []


def keys(store: MemoryStore, prefix: str) -> list[str]:
    return [key for each in sorted(store.objects) if (key := each.partition("/")[2]).startswith(prefix)]


def test_beside_an_expiry_either_ends_and_what_is_kept_is_whole(made: Aged) -> None:
    for turn in range(10):
        store, archive = made.in_memory()
        store.after = lambda _verb, _key, turn=turn: time.sleep(1e-4 * (turn % 3))

        def expired(archive: Archive = archive) -> None:
            expire(fresh(archive), Ages(), Policy(bases=1), (), now=archive.end(), who="me")

        assert at_once(lambda archive=archive: run(fresh(archive)), expired) == []
        found = fresh(archive)
        require_restorable(found, kept_moments(found, made))
        store.after = lambda _verb, _key: None
        expired(found)
        run(fresh(archive))
        require_restorable(fresh(archive), kept_moments(found, made))


def test_a_copy_of_packed_windows_is_whole_and_may_be_packed_itself(
    archive: Archive, store: MemoryStore, made: Aged
) -> None:
    before = contents(archive)
    run(fresh(archive))
    there = MemoryStore("memory://there")
    copy = lambda: Archive(there, archive.cluster_id)  # noqa: E731
    copy_archive(fresh(archive), copy())
    assert contents(copy()) == before
    assert not keys(there, layout.PACKS)
    assert compact(copy(), run=2, newest=1).packs == 3
    again = copy_archive(fresh(archive), copy(), full=True)
    assert (again.objects, again.mended) == (0, 0)
    require_restorable(copy(), kept_moments(archive, made))
    # What is damaged in a pack of the copy is put back beside it, and read there.
    pack = packs_of(copy().store)[0]
    key = f"{archive.cluster_id}/{pack.data}"
    there.objects[key] = bytes(each ^ 1 for each in there.objects[key])
    assert copy_archive(fresh(archive), copy(), full=True).mended == len([*pack.members])
    assert contents(copy()) == before


def test_nothing_is_deleted_that_the_store_does_not_give_back(archive: Archive, store: MemoryStore) -> None:
    before = dict(store.objects)

    def torn(_verb: str, key: str) -> None:
        if key.endswith(".bin"):
            store.objects[key] = store.objects[key][:-1] + b"?"

    store.after = torn
    with pytest.raises(BadSegment, match=r"\.bin has the digest"):
        run(fresh(archive))
    assert {key: store.objects[key] for key in before} == before
    store.after = lambda _verb, _key: None
    with pytest.raises(BadSegment):  # the next run holds it against its document, too
        run(fresh(archive))
    assert {key: store.objects[key] for key in before} == before


def test_a_damaged_object_is_packed_by_nobody(archive: Archive, store: MemoryStore) -> None:
    key = f"{archive.cluster_id}/{archive.windows()[4].segments[0].key}"
    store.objects[key] = store.objects[key][:-1] + b"?"
    before = dict(store.objects)
    with pytest.raises(BadSegment, match="has the digest"):
        run(fresh(archive))
    (pack,) = packs_of(archive.store)
    gone = {f"{archive.cluster_id}/{member.key}" for member in pack.members}
    assert {key: data for key, data in before.items() if key not in gone}.items() <= store.objects.items()


def test_every_byte_of_a_pack_counts_and_a_missing_or_swapped_object_is_found(
    archive: Archive, store: MemoryStore
) -> None:
    run(fresh(archive))
    packed = [key for key in store.objects if "/packs/" in key]
    assert len(packed) == 6

    def found() -> str:
        return "\n".join(f"{each.key} {each.what}" for each in verify(fresh(archive)).problems)

    for key in packed:
        good = store.objects[key]
        for at in range(0, len(good), 1 + len(good) // 40):
            store.objects[key] = good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :]
            assert key.partition("/")[2] in found(), (key, at)
        del store.objects[key]
        assert "segments/" in found(), key
        with pytest.raises(BinlogError):
            contents(fresh(archive))
        quick = verify(fresh(archive), deep=False)
        assert not quick.sound
        store.put_s, there = dict.fromkeys(store.objects, 0.0), dict(store.objects)
        with pytest.raises(BinlogError):
            delete_orphans(fresh(archive), Ages())
        assert store.objects == there
        store.objects[key] = good
    for one, two in itertools.combinations(packed, 2):
        store.objects[one], store.objects[two] = store.objects[two], store.objects[one]
        assert found(), (one, two)
        store.objects[one], store.objects[two] = store.objects[two], store.objects[one]
    assert found() == ""
    store.put(f"{archive.cluster_id}/packs/what", b"?")
    assert "packs/what is no pack" in found()


def test_what_a_killed_compaction_left_goes_when_it_is_old(archive: Archive, store: MemoryStore) -> None:
    run(fresh(archive))
    pack = packs_of(archive.store)[0]
    left = layout.pack_data(pack.start, pack.end, "f" * 16)
    archive.store.put(left, b"of one that was killed")
    assert verify(fresh(archive)).orphans == 1
    delete_orphans(fresh(archive), Ages())
    assert archive.store.size(left)
    store.put_s = dict.fromkeys(store.objects, 0.0)
    gone = delete_orphans(fresh(archive), Ages())
    assert [each.info.key for each in gone] == [left]
    assert verify(fresh(archive)).problems == []


def test_data_that_may_be_named_yet_stays_however_old_it_is(archive: Archive, store: MemoryStore) -> None:
    """A compaction stands still between its two puts, and goes on when somebody has found orphans to delete."""
    before, stands, goes_on, errors = contents(archive), threading.Event(), threading.Event(), list[BaseException]()

    def compacts() -> None:
        try:
            run(fresh(archive))
        except BinlogError as error:
            errors.append(error)

    thread = threading.Thread(target=compacts)

    def hook(verb: str, key: str) -> None:
        if verb == "put_if_absent" and "/packs/" in key and not stands.is_set():
            store.put_s = dict.fromkeys(store.objects, 0.0)
            stands.set()
            assert goes_on.wait(60)
        if verb == "delete" and key.endswith(".bin") and not goes_on.is_set():
            goes_on.set()
            thread.join()

    store.before = hook
    thread.start()
    assert stands.wait(60)
    delete_orphans(fresh(archive), Ages())
    goes_on.set()
    thread.join()
    assert not errors
    assert contents(fresh(archive)) == before


def test_data_whose_document_is_lost_is_deleted_by_nobody(archive: Archive, store: MemoryStore) -> None:
    before = contents(archive)
    run(fresh(archive))
    for pack in packs_of(archive.store):
        document = archive.store.get(pack.key)
        archive.store.delete(pack.key)
        for member in pack.members:  # an expiry reads them; segments it does not
            if member.key.startswith(layout.DDL):
                archive.store.put(member.key, before[member.key])
        store.put_s, there = dict.fromkeys(store.objects, 0.0), dict(store.objects)
        expire(fresh(archive), Ages(), Policy(bases=9), (), now=archive.end(), who="me")
        assert store.objects == there
        archive.store.put(pack.key, document)
    assert contents(fresh(archive)) == before


def test_a_lost_document_is_named_and_what_it_named_is_packed_by_nobody(archive: Archive, store: MemoryStore) -> None:
    run(fresh(archive))
    newest = packs_of(archive.store)[-1]
    document = archive.store.get(newest.key)
    archive.store.delete(newest.key)
    there, lost = dict(store.objects), f"the pack {newest.data} lacks its .json, {newest.key}"
    for dry_run in (True, False):
        with pytest.raises(BadSegment, match=lost) as refused:
            run(fresh(archive), dry_run=dry_run)
        assert "put the .json back" in refused.value.hint
        assert store.objects == there
    for deep in (True, False):
        problems = [each for each in verify(fresh(archive), deep=deep).problems if each.key == newest.key]
        assert [each.what.startswith(lost) for each in problems] == [True]
    archive.store.put(newest.key, document)
    archive.store.put(layout.pack_data(newest.end, archive.end(), "f" * 16), b"of a compaction that was killed")
    assert run(fresh(archive), dry_run=True).packs == 0
    assert verify(fresh(archive)).sound


def test_a_damaged_document_of_what_has_expired_holds_nothing_up(archive: Archive, store: MemoryStore) -> None:
    compact(fresh(archive), run=6, newest=1)
    gone, _ = packs_of(archive.store)

    def killed(verb: str, key: str) -> None:
        if verb == "delete" and "/probe/" not in key:
            raise Killed

    def expired() -> None:
        expire(fresh(archive), Ages(), Policy(bases=1), (), now=archive.end(), who="me")

    store.before = killed
    with pytest.raises(Killed):
        expired()
    store.before = lambda _verb, _key: None
    archive.store.put(gone.key, b"?")
    expired()
    assert gone.end <= archive.range().start
    assert not {gone.key, gone.data} & {*keys(store, layout.PACKS)}


def test_a_pack_stands_for_objects_of_its_windows_alone(archive: Archive) -> None:
    run(fresh(archive))
    one, other, _ = packs_of(archive.store)
    for key in (layout.HEAD, next(other.members).key):
        (first, *rest) = one.blocks
        block = replace(first, members=(replace(first.members[0], key=key), *first.members[1:]))
        with pytest.raises(BadManifest, match="no object of its windows"):
            Pack.from_json(one.key, replace(one, blocks=(block, *rest)).to_json())


def test_who_knows_a_pack_that_was_made_again_under_its_name_reads_on(archive: Archive) -> None:
    before = contents(archive)
    run(fresh(archive))
    reader = fresh(archive)
    assert contents(reader) == before
    last = packs_of(archive.store)[-1]
    for member in last.members:  # a hand puts back what lies in it, and deletes it
        archive.store.put(member.key, before[member.key])
    archive.store.delete(last.key)
    archive.store.delete(last.data)
    assert run(fresh(archive)).packs == 1
    assert packs_of(archive.store)[-1].key == last.key
    reader.store._blocks.clear()
    assert contents(reader) == before


def test_an_object_of_two_packs_is_read_from_the_one_that_is_left(archive: Archive, store: MemoryStore) -> None:
    run(fresh(archive))
    (one, *_), reader = packs_of(archive.store), fresh(archive)
    before = contents(reader)
    start, end = one.start, archive.windows()[2].end
    data, other = archive.store.get(one.data), layout.pack_data(start, end, "a" * 16)
    archive.store.put(other, data)
    pack = Pack(
        cluster_id=archive.cluster_id, start=start, end=end, data=other, digest=hashlib.sha256(data).hexdigest(),
        blocks=one.blocks,
    )  # fmt: skip
    archive.store.put(pack.key, pack.to_json())
    both = fresh(archive)
    assert contents(both) == before
    kept = {key: archive.store.get(key) for key in (pack.key, pack.data)}
    for key in kept:
        archive.store.delete(key)
    both.store._blocks.clear()
    assert contents(both) == before
    for key, content in kept.items():
        archive.store.put(key, content)
    for key in (one.key, one.data):
        archive.store.delete(key)
    reader.store._blocks.clear()
    assert contents(reader) == before
    for key in (pack.key, pack.data):
        archive.store.delete(key)
    with pytest.raises(ObjectNotFound):
        fresh(archive).store.get(next(one.members).key)


def test_the_command_says_what_it_would_do_and_does_it_once(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    source.cut(pumps=1)

    def told(*arguments: str) -> str:
        done = CliRunner(catch_exceptions=False).invoke(
            cli, ["archive", "compact", "--archive", f"file://{tmp_path}", *arguments]
        )
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "nothing to pack: 1 windows are in no pack, and a pack needs about 1,024" in told()
    add_windows(source, RUN + NEWEST - 1, objects=True)
    assert "1,000 objects of 1,000 windows" in told("--dry-run")
    assert not packs_of(source.archive.store)
    done = json.loads(told("--json"))
    assert (done["packs"], done["windows"], done["objects"], done["deleted"]) == (1, 1000, 1000, 1000)
    assert done["packed_bytes"] < done["bytes"] // 3
    assert len([*source.archive.store.list(layout.SEGMENTS)]) == NEWEST
    assert verify(source.archive, deep=False).problems == []
    assert "nothing to pack: 24 windows" in told()
