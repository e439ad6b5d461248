import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pumphouse.archive import consumer, layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.ddl import read_jobs
from pumphouse.archive.init import init_archive
from pumphouse.archive.segment import read_segment
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.archive.standing import whole_history
from pumphouse.archive.verify import verify
from pumphouse.errors import BadManifest, ConfigError, CorruptionError, HistoryUnavailable, WindowHeld
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.model.table import TableInfo
from pumphouse.model.tso import Tso
from pumphouse.proto.binlog_pb2 import Binlog
from tests.support.memorystore import MemoryStore
from tests.support.rowreference import row_changes


class Dump:
    def __init__(self, world, tables, fail_after=None):
        self.world = world
        self.content = tables
        self.fail_after = fail_after
        self.events = []

    @contextlib.contextmanager
    def barrier(self):
        self.events.append(("in", self.world.cluster.tso()))
        yield
        self.events.append(("out", self.world.cluster.tso()))

    def tables(self):
        for number, name in enumerate(self.content, 100):
            yield "d.b", TableInfo.from_dict({"id": number, "name": {"O": name, "L": name}})

    def batches(self, table):
        for number, batch in enumerate(self.content[table.name]):
            if self.fail_after is not None and number == self.fail_after:
                raise KeyboardInterrupt
            yield batch

    def close(self):
        self.events.append(("closed", 0))


@pytest.mark.row("A3")
def test_genesis_holds_the_schema_the_pumps_and_moves_the_checkpoint(world):
    world.pump("pump-1"), world.pump("pump-2").register(NodeState.OFFLINE)
    for job_id in (5, 3, 9):
        world.history.add(job_id, version=job_id + 1, finished_ts=1)
    world.history.add(10, version=0, state=5)
    genesis = world.init()
    assert [(each.node_id, each.drained) for each in genesis.pumps] == [("pump-1", False), ("pump-2", True)]
    assert genesis.pumps[0].incarnation == "one"
    assert genesis.schema_version == 10
    kept = read_jobs(world.archive.store, genesis.ddl)
    assert [each.job_id for each in kept] == [3, 5, 9, 10]
    assert json.loads(kept[0].job)["binlog"]["SchemaVersion"] == 4
    assert consumer.checkpoint(world.cluster, "main") == genesis.ts
    assert world.archive.end() == genesis.ts
    assert genesis.base is None


@pytest.mark.row("A3")
def test_the_consumer_holds_all_gc_before_the_genesis_ts_is_taken(world, monkeypatch):
    world.pump()
    seen = []
    tso = world.cluster.tso

    def watched():
        seen.append(consumer.checkpoint(world.cluster, "main"))
        return tso()

    with monkeypatch.context() as patch:
        patch.setattr(world.cluster, "tso", watched)
        genesis = world.init()
    # One timestamp is the registration's own, the next is genesis.
    assert seen[0] is None
    assert seen[1] == 0
    assert genesis.ts == world.archive.genesis().ts


@pytest.mark.row("A3")
def test_the_first_dump_lies_in_ordinary_segments_of_inserts_at_genesis(world):
    world.pump()
    world.history.add(3, version=7)
    rows = [[bytes([n, m]) * 10 for m in range(4)] for n in range(3)]
    dump = Dump(world, {"t/1": rows, "empty": [[]]})
    genesis = world.init(dump=dump)
    assert [each[0] for each in dump.events] == ["in", "out", "closed"]
    assert dump.events[0][1] < genesis.ts < dump.events[1][1]
    full, empty = genesis.base
    assert (full.db, full.table, full.table_id, full.rows) == ("d.b", "t/1", 100, 12)
    assert (empty.rows, empty.segments) == (0, ())
    (segment,) = full.segments
    assert segment.key.startswith(f"base/{genesis.ts:020d}/d%2Eb.t%2F1/")
    assert segment.tables[100].rows == 12
    images = []
    for batch in read_segment(world.archive.store, segment, after=Tso(genesis.ts - 1), upto=genesis.ts):
        assert set(batch.column("commit_ts").to_pylist()) == {genesis.ts}
        for payload in batch.column("payload").to_pylist():
            binlog = Binlog.FromString(payload)
            changes = list(row_changes(binlog.prewrite_value))
            assert {(table, kind) for table, kind, _ in changes} == {(100, 0)}
            images += [image for _, _, image in changes]
    assert images == [image for batch in rows for image in batch]


