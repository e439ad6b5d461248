import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis.strategies import data, from_type, integers, register_type_strategy

from binlog_airflow import xcom
from pumphouse.archive import consumer
from pumphouse.archive.declare import accept
from pumphouse.archive.losses import losses_of
from pumphouse.archive.segment import read_segment
from pumphouse.archive.verify import verify
from pumphouse.archive.window import PublishedWindow, PullReport, WindowPlan
from pumphouse.codec.payload import make_commit, make_prewrite, merge
from pumphouse.errors import (
    BadManifest,
    BadRecord,
    ConfigError,
    CorruptionError,
    ManifestConflict,
    StoreUnavailable,
    UnsafeStore,
    UsageError,
    WindowHeld,
)
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.model.tso import MAX_TSO, Tso, compose, physical_ms
from pumphouse.proto.binlog_pb2 import PrewriteValue, TableMutation
from tests.support.documents import changed
from tests.support.memorystore import CarelessStore

register_type_strategy(Tso, integers(0, MAX_TSO))


def through_json(value):
    """As one task hands it to the next."""
    again = xcom.read(type(value), json.loads(json.dumps(xcom.dump(value))))
    assert again == value
    return again


@pytest.mark.row("A1", "A7")
def test_windows_hold_every_transaction_once_in_order_without_gap_or_overlap(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    wanted = []
    for _turn in range(3):
        for pump in (one, two, one):
            wanted += [pump.transaction(rows=3) for _ in range(4)]
        (done,) = world.snapshot()
        assert not done.more
    assert sorted(ts for ts, _ in world.commits()) == wanted
    chain = world.archive.windows()
    assert len(chain) == 3
    assert chain[0].start == world.archive.genesis().ts
    assert [each.end for each in chain[:-1]] == [each.start for each in chain[1:]]
    for manifest in chain:
        assert manifest.fence > manifest.end
        assert {each.node_id for each in manifest.pumps} == {"pump-1", "pump-2"}
    assert world.archive.end() == chain[-1].end == consumer.checkpoint(world.cluster, "main")


@pytest.mark.row("A1")
def test_a_run_whose_interval_is_archived_already_does_nothing(world):
    world.pump()
    world.init()
    until = world.cluster.tso()
    assert len(world.snapshot(until)) == 1
    assert world.snapshot(until) == []
    assert world.plan(Tso(until - 5)) is None


@pytest.mark.row("A1")
def test_a_time_beyond_the_cluster_clock_is_refused_and_not_cut(world):
    world.pump()
    world.init()
    with pytest.raises(UsageError, match="in the future"):
        world.snapshot(compose(physical_ms(world.cluster.tso()) + 3_600_000))


def test_an_archive_must_be_begun_first(world):
    with pytest.raises(ConfigError, match="pumphouse archive init"):
        world.snapshot()


@pytest.mark.row("A1", "L5")
def test_a_byte_budget_cuts_the_window_at_the_smallest_position_and_the_next_goes_on(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    wanted = []
    for _ in range(20):
        wanted += [one.transaction(rows=5, size=100), two.transaction(), one.transaction(rows=5, size=100)]
    one.frame_rows, two.frame_rows = 3, 50
    done = world.snapshot(task_budget_bytes=4000)
    assert len(done) > 3
    assert all(each.more for each in done[:-1])
    assert sorted(ts for ts, _ in world.commits()) == wanted
    for manifest in world.archive.windows():
        for segment in manifest.segments:
            assert manifest.start < segment.min_commit_ts <= segment.max_commit_ts <= manifest.end
            assert segment.key.startswith(
                f"segments/{manifest.start:020d}-{manifest.planned_end:020d}/{segment.node_id}/"
            )


def test_a_transaction_larger_than_the_budget_still_moves_the_window(world):
    pump = world.pump()
    world.init()
    wanted = [pump.transaction(rows=20, size=500) for _ in range(3)]
    pump.frame_rows = 1
    assert len(world.snapshot(task_budget_bytes=1)) >= 3
    assert [ts for ts, _ in world.commits()] == wanted


@pytest.mark.row("P17")
def test_a_large_transaction_lies_in_parts_in_the_archive(world):
    pump = world.pump()
    world.init()
    pump.transaction(rows=200, size=100)
    world.snapshot(part_bytes=2048)
    archive = world.archive
    (manifest,) = archive.windows()
    (segment,) = manifest.segments
    parts = [
        row
        for batch in archive.segment_batches(manifest, segment, columns=["part", "parts"])
        for row in zip(batch.column("part").to_pylist(), batch.column("parts").to_pylist(), strict=True)
    ]
    assert len(parts) > 5
    assert parts == [(n, len(parts)) for n in range(len(parts))]
    assert segment.changes == 200


@pytest.mark.row("A2")
def test_the_fence_is_taken_before_the_pumps_are_listed(world, monkeypatch):
    world.pump("pump-1")
    world.init()
    until = world.cluster.tso()
    late = []
    nodes = world.cluster.nodes

    def nodes_after_somebody_registered(kind):
        if kind is NodeKind.PUMP and not late:
            late.append(world.pump("pump-2"))
            late[0].transaction()
        return nodes(kind)

    monkeypatch.setattr(world.cluster, "nodes", nodes_after_somebody_registered)
    plan = world.plan(until)
    assert set(plan.node_ids) == {"pump-1", "pump-2"}
    assert plan.fence < late[0].binlogs[0][1]


@pytest.mark.row("A2")
def test_an_unresolved_prewrite_holds_the_window_by_name_and_start_ts(world):
    pump = world.pump()
    world.init()
    pump.transaction()
    pump.follow_clock, pump.watermark, pump.blocker = False, world.archive.genesis().ts, 1234567
    with pytest.raises(WindowHeld) as caught:
        world.snapshot(pull_timeout_s=0.3)
    (holder,) = caught.value.holders
    assert (holder["node_id"], holder["start_ts"]) == ("pump-1", 1234567)
    assert "1234567" in str(caught.value)
    pump.follow_clock = True
    assert len(world.snapshot()) == 1


@pytest.mark.row("A2")
def test_what_is_complete_below_a_blocked_prewrite_is_archived_all_the_same(world):
    pump = world.pump()
    world.init()
    first = pump.transaction()
    blocked = world.cluster.tso()
    pump.follow_clock, pump.watermark, pump.blocker = False, blocked, blocked
    with pytest.raises(WindowHeld):
        world.snapshot(pull_timeout_s=0.3)
    assert world.archive.end() == blocked
    assert world.commits() == [(first, "pump-1")]


@pytest.mark.row("A2")
def test_a_pump_that_does_not_answer_holds_the_window_until_it_is_back(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    one.transaction(), two.transaction()
    two.stop()
    with pytest.raises(WindowHeld) as caught:
        world.snapshot(pull_timeout_s=0.4)
    assert [each["node_id"] for each in caught.value.holders] == ["pump-2"]
    assert not world.archive.windows()
    until = world.cluster.tso()
    starter = threading.Timer(0.5, two.start)
    starter.start()
    assert len(world.snapshot(until, pull_timeout_s=20)) == 1
    starter.join()
    assert len(world.commits()) == 2


@pytest.mark.row("A2")
def test_damage_that_a_pump_met_while_it_served_is_named_with_the_pump(world):
    world.pump("pump-1")
    two = world.pump("pump-2")
    world.init()
    two.refuse_with = BadRecord("/data/value/000003.vlog at 77: rot", hint="put it back", path="/data/v", offset=77)
    with pytest.raises(
        CorruptionError, match=r"^Pump pump-2: /data/value/000003.vlog at 77: rot \(put it back\)$"
    ) as met:
        world.snapshot()
    assert (met.value.node_id, met.value.path, met.value.offset) == ("pump-2", "/data/v", 77)
    two.refuse_with = None
    assert len(world.snapshot()) == 1


@pytest.mark.row("A1")
def test_a_pump_restarted_in_the_middle_of_a_pull_loses_nothing(world):
    pump = world.pump()
    world.init()
    wanted = [pump.transaction() for _ in range(50)]
    pump.frame_rows = 7
    frames = []

    def die_once():
        frames.append(1)
        if len(frames) == 3:
            pump._stopping.set()

    pump.on_frame = die_once
    until = world.cluster.tso()
    starter = threading.Timer(0.3, lambda: (pump.stop(), pump.start()))
    starter.start()
    world.snapshot(until, pull_timeout_s=20)
    starter.join()
    assert [ts for ts, _ in world.commits()] == wanted
    assert len(pump.pulls) > 1


@pytest.mark.row("A1", "A4")
def test_of_two_commits_of_one_window_one_wins_and_the_other_leaves_nothing_visible(world):
    pump = world.pump()
    world.init()
    wanted = [pump.transaction() for _ in range(5)]
    plans = [world.plan() for _ in range(2)]
    reports = [world.pull_all(plan) for plan in plans]
    start = threading.Barrier(2)

    def run(number):
        start.wait()
        try:
            return world.commit(plans[number], reports[number])
        except ManifestConflict as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, range(2)))
    assert sorted(isinstance(each, ManifestConflict) for each in results) == [False, True]
    assert [ts for ts, _ in world.commits()] == wanted
    assert len(world.archive.windows()) == 1


@pytest.mark.row("A1", "A4")
def test_snapshots_beside_each_other_all_arrive(world):
    pump = world.pump()
    world.init()
    wanted = [pump.transaction() for _ in range(5)]
    ends = []

    def another(verb, key):
        if verb == "put_if_absent" and "/windows/" in key and len(ends) < 3:
            ends.append(None)
            world.snapshot()
            wanted.append(pump.transaction())

    world.store.before = another
    until = world.cluster.tso()
    world.snapshot(until)
    assert len(ends) == 3
    assert world.archive.end() >= until
    world.snapshot()
    assert [ts for ts, _ in world.commits()] == wanted
    assert verify(world.archive).sound


@pytest.mark.row("A1")
def test_a_killed_task_leaves_orphans_and_its_retry_takes_other_names(world):
    pump = world.pump()
    world.init()
    pump.transaction()
    plan = world.plan()
    first, second = world.pull_all(plan), world.pull_all(plan)
    assert first[0].segments[0].key != second[0].segments[0].key
    world.commit(plan, second)
    assert len([key for key in world.store.objects if "/segments/" in key]) == 2
    assert len(world.commits()) == 1


@pytest.mark.row("A1")
def test_a_put_that_succeeded_behind_a_time_out_or_a_412_counts_as_won(world):
    pump = world.pump()
    world.init()
    for failure in ("timeout after", "timeout before"):
        pump.transaction()
        seen = []

        def hook(verb, key, failure=failure, seen=seen):
            if verb == "put_if_absent" and "/windows/" in key and not seen:
                seen.append(key)
                raise StoreUnavailable(failure, key=key)

        if failure == "timeout after":
            world.store.after = hook
        else:
            world.store.before = hook
        world.snapshot()
        assert seen
        world.store.before = world.store.after = lambda verb, key: None
    assert len(world.archive.windows()) == 2


@pytest.mark.row("A1")
def test_a_store_that_ignores_conditional_puts_is_refused_at_init_and_later(world):
    world.pump().transaction()
    world.store = CarelessStore()
    with pytest.raises(UnsafeStore):
        world.init()
    assert not world.archive.begun()


@pytest.mark.row("A1")
def test_a_store_that_becomes_careless_later_never_moves_the_checkpoint(world):
    pump = world.pump()
    genesis = world.init()
    pump.transaction()
    careless = CarelessStore()
    careless.objects = world.store.objects
    world.store = careless
    with pytest.raises(UnsafeStore, match="could both win"):
        world.snapshot()
    assert consumer.checkpoint(world.cluster, "main") == genesis.ts
    with pytest.raises(UnsafeStore):
        world.snapshot()
    assert consumer.checkpoint(world.cluster, "main") == genesis.ts


@pytest.mark.row("A1", "P11")
def test_a_commit_killed_between_manifest_and_checkpoint_is_finished_by_the_next_run(world, monkeypatch):
    pump = world.pump()
    genesis = world.init()
    pump.transaction()
    with monkeypatch.context() as patch:
        patch.setattr("pumphouse.archive.commit.consumer.move", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            world.snapshot()
    assert consumer.checkpoint(world.cluster, "main") == genesis.ts
    end = world.archive.end()
    assert end > genesis.ts
    assert world.snapshot(end) == []
    assert consumer.checkpoint(world.cluster, "main") == end


@pytest.mark.row("P11")
def test_the_checkpoint_never_goes_back_and_the_consumer_is_paused(world):
    world.pump()
    world.init()
    world.snapshot()
    have = consumer.checkpoint(world.cluster, "main")
    assert consumer.move(world.archive, world.cluster, Tso(have - 1000)) == have
    assert consumer.begin(world.archive, world.cluster, "again").checkpoint == have
    status = world.cluster.node(NodeKind.DRAINER, "pumphouse-main")
    assert (status.state, status.max_commit_ts) == (NodeState.PAUSED, have)


@pytest.mark.row("A7")
def test_a_transaction_on_two_pumps_is_read_once(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    first = one.transaction()
    twice = one.transaction(rows=4)
    commit_ts, start_ts, payload, _, _ = one.binlogs[-1]
    # The Pump that had to ask wrote its own C, which has no key: other bytes, the same content.
    two.put(commit_ts, start_ts, payload.replace(b"\x22\x01k", b""), 0, 0)
    assert two.binlogs[-1][2] != payload
    last = two.transaction()
    (done,) = world.snapshot()
    assert done.duplicates == 1
    assert sorted(world.commits()) == [(first, "pump-1"), (twice, "pump-1"), (last, "pump-2")]


@pytest.mark.row("A7")
def test_different_contents_under_one_start_and_commit_hold_the_window_until_one_is_named(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    commit_ts = one.transaction(fill=1)
    start_ts = one.binlogs[-1][1]
    two.transaction(start=start_ts, commit=commit_ts, fill=2)
    with pytest.raises(WindowHeld, match=f"pump-1 and pump-2.*archive accept NODE {start_ts} {commit_ts}"):
        world.snapshot()
    assert not world.archive.windows()
    record, _ = accept(world.archive, world.cluster, "pump-2", Tso(start_ts), commit_ts, "pump-1 was a test", who="ops")
    assert record.kind == "differs"
    (done,) = world.snapshot()
    assert done.duplicates == 1
    assert world.commits() == [(commit_ts, "pump-2")]
    assert world.archive.last().accepted == (record,)
    assert verify(world.archive, deep=True).problems == []
    assert_given_up(world, commit_ts)


def assert_given_up(world, commit_ts):
    """A load says so, a restore over it must be told to go on without it; one to the moment before need not."""
    windows = world.archive.windows()
    (lost,) = losses_of(windows, after=Tso(commit_ts - 1), upto=world.archive.end()).declared
    assert (lost.from_ts, lost.to_ts) == (commit_ts - 1, commit_ts)
    assert not losses_of(windows, after=Tso(0), upto=Tso(commit_ts - 1))
    assert not losses_of(windows, after=commit_ts, upto=world.archive.end())


def garbled(start_ts, commit_ts, value):
    return merge(make_prewrite(start_ts, b"k", value), make_commit(start_ts, commit_ts, b"k"))


OBSOLETE = PrewriteValue(schema_version=1, mutations=[TableMutation(table_id=5, deleted_ids=[7])]).SerializeToString()
NO_ROW = PrewriteValue(schema_version=1, mutations=[TableMutation(table_id=5, sequence=[0])]).SerializeToString()


@pytest.mark.row("A1", "A2")
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"\xff\xff\xff", "do not parse"),
        (NO_ROW, "has no row"),
        (OBSOLETE, "obsolete"),
        (b"\xff" * 3000, "do not parse"),
        (OBSOLETE + b"\x7a\xa0\x1f" + bytes(4000), "obsolete"),
    ],
    ids=["garbage", "no row", "obsolete", "large garbage", "large obsolete"],
)
def test_a_payload_that_does_not_parse_is_archived_raw_and_left_out_by_name(world, value, why):
    pump = world.pump()
    world.init()
    before = pump.transaction(rows=3)
    start_ts, commit_ts = world.cluster.tso(), world.cluster.tso()
    pump.put(commit_ts, start_ts, garbled(start_ts, commit_ts, value), 0, 0)
    after = pump.transaction(rows=2)
    with pytest.raises(WindowHeld, match=f"{why}.*archive accept pump-1 {start_ts} {commit_ts} --reason"):
        world.snapshot(part_bytes=1024)
    record, told = accept(world.archive, world.cluster, "pump-1", start_ts, commit_ts, "a stranger's", who="ops")
    assert (record.kind, told, pump.accepted) == ("unreadable", True, [])
    (done,) = world.snapshot(part_bytes=1024)
    assert done.changes == 5
    assert world.commits() == [(before, "pump-1"), (after, "pump-1")]
    (segment,) = world.archive.last().segments
    (raw,) = read_segment(world.archive.store, segment, after=Tso(commit_ts - 1), upto=commit_ts)
    assert raw.column("payload").to_pylist() == [garbled(start_ts, commit_ts, value)]
    assert verify(world.archive, deep=True).problems == []
    assert_given_up(world, commit_ts)


@pytest.mark.row("A7")
def test_what_cannot_be_read_on_one_pump_is_read_from_the_other(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    commit_ts = two.transaction()
    start_ts = Tso(two.binlogs[-1][1])
    one.put(commit_ts, start_ts, garbled(start_ts, commit_ts, b"\xff"), 0, 0)
    with pytest.raises(WindowHeld, match="do not parse"):
        world.snapshot()
    accept(world.archive, world.cluster, "pump-1", start_ts, commit_ts, "rot", who="ops")
    world.snapshot()
    assert world.commits() == [(commit_ts, "pump-2")]
    assert verify(world.archive, deep=True).problems == []


@pytest.mark.row("A3", "A2")
def test_a_ddl_binlog_whose_job_never_comes_goes_without_it_by_name(world):
    pump = world.pump()
    world.init()
    commit_ts = pump.ddl(424242)
    start_ts = Tso(pump.binlogs[-1][1])
    way = f"archive accept pump-1 {start_ts} {commit_ts} --reason"
    with pytest.raises(WindowHeld, match="424242") as held:
        world.snapshot()
    assert way in held.value.hint
    assert way in held.value.facts["holders"][0]["why"]
    record, _ = accept(world.archive, world.cluster, "pump-1", start_ts, commit_ts, "no TiDB wrote it", who="ops")
    assert record.kind == "ddl"
    known = pump.ddl(7)
    world.history.add(7, version=7)
    (done,) = world.snapshot()
    assert done.ddls == 2
    assert [
        (each.job_id, each.job is not None) for each in world.archive.jobs(world.archive.windows(), Tso(0), known)
    ] == [(424242, False), (7, True)]
    assert world.archive.last().accepted == (record,)
    assert verify(world.archive, deep=True).problems == []
    assert_given_up(world, commit_ts)


@pytest.mark.row("A3", "A2")
def test_a_ddl_binlog_that_was_accepted_takes_its_job_where_it_came_after_all(world):
    pump = world.pump()
    world.init()
    commit_ts = pump.ddl(9)
    accept(world.archive, world.cluster, "pump-1", Tso(pump.binlogs[-1][1]), commit_ts, "never came", who="ops")
    world.history.add(9, version=9)
    world.snapshot()
    assert world.archive.last().accepted == ()
    assert [each.job is not None for each in world.archive.jobs(world.archive.windows(), Tso(0), commit_ts)] == [True]


@pytest.mark.row("A7", "P17")
def test_a_duplicate_in_parts_is_compared_part_by_part(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    one.transaction(rows=100, size=100)
    two.put(*one.binlogs[-1])
    (done,) = world.snapshot(part_bytes=1024)
    assert done.duplicates == 1
    assert {node for _, node in world.commits()} == {"pump-1"}


@pytest.mark.row("A4")
@pytest.mark.parametrize("damage", ["digest", "gap", "version", "json", "name", "cluster", "bounds"])
def test_a_manifest_that_does_not_chain_is_named(world, damage):
    pump = world.pump()
    world.init()
    for _ in range(3):
        pump.transaction()
        world.snapshot()
    keys = [key for key in sorted(world.store.objects) if "/windows/" in key]
    middle = keys[1]
    good = world.store.objects[middle]
    world.store.objects[middle] = {
        "digest": changed(good, lambda m: m.update(fence=m["fence"] + 1)),
        "gap": changed(good, lambda m: m.update(end=m["end"] - 1, planned_end=m["planned_end"] - 1)),
        "version": json.dumps(json.loads(good) | {"format_version": 99}).encode(),
        "cluster": changed(good, lambda m: m.update(cluster_id=5)),
        "bounds": changed(good, lambda m: m.update(end=m["fence"])),
        "json": good[:-30],
        "name": world.store.objects[keys[0]],
    }[damage]
    with pytest.raises(BadManifest, match="windows/"):
        world.archive.windows()


def test_a_missing_window_is_a_gap(world):
    pump = world.pump()
    world.init()
    for _ in range(3):
        pump.transaction()
        world.snapshot()
    keys = [key for key in sorted(world.store.objects) if "/windows/" in key]
    del world.store.objects[keys[1]]
    with pytest.raises(BadManifest, match="gap"):
        world.archive.windows()


def test_windows_between_gives_those_that_touch_the_range_and_refuses_what_is_not_covered(world):
    pump = world.pump()
    genesis = world.init()
    ends = []
    for _ in range(3):
        pump.transaction()
        ends.append(world.snapshot()[0].end)
    archive = world.archive
    assert [m.end for m in archive.windows_between(genesis.ts, ends[2])] == ends
    assert [m.end for m in archive.windows_between(ends[0], ends[1])] == [ends[1]]
    assert [m.end for m in archive.windows_between(Tso(ends[0] - 1), Tso(ends[0] + 1))] == ends[:2]
    assert not archive.windows_between(ends[1], ends[1])
    for after, upto in ((genesis.ts - 1, ends[1]), (genesis.ts, ends[2] + 1)):
        with pytest.raises(ConfigError, match="the archive covers"):
            archive.windows_between(Tso(after), Tso(upto))


@pytest.mark.row("A2")
def test_a_pump_without_fsync_is_said_so_in_the_manifest(world):
    pump = world.pump()
    pump.sync_log = False
    pump.register(NodeState.ONLINE)
    world.init()
    world.snapshot()
    assert world.archive.windows()[0].unsynced == ("pump-1",)


def test_reports_that_do_not_fit_the_plan_are_refused(world):
    world.pump("pump-1"), world.pump("pump-2")
    world.init()
    plan = world.plan()
    reports = world.pull_all(plan)
    with pytest.raises(UsageError, match="do not fit"):
        world.commit(plan, reports[:1])
    with pytest.raises(UsageError, match="do not fit"):
        world.commit(plan, [reports[0], reports[0]])


@pytest.mark.row("A1", "O1")
def test_each_step_of_a_window_can_run_in_a_task_of_its_own_and_hands_on_json(world):
    one, two = world.pump("pump-1"), world.pump("go-1", go=True)
    world.init()
    one.transaction(), two.transaction()
    plan = through_json(world.plan())
    reports = [through_json(each) for each in world.pull_all(plan)]
    done = through_json(world.commit(plan, reports))
    assert (done.rows, done.end, done.more) == (2, world.archive.end(), False)


@pytest.mark.row("O1")
def test_json_of_a_plan_holds_its_timestamps_as_text_and_names_what_does_not_fit(world):
    world.pump()
    world.init()
    plan = world.plan()
    data = xcom.dump(plan)
    assert (data["end"], data["pumps"][0]["action"]) == (str(plan.end), "pull")
    for wrong in ({"end": plan.end}, {"end": "soon"}, {"end": ""}, {"run": 5}, {"pumps": {}}, {"more": True}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            xcom.read(WindowPlan, data | wrong)
    with pytest.raises(UsageError, match="fence"):
        xcom.read(WindowPlan, {key: value for key, value in data.items() if key != "fence"})


@pytest.mark.row("O1")
@pytest.mark.parametrize("kind", [WindowPlan, PullReport, PublishedWindow])
@given(data())
def test_every_value_between_tasks_is_the_same_behind_json(kind, data):
    through_json(data.draw(from_type(kind)))