@pytest.mark.row("A3")
def test_an_init_that_was_killed_is_finished_by_the_next(world):
    world.pump()
    dump = Dump(world, {"t": [[b"a"], [b"b"]]}, fail_after=1)
    with pytest.raises(KeyboardInterrupt):
        world.init(dump=dump)
    assert dump.events[-1][0] == "closed"
    assert consumer.checkpoint(world.cluster, "main") == 0
    assert not world.archive.begun()
    genesis = world.init(dump=Dump(world, {"t": [[b"a"], [b"b"]]}))
    assert genesis.base[0].rows == 2
    assert world.init() == genesis
    assert consumer.checkpoint(world.cluster, "main") == genesis.ts


@pytest.mark.row("A3")
def test_an_init_killed_before_the_checkpoint_moves_it_when_run_again_and_never_back(world, monkeypatch):
    pump = world.pump()
    with monkeypatch.context() as patch:
        patch.setattr("pumphouse.archive.init.consumer.move", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            world.init()
    assert consumer.checkpoint(world.cluster, "main") == 0
    genesis = world.init()
    assert consumer.checkpoint(world.cluster, "main") == genesis.ts
    pump.transaction()
    world.snapshot()
    end = world.archive.end()
    world.init()
    assert consumer.checkpoint(world.cluster, "main") == end


@pytest.fixture
def elsewhere(world):
    """A begin or a snapshot with another `archive.root`, and nothing else changed."""
    return Archive(MemoryStore("memory://elsewhere"), world.cluster.cluster_id())


@pytest.mark.row("A3", "P11")
def test_a_second_archive_under_the_same_id_moves_no_checkpoint_and_is_told_both_places(world, elsewhere):
    pump = world.pump()
    genesis = world.init()
    pump.transaction()
    for step in (
        lambda: init_archive(elsewhere, world.cluster, world.history, settings=world.settings),
        lambda: run_snapshot(elsewhere, world.cluster, world.cluster.tso(), world.settings, world.history),
        lambda: consumer.require(elsewhere, world.cluster),
    ):
        with pytest.raises(ConfigError) as refused:
            step()
        for part in (elsewhere.url, world.archive.url, "archive.root", "archive.archive_id", "consumer unregister"):
            assert part in str(refused.value)
    assert not elsewhere.begun()
    assert consumer.checkpoint(world.cluster, "main") == genesis.ts


@pytest.mark.row("A3")
def test_an_archive_that_an_earlier_release_began_elsewhere_is_not_taken_up(world, elsewhere):
    world.pump()
    world.init()
    put_back = drop_mark(world)
    elsewhere.store.put(layout.GENESIS, replace(world.archive.genesis(), ts=world.cluster.tso()).to_json())
    with pytest.raises(ConfigError, match="earlier release"):
        init_archive(elsewhere, world.cluster, world.history, settings=world.settings)
    empty = Archive(MemoryStore("memory://empty"), world.cluster.cluster_id())
    with pytest.raises(ConfigError, match="earlier release"):
        init_archive(empty, world.cluster, world.history, settings=world.settings)
    world.snapshot()
    assert put_back() == consumer.registered(world.cluster, "main").genesis_sha256, (
        "the archive that it is of takes it up"
    )


def drop_mark(world):
    """The registration as an earlier release, or a Go tool, leaves it."""
    before = consumer.registered(world.cluster, "main")
    world.cluster.update_node(NodeKind.DRAINER, "pumphouse-main", lambda found: found.with_(unknown={}))
    return lambda: before.genesis_sha256


@pytest.mark.row("A3")
def test_of_two_begins_at_two_places_the_later_is_refused_and_nothing_of_it_counts(world, elsewhere):
    world.pump()

    class Meanwhile(Dump):
        def tables(self):
            init_archive(elsewhere, world.cluster, world.history, settings=world.settings)
            return iter(())

    with pytest.raises(ConfigError, match="memory://elsewhere"):
        world.init(dump=Meanwhile(world, {}))
    assert not world.archive.begun()
    assert consumer.checkpoint(world.cluster, "main") == elsewhere.genesis().ts


@pytest.mark.row("A3")
def test_a_genesis_that_is_lost_is_put_back_as_it_was(world):
    pump = world.pump()
    genesis = world.init()
    pump.transaction()
    world.snapshot()
    end, stored = world.archive.end(), world.archive.store.get(layout.GENESIS)
    world.archive.store.delete(layout.GENESIS)
    with pytest.raises(ConfigError, match="pumphouse archive init"):
        world.snapshot()
    assert world.init() == genesis
    assert world.archive.store.get(layout.GENESIS) == stored
    pump.transaction()
    world.snapshot()
    assert verify(world.archive).sound
    assert world.archive.end() > end


@pytest.mark.row("A3")
def test_a_begin_that_fails_takes_its_registration_back_and_no_others(world, monkeypatch):
    world.pump()

    def fail():
        raise HistoryUnavailable("the TiDB does not answer", url="http://tidb")

    monkeypatch.setattr(world.history, "jobs", fail)
    with pytest.raises(HistoryUnavailable):
        world.init()
    assert world.cluster.node(NodeKind.DRAINER, "pumphouse-main") is None
    consumer.begin(world.archive, world.cluster, "another")
    monkeypatch.setattr(world.history, "jobs", lambda: consumer.begin(world.archive, world.cluster, "later") and fail())
    with pytest.raises(HistoryUnavailable):
        world.init()
    assert consumer.registered(world.cluster, "main").attempt == "later"


@pytest.mark.row("A3")
def test_a_genesis_that_the_registry_would_not_take_is_kept_in_the_store(world, monkeypatch):
    """etcd takes 1.5 MiB, and a dump of 13,000 tables at genesis is more; each window writes the value again."""
    monkeypatch.setattr(consumer, "_MOST_PACKED", 100)
    world.pump()
    world.init()
    stored = world.archive.store.get(layout.GENESIS)
    found = world.cluster.node(NodeKind.DRAINER, "pumphouse-main")
    assert found.unknown["pumphouseArchive"]["document"] == ""
    world.snapshot()
    world.archive.store.delete(layout.GENESIS)
    again = Archive(world.store, world.cluster.cluster_id())
    init_archive(again, world.cluster, world.history, settings=world.settings)
    assert world.archive.store.get(layout.GENESIS) == stored
    for key in (layout.GENESIS, layout.genesis_copy(found.unknown["pumphouseArchive"]["genesis"])):
        world.archive.store.delete(key)
    with pytest.raises(CorruptionError, match=r"genesis\.json of .* is lost, and so is genesis/[0-9a-f]{64}\.json"):
        init_archive(
            Archive(world.store, world.cluster.cluster_id()), world.cluster, world.history, settings=world.settings
        )


@pytest.mark.row("A3")
@pytest.mark.parametrize("mark", [{}, {"root": 1}, {"document": "x"}, {"genesis": "00"}, [], None, "x"])
def test_a_damaged_registration_is_named(world, mark):
    world.pump()
    world.init()

    def damage(found):
        have = found.unknown["pumphouseArchive"]
        return found.with_(unknown={"pumphouseArchive": {**have, **mark} if mark and isinstance(mark, dict) else mark})

    world.cluster.update_node(NodeKind.DRAINER, "pumphouse-main", damage)
    if mark is None:  # an earlier release's
        world.snapshot()
    else:
        with pytest.raises(CorruptionError, match=r"pumphouse-main.*pumphouseArchive.*`pumphouse archive init`"):
            world.snapshot()
        checkpoint = world.cluster.node(NodeKind.DRAINER, "pumphouse-main").max_commit_ts
        world.init()
        assert consumer.registered(world.cluster, "main").checkpoint == checkpoint
        world.snapshot()


@pytest.mark.row("A3", "W4")
def test_a_registration_that_cannot_be_read_is_written_anew_by_its_archive_and_by_no_other(world, elsewhere):
    world.pump()
    genesis = world.init()
    world.snapshot()
    before = consumer.registered(world.cluster, "main")
    value = Path(world.cluster.url.removeprefix("file://")) / "tidb-binlog/v1/drainers/pumphouse-main"
    value.write_bytes(value.read_bytes().replace(b'"score":0', b'"score":1e400'))
    spoiled = value.read_bytes()
    for again in (
        world.snapshot,
        lambda: init_archive(elsewhere, world.cluster, world.history, settings=world.settings),
    ):
        with pytest.raises(
            CorruptionError,
            match=r"1e400 is too large.*no Pump frees anything.*`pumphouse archive init`.*`pumphouse archive promote`",
        ):
            again()
        assert value.read_bytes() == spoiled
    world.init()
    assert consumer.registered(world.cluster, "main") == replace(before, checkpoint=genesis.ts)
    world.init()  # what can be read stays
    world.snapshot()
    assert consumer.registered(world.cluster, "main").checkpoint == world.archive.end()


@pytest.mark.row("A3", "W4")
@pytest.mark.parametrize(
    ("whose", "said"),
    [
        ({"root": "memory://other", "genesis": "0" * 64}, "lies at memory://other .*which is not that archive"),
        ({"root": "memory://other"}, "knows this archive at memory://other.*archive promote"),
    ],
)
def test_a_damaged_registration_of_another_place_is_not_taken_from_it(world, whose, said):
    """As the place before a promotion, whose archive is begun, would."""
    world.pump()
    world.init()

    def damage(found):
        return found.with_(unknown={"pumphouseArchive": found.unknown["pumphouseArchive"] | whose | {"document": "x"}})

    damaged = world.cluster.update_node(NodeKind.DRAINER, "pumphouse-main", damage)
    with pytest.raises(ConfigError, match=said):
        world.init()
    assert world.cluster.node(NodeKind.DRAINER, "pumphouse-main") == damaged


@pytest.mark.row("A3")
def test_an_archive_is_not_taken_over_under_another_name(world):
    world.pump()
    world.init()
    other = Archive(world.store, world.cluster.cluster_id(), archive_id="other")
    with pytest.raises(ConfigError, match=r"is called 'main', not 'other'.*archive\.archive_id = \"main\""):
        init_archive(other, world.cluster, world.history, settings=world.settings)
    assert consumer.checkpoint(world.cluster, "other") is None, "no second consumer holds the Pumps' GC"


def test_two_inits_at_once_give_one_genesis(world, monkeypatch):
    world.pump()
    other = []

    def first():
        if not other:
            other.append(None)
            other[0] = world.init()
        return Dump(world, {})

    class Nested(Dump):
        def tables(self):
            first()
            return iter(())

    genesis = world.init(dump=Nested(world, {}))
    assert genesis == other[0] == world.archive.genesis()


def test_there_is_no_genesis_without_a_history(world):
    world.pump()
    with pytest.raises(ConfigError, match=r"schema\.history"):
        init_archive(world.archive, world.cluster, None, settings=world.settings)
    assert world.cluster.node(NodeKind.DRAINER, "pumphouse-main") is None


@pytest.mark.row("A3")
def test_genesis_waits_for_a_job_that_is_committed_and_not_in_the_history_yet(world):
    pump = world.pump()
    commit_ts = pump.ddl(8)
    with pytest.raises(WindowHeld, match=rf"job 8 of {pump.node_id} \(start ts \d+, commit ts {commit_ts}") as held:
        world.init()
    assert "again 10 minutes after that commit" in held.value.hint
    world.history.add(8)
    genesis = world.init()
    assert [each.job_id for each in read_jobs(world.archive.store, genesis.ddl)] == [8]
    assert genesis.ddl.jobs == 1


@pytest.mark.row("A3", "S1")
def test_a_job_that_is_in_genesis_and_in_a_window_is_taken_from_the_window(world):
    pump = world.pump()
    genesis_before = world.cluster.tso()
    world.history.add(1, start_ts=genesis_before, finished_ts=genesis_before)
    later = Tso(genesis_before + (3_600_000 << 18))
    world.history.add(2, start_ts=genesis_before, finished_ts=later)
    genesis = world.init()
    commit_ts = pump.ddl(2)
    assert [each.job_id for each in read_jobs(world.archive.store, genesis.ddl)] == [1, 2]
    world.snapshot()
    begun, brought = whole_history(world.archive, world.archive.windows(), world.archive.end())
    assert ([each.job.id for each in begun], [each.job.id for each in brought]) == ([1], [2])
    (job,) = world.archive.jobs(world.archive.windows(), world.archive.genesis().ts, world.archive.end())
    assert (job.job_id, job.commit_ts) == (2, commit_ts)


@pytest.mark.row("A3")
def test_a_job_begun_after_genesis_is_left_to_its_window(world):
    world.pump()
    world.history.add(1, start_ts=1)
    world.history.add(2, start_ts=world.cluster.tso() + (60_000 << 18))
    genesis = world.init()
    assert [each.job_id for each in read_jobs(world.archive.store, genesis.ddl)] == [1]


@pytest.mark.row("A3", "S1")
def test_ddl_jobs_lie_in_the_window_of_their_binlogs_commit_ts(world):
    pump = world.pump()
    world.init()
    first = pump.ddl(4)
    world.history.add(4, finished_ts=first + (100 << 18))
    world.snapshot()
    dropped_1, dropped_2 = pump.ddl(5, b"alter table t drop a", state=1), pump.ddl(5, b"alter table t drop a", state=0)
    world.history.add(5)
    setval = pump.ddl(6, b" Select SetVal(`s`, 9)")
    cancelled = pump.ddl(7, state=0)
    world.history.add(7, state=3)
    world.snapshot()
    archive = world.archive
    jobs = archive.jobs(archive.windows(), archive.genesis().ts, archive.end())
    assert [(each.commit_ts, each.job_id, each.job is None) for each in jobs] == [
        (first, 4, False),
        (dropped_1, 5, True),
        (dropped_2, 5, False),
        (setval, 6, True),
        (cancelled, 7, False),
    ]
    assert jobs[4].parsed().state == 3
    assert archive.jobs(archive.windows(), first, dropped_1) == jobs[1:2]


@pytest.mark.row("A3")
def test_a_window_waits_for_a_ddl_job_by_id_and_age(world):
    pump = world.pump()
    world.init()
    pump.ddl(77)
    with pytest.raises(WindowHeld, match=r"DDL job 77 .* s ago, is not in the history yet"):
        world.snapshot()
    assert not world.archive.windows()
    world.history.add(77)
    assert world.snapshot()[0].ddls == 1


def test_a_ddl_on_two_pumps_is_one_job(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    one.ddl(4)
    two.put(*one.binlogs[-1])
    world.history.add(4)
    assert world.snapshot()[0].ddls == 1


@pytest.mark.parametrize("damage", ["json", "version", "cluster", "kind"])
def test_a_damaged_genesis_is_named(world, damage):
    world.pump()
    world.init()
    key = next(key for key in world.store.objects if key.endswith("genesis.json"))
    value = json.loads(world.store.objects[key])
    value |= {"version": {"format_version": 2}, "cluster": {"cluster_id": 1}, "kind": {"kind": "window"}}.get(
        damage, {}
    )
    world.store.objects[key] = b"{" if damage == "json" else json.dumps(value).encode()
    with pytest.raises(BadManifest, match=r"genesis\.json"):
        world.archive.genesis()
