"""Nobody is left out in silence: Pumps that go, come back, are emptied, forced or declared (row A2)."""

import contextlib
import socket
import threading
from dataclasses import replace

import pytest

from pumphouse.archive import declare, pull_pump, settle
from pumphouse.archive.coverage import given_up, judge
from pumphouse.archive.declare import accept, accepted_commits, declarations, declare_lost
from pumphouse.archive.losses import losses_of
from pumphouse.archive.manifest import Declaration, PumpEntry
from pumphouse.archive.verify import verify
from pumphouse.archive.window import Action
from pumphouse.client.admin import force_state
from pumphouse.errors import PositionCollected, UsageError, WindowHeld
from pumphouse.model.node import NodeKind, NodeState, NodeStatus, PumpExtra, Replaced
from pumphouse.model.tso import Tso


def status(
    state="online", incarnation="one", start_count=1, node_id="pump-1", go=False, replaced=(), update_ts=0, seen=0
):
    extra = None if go else PumpExtra(incarnation=incarnation, start_count=start_count, replaced=tuple(replaced))
    times = {"update_ts": Tso(update_ts), "max_commit_ts": Tso(seen)}
    return NodeStatus(node_id=node_id, host="h:1", state=NodeState(state), extra=extra, **times)


def gone(incarnation="one", start_count=1, update_ts=50):
    return Replaced(incarnation=incarnation, start_count=start_count, update_ts=Tso(update_ts))


def entry(incarnation="one", start_count=1, drained=False, lost=False, registry="", state="closing", replaced=()):
    return PumpEntry(
        node_id="pump-1",
        incarnation=incarnation,
        start_count=start_count,
        state=state,
        reached=Tso(100),
        drained=drained,
        lost=lost,
        registry=registry,
        replaced=tuple(replaced),
    )


def declared(incarnation="one", start=100, node_id="pump-1"):
    return [
        Declaration(node_id=node_id, incarnation=incarnation, from_ts=Tso(start), to_ts=Tso(200), reason="r", who="w")
    ]


@pytest.mark.row("A2")
@pytest.mark.parametrize(
    ("now", "before", "holes", "action"),
    [
        (status(), None, [], Action.PULL),
        (status(), entry(), [], Action.PULL),
        (status("paused"), entry(), [], Action.PULL),
        (status("closing"), entry(), [], Action.PULL),
        (status(start_count=2), entry(), [], Action.PULL),
        (status(incarnation="two"), entry(), [], Action.HELD),
        # Another incarnation goes on only behind the very start that is drained or lost.
        (status(incarnation="two"), entry(drained=True), [], Action.HELD),
        (status(incarnation="two"), entry(drained=True, state="gone"), [], Action.PULL),
        (status(incarnation="two", replaced=[gone()]), entry(drained=True), [], Action.PULL),
        (status(incarnation="two", replaced=[gone()]), entry(drained=True, state="gone"), [], Action.PULL),
        (status(incarnation="two", replaced=[gone()]), entry(drained=True, replaced=[gone()]), [], Action.HELD),
        (status(incarnation="two", replaced=[gone("zero"), gone()]), entry(drained=True), [], Action.HELD),
        (
            status(incarnation="two", replaced=[gone("zero"), gone()]),
            entry(drained=True, replaced=[gone("zero")]),
            [],
            Action.PULL,
        ),
        (status(incarnation="two", replaced=[gone(start_count=2)]), entry(drained=True), [], Action.HELD),
        (
            status(incarnation="two", replaced=[gone(start_count=2)]),
            entry(drained=True, state="gone"),
            [],
            Action.HELD,
        ),
        (status(incarnation="two", replaced=[gone(), gone("x")]), entry(drained=True), [], Action.HELD),
        (status(incarnation="two", replaced=[gone(start_count=2)]), entry(drained=True), declared(), Action.PULL),
        (
            status(incarnation="two", replaced=[gone(start_count=2, update_ts=201)]),
            entry(drained=True),
            declared(),
            Action.HELD,
        ),
        (status(incarnation="two", replaced=[gone()]), entry(lost=True), [], Action.PULL),
        (status(incarnation="two", replaced=[gone(start_count=2)]), entry(lost=True), [], Action.HELD),
        (status(incarnation="two", replaced=[gone(update_ts=101)]), entry(lost=True), [], Action.HELD),
        (status(incarnation="two", replaced=[gone(update_ts=101)]), entry(lost=True), declared(start=90), Action.PULL),
        (status(incarnation="two", replaced=[gone()]), entry(), declared(), Action.PULL),
        (status(incarnation="two", replaced=[gone(update_ts=201)]), entry(), declared(), Action.HELD),
        (status(incarnation="two", replaced=[gone()]), None, [], Action.HELD),
        (status(incarnation="two", replaced=[gone()]), None, declared(incarnation="two"), Action.PULL),
        (status(start_count=2, replaced=[gone("two")]), entry(), [], Action.HELD),
        (status(start_count=2, replaced=[gone("two")]), entry(replaced=[gone("two")]), [], Action.PULL),
        (status(go=True), entry(drained=True), [], Action.HELD),
        (status(incarnation="two"), entry(), declared(), Action.PULL),
        (status(incarnation="two"), entry(), declared(start=99), Action.HELD),
        (status(incarnation="two"), entry(), declared(incarnation="three"), Action.HELD),
        (status(incarnation="two"), entry(), declared(node_id="pump-2"), Action.HELD),
        (status("offline"), entry(), [], Action.HELD),
        (status("offline"), None, [], Action.HELD),
        (status("offline"), entry(drained=True), [], Action.DRAINED),
        (status("offline", start_count=2), entry(drained=True), [], Action.HELD),
        (status("offline", incarnation="two"), entry(drained=True), [], Action.HELD),
        (status("offline"), entry(), declared(), Action.LOST),
        (status("offline"), entry(lost=True), [], Action.DRAINED),
        # Back with its own directory: nothing is missing only while the archive has not gone past the declared range.
        (status(), entry(lost=True), [], Action.HELD),
        (status(start_count=2), entry(lost=True), [], Action.HELD),
        (status(), entry(lost=True), declared(start=90), Action.PULL),
        (status(), entry(lost=True), declared(), Action.PULL),
        (status(), entry(lost=True, drained=True), [], Action.PULL),
        (status("offline", start_count=2), entry(lost=True), [], Action.HELD),
        (status("offline", update_ts=101), entry(lost=True), [], Action.HELD),
        (status("offline", update_ts=101), entry(lost=True), declared(start=90), Action.DRAINED),
        # Its clock stood still, and its watermark did not: it has run since.
        (status("offline", update_ts=99, seen=201), entry(lost=True), declared(start=90), Action.HELD),
        (status("offline", update_ts=99, seen=200), entry(lost=True), declared(start=90), Action.DRAINED),
        (status("offline", update_ts=101), entry(drained=True), [], Action.DRAINED),
        (None, entry(), [], Action.HELD),
        (None, entry(drained=True), [], Action.DRAINED),
        (None, entry(), declared(), Action.LOST),
        (status("offline", go=True), entry(incarnation="", drained=True), [], Action.DRAINED),
        (status("offline", go=True), entry(incarnation="", drained=True, registry="changed"), [], Action.HELD),
        (status("offline", go=True), entry(drained=True), [], Action.HELD),
    ],
)
def test_a_pump_is_pulled_drained_lost_or_holds_the_window(now, before, holes, action):
    assert judge(now, before, holes, Tso(100)).action is action


def held(world):
    with pytest.raises(WindowHeld) as caught:
        world.snapshot(pull_timeout_s=0.4)
    return {each["node_id"]: each["why"] for each in caught.value.holders}, str(caught.value)


@pytest.mark.row("A2")
def test_a_pump_forced_offline_that_was_not_drained_holds_the_window(world):
    pump = world.pump()
    world.init()
    pump.transaction()
    pump.register(NodeState.OFFLINE)
    why, text = held(world)
    assert "was not drained" in why["pump-1"]
    assert "declare-lost pump-1" in text
    assert not world.archive.windows()


@pytest.mark.row("A2")
def test_a_pump_gone_from_the_registry_that_was_not_drained_holds_the_window(world):
    world.pump()
    world.init()
    world.snapshot()
    world.cluster.update_node(NodeKind.PUMP, "pump-1", lambda _: None)
    why, _ = held(world)
    assert "gone from the registry" in why["pump-1"]


@pytest.mark.row("A2")
def test_a_pump_that_comes_back_with_an_emptied_data_directory_holds_the_window(world):
    pump = world.pump()
    world.init()
    pump.transaction()
    world.snapshot()
    lost = pump.transaction()
    pump.binlogs, pump.incarnation = [], "two"
    pump.register(NodeState.ONLINE)
    kept = pump.transaction()
    why, text = held(world)
    assert "another incarnation" in why["pump-1"]
    assert "emptied" in text
    made = declare_lost(world.archive, world.cluster, "pump-1", "disk replaced", who="ops")
    assert (made.incarnation, made.from_ts, made.to_ts > lost) == ("one", world.archive.end(), True)
    done, rest = world.snapshot()
    assert [each.reason for each in done.declared] == ["disk replaced"]
    assert (done.end, rest.declared) == (made.to_ts, ())
    manifest = world.archive.windows()[1]
    assert manifest.pump("pump-1").incarnation == "two"
    assert manifest.declared[0].to_ts == made.to_ts
    assert [ts for ts, _ in world.commits()][-1] == kept
    plan = world.plan()
    assert [each.node_id for each in plan.declared] == ["pump-1"]
    assert world.snapshot()[0].declared == ()


@pytest.mark.row("A2")
def test_a_dead_pump_that_is_declared_lost_no_longer_holds_and_its_range_is_the_declared_one(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    one.transaction()
    two.stop()
    held(world)
    made = declare_lost(world.archive, world.cluster, "pump-2", "host burned", who="ops")
    again = declare_lost(world.archive, world.cluster, "pump-2", "said twice", who="ops")
    assert again == made
    assert len(declarations(world.archive)) == 1
    force_state(world.cluster, "pump-2", NodeState.OFFLINE)
    one.transaction()
    done = world.snapshot()
    assert len(done) == 2
    assert done[0].end == made.to_ts
    assert world.archive.windows()[0].pump("pump-2").lost
    assert world.snapshot()
    two.start_count = 2
    two.register(NodeState.OFFLINE)
    why, _ = held(world)
    assert "pump-2" in why


@pytest.mark.row("A2")
@pytest.mark.parametrize("emptied", [False, True])
def test_a_pump_that_was_started_again_before_it_died_for_good_is_declared_lost_once(world, emptied):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    world.snapshot()
    if emptied:
        two.empty("two")
    else:
        two.start_count += 1
        two.register(NodeState.ONLINE)
    two.stop()
    force_state(world.cluster, "pump-2", NodeState.OFFLINE)
    made = declare_lost(world.archive, world.cluster, "pump-2", "host burned", who="ops")
    kept = one.transaction()
    assert world.snapshot()[0].end == made.to_ts
    known = world.cluster.node(NodeKind.PUMP, "pump-2").extra
    lost = next(each for each in world.archive.windows() if each.declared).pump("pump-2")
    assert (lost.incarnation, lost.start_count, lost.replaced) == (
        known.incarnation,
        known.start_count,
        known.replaced,
    )
    assert world.snapshot()
    assert world.commits() == [(kept, "pump-1")]
    two.start_count += 1
    two.register(NodeState.OFFLINE)
    why, _ = held(world)
    assert "pump-2" in why


@pytest.mark.row("A2")
def test_a_pump_that_ran_after_it_was_declared_lost_holds_the_next_window(world):
    _one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    world.snapshot()
    made = declare_lost(world.archive, world.cluster, "pump-2", "we thought so", who="ops")
    two.start_count += 1
    two.register(NodeState.ONLINE)  # it takes something after the declared range
    two.stop()
    force_state(world.cluster, "pump-2", NodeState.OFFLINE)
    why, _ = held(world)
    assert "it has run since" in why["pump-2"]
    assert world.archive.end() == made.to_ts
    assert world.archive.last().pump("pump-2").start_count == 1
    declare_lost(world.archive, world.cluster, "pump-2", "now it is", who="ops")
    assert world.snapshot()
    assert world.snapshot()


def lost_while_it_serves(world, *, restarted=True):
    """pump-2 cannot reach the registry, is taken for dead, and windows go on; the declaration."""
    _one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    world.snapshot()
    if restarted:
        two.start_count += 1
        two.register(NodeState.ONLINE)
    force_state(world.cluster, "pump-2", NodeState.OFFLINE)
    made = declare_lost(world.archive, world.cluster, "pump-2", "taken for dead", who="ops")
    for _ in range(3):
        world.snapshot()
    assert world.archive.end() > made.to_ts
    return two, made


@pytest.mark.row("A2")
def test_a_lost_pump_stays_lost_in_later_windows_and_holds_the_next_once_it_has_run(world):
    two, _made = lost_while_it_serves(world)
    entries = [each.pump("pump-2") for each in world.archive.windows()][-3:]
    assert [(each.start_count, each.lost, each.drained) for each in entries] == [(2, True, False)] * 3
    two.register(NodeState.ONLINE)  # the registry can be reached again, and then it dies: all between two windows
    two.stop()
    force_state(world.cluster, "pump-2", NodeState.OFFLINE)
    why, _ = held(world)
    assert "it has run since" in why["pump-2"]
    declare_lost(world.archive, world.cluster, "pump-2", "now it is", who="ops")
    for _ in range(3):
        assert world.snapshot()
    assert world.archive.last().pump("pump-2").lost
    assert verify(world.archive).sound


@pytest.mark.row("A2")
@pytest.mark.parametrize("restarted", [True, False])
def test_a_lost_pump_that_comes_back_behind_later_windows_is_pulled_only_when_what_it_had_is_given_up(world, restarted):
    two, made = lost_while_it_serves(world, restarted=restarted)
    missed = two.transaction()
    world.snapshot()
    assert made.to_ts < missed < world.archive.end()
    two.register(NodeState.ONLINE)
    kept = two.transaction()
    why, text = held(world)
    assert "what it answered in between is in no window" in why["pump-2"]
    assert "declare-lost pump-2" in text
    declare_lost(world.archive, world.cluster, "pump-2", "an hour without the registry", who="ops")
    done = world.snapshot()
    assert [each.node_id for each in done[0].declared] == ["pump-2"]
    assert world.commits() == [(kept, "pump-2")]
    entry = world.archive.last().pump("pump-2")
    assert (entry.lost, entry.drained) == (False, False)
    assert world.snapshot()[0].declared == ()
    assert verify(world.archive).sound


@pytest.mark.row("A2")
def test_what_replaced_another_after_the_declared_range_is_not_taken_for_the_lost_one():
    now = status("offline", incarnation="two", replaced=[gone(update_ts=201)], update_ts=150)
    verdict = judge(now, entry(), declared(), Tso(100))
    assert verdict.action is Action.LOST
    assert not given_up(now, entry(), verdict)
    assert given_up(now, entry(replaced=[gone(update_ts=201)]), verdict)


@pytest.mark.row("A2")
@pytest.mark.parametrize(("seen", "given"), [(200, True), (201, False)])
def test_a_start_with_a_watermark_above_the_declared_range_is_not_taken_for_the_lost_one(seen, given):
    now = status("offline", update_ts=150, seen=seen)
    assert given_up(now, entry(), judge(now, entry(), declared(), Tso(100))) is given


@pytest.mark.row("A2")
def test_a_lost_pump_that_is_still_registered_as_online_is_tried_first(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    ts = two.transaction()
    one.transaction()
    declare_lost(world.archive, world.cluster, "pump-2", "we thought so", who="ops")
    done = world.snapshot()
    assert [each.declared for each in done] == [(), ()]
    assert (ts, "pump-2") in world.commits()
    two.stop()
    held(world)


@pytest.mark.row("A2")
def test_a_declared_loss_never_covers_what_the_pump_answered_after_it(world):
    pump, _other = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    world.snapshot()
    pump.stop()
    made = declare_lost(world.archive, world.cluster, "pump-1", "we thought so", who="ops")
    pump.start()
    kept = pump.transaction()
    until = world.cluster.tso()
    plan = world.plan(until)
    assert (plan.pump("pump-1").action, plan.end) == ("pull", made.to_ts)
    pump.stop()
    with pytest.raises(WindowHeld):
        world.snapshot(until, pull_timeout_s=0.4)
    assert world.archive.end() == made.to_ts
    assert world.archive.last().pump("pump-1").lost
    pump.start()
    world.snapshot()
    assert world.commits() == [(kept, "pump-1")]


@pytest.mark.row("A2")
@pytest.mark.parametrize("known", ["drained", "never seen"])
def test_a_directory_that_is_lost_between_two_windows_holds_although_another_answers(world, known):
    other = world.pump("pump-2")
    pump = world.pump("pump-1") if known == "drained" else None
    world.init()
    if pump is not None:
        pump.register(NodeState.CLOSING)
        world.snapshot()
        pump.register(NodeState.OFFLINE)
        world.snapshot()
        pump.start_count = 2
        pump.register(NodeState.ONLINE)
    else:
        pump = world.pump("pump-1")
    pump.transaction()
    pump.empty("two")
    kept = pump.transaction()
    other.transaction()
    why, text = held(world)
    assert "it replaced incarnation one" in why["pump-1"]
    assert "declare-lost pump-1" in text
    made = declare_lost(world.archive, world.cluster, "pump-1", "its disk died", who="ops")
    done = world.snapshot()
    assert [each.node_id for each in done[0].declared] == ["pump-1"]
    assert done[0].end == made.to_ts
    assert (kept, "pump-1") in world.commits()
    assert [each.incarnation for each in world.archive.last().pump("pump-1").replaced] == ["one"]
    assert world.snapshot()[0].declared == ()
    assert verify(world.archive).sound


@pytest.mark.row("A2")
def test_a_drained_pump_is_followed_by_a_new_directory_under_its_name(world):
    pump, _other = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    pump.register(NodeState.CLOSING)
    world.snapshot()
    pump.register(NodeState.OFFLINE)
    pump.empty("two")
    kept = pump.transaction()
    world.snapshot()
    assert (kept, "pump-1") in world.commits()
    assert verify(world.archive).sound


@pytest.mark.row("A2")
def test_a_pump_that_ran_after_its_declared_loss_and_was_replaced_is_declared_again(world):
    pump = world.pump()
    world.init()
    world.snapshot()
    pump.stop()
    first = declare_lost(world.archive, world.cluster, "pump-1", "we thought so", who="ops")
    pump.start_count = 2
    pump.start()
    pump.transaction()
    pump.empty("two")
    why, _ = held(world)
    assert "start 2 ran after that" in why["pump-1"]
    again = declare_lost(world.archive, world.cluster, "pump-1", "now it is", who="ops")
    assert (again.from_ts, again.to_ts > first.to_ts) == (first.from_ts, True)
    assert declare_lost(world.archive, world.cluster, "pump-1", "said twice", who="ops") == again
    done = world.snapshot()
    assert [each.to_ts for each in done[0].declared] == [again.to_ts]


@pytest.mark.row("A2")
def test_a_moment_without_an_answer_is_no_loss_although_one_is_declared(world):
    pump = world.pump()
    world.init()
    ts = pump.transaction()
    made = declare_lost(world.archive, world.cluster, "pump-1", "we thought so", who="ops")
    pump.stop()
    back = threading.Timer(0.5, pump.start)
    back.start()
    (done,) = world.snapshot(made.to_ts, pull_timeout_s=20)
    back.join()
    assert done.declared == ()
    assert world.commits() == [(ts, "pump-1")]


@pytest.mark.row("A2")
@pytest.mark.parametrize("how", ["away", "emptied", "collected", "reported"])
def test_a_plan_that_reaches_above_the_declared_loss_gives_up_nothing(world, how):
    pump = world.pump()
    world.init()
    world.snapshot()
    made = declare_lost(world.archive, world.cluster, "pump-1", "we thought so", who="ops")
    if how == "emptied":
        pump.binlogs, pump.incarnation = [], "two"
        pump.register(NodeState.ONLINE)
    plan = world.plan()
    assert plan.end == made.to_ts
    settings = world.told(pull_timeout_s=0.4)
    if how != "reported":
        plan = replace(plan, end=plan.until)
    if how == "collected":
        pump.gc_point = world.cluster.tso()
    if how in ("away", "reported"):
        pump.stop()
    if how == "reported":
        reports = [world.pull(plan, "pump-1", settings)]
        plan = replace(plan, end=plan.until)
        reports = [replace(reports[0], reached=plan.until)]
        with pytest.raises(UsageError, match="no declared loss covers"):
            world.commit(plan, reports, settings)
        return
    with pytest.raises(PositionCollected if how == "collected" else WindowHeld):
        world.pull(plan, "pump-1", settings)


def test_a_declaration_needs_a_reason_and_a_known_pump(world):
    world.pump()
    world.init()
    with pytest.raises(UsageError, match="reason"):
        declare_lost(world.archive, world.cluster, "pump-1", " ")
    with pytest.raises(UsageError, match="known are: pump-1"):
        declare_lost(world.archive, world.cluster, "pump-9", "why")


@pytest.mark.row("A2", "P13")
def test_a_closing_pump_is_drained_when_nothing_real_lies_behind_the_window(world):
    pump = world.pump()
    world.init()
    pump.transaction()
    pump.register(NodeState.CLOSING)
    world.snapshot()
    assert world.archive.windows()[0].pump("pump-1").drained
    pump.register(NodeState.OFFLINE)
    pump.stop()
    assert world.snapshot()
    assert world.archive.windows()[-1].pump("pump-1").drained
    world.cluster.update_node(NodeKind.PUMP, "pump-1", lambda _: None)
    assert world.snapshot()
    assert world.archive.windows()[-1].pump("pump-1").state == "gone"


@pytest.mark.row("A2", "P13")
def test_a_closing_pump_with_a_transaction_behind_the_window_is_not_drained_yet(world):
    pump = world.pump()
    world.init()
    pump.transaction()
    until = world.cluster.tso()
    pump.register(NodeState.CLOSING)
    behind = pump.transaction()
    world.snapshot(until)
    assert not world.archive.windows()[0].pump("pump-1").drained
    pump.register(NodeState.OFFLINE)
    why, _ = held(world)
    assert "was not drained" in why["pump-1"]
    pump.register(NodeState.CLOSING)
    world.snapshot()
    assert world.archive.windows()[1].pump("pump-1").drained
    assert (behind, "pump-1") in world.commits()


@pytest.mark.row("A2", "P13")
def test_a_drained_pump_that_ran_again_and_was_forced_offline_holds_the_window(world):
    pump = world.pump()
    world.init()
    pump.register(NodeState.CLOSING)
    world.snapshot()
    pump.start_count = 2
    pump.transaction()
    pump.register(NodeState.OFFLINE)
    why, _ = held(world)
    assert "run again since" in why["pump-1"]


@pytest.mark.row("A2")
def test_a_pump_that_was_offline_at_genesis_is_no_part_of_the_archive(world):
    world.pump("pump-1")
    old = world.pump("pump-2")
    old.register(NodeState.OFFLINE)
    world.init()
    assert world.snapshot()
    old.start_count = 2
    old.register(NodeState.ONLINE)
    ts = old.transaction()
    assert world.snapshot()
    assert (ts, "pump-2") in world.commits()


@pytest.mark.row("P7", "A2")
def test_a_pull_from_below_the_gc_point_is_an_error_and_declared_away_only_by_name(world):
    pump = world.pump()
    world.init()
    pump.transaction()
    pump.binlogs, pump.gc_point = [], world.cluster.tso()
    kept = pump.transaction()
    with pytest.raises(PositionCollected, match="declare-lost pump-1"):
        world.snapshot()
    assert not world.archive.windows()
    declare_lost(world.archive, world.cluster, "pump-1", "unregistered for a week", who="ops")
    done, rest = world.snapshot()
    assert (len(done.declared), rest.declared) == (1, ())
    assert world.commits() == [(kept, "pump-1")]


@pytest.mark.row("W1", "A1")
def test_a_go_pump_is_pulled_by_single_messages(world):
    pump = world.pump(go=True)
    world.init()
    wanted = [pump.transaction(rows=2) for _ in range(30)]
    job = pump.ddl(9)
    world.history.add(9)
    world.snapshot()
    assert [ts for ts, _ in world.commits()] == [*wanted, job]
    last = world.archive.windows()[0].pump("pump-1").last
    assert job <= last.commit_ts <= world.archive.end()
    wanted = pump.transaction()
    world.snapshot()
    assert world.commits()[-1] == (wanted, "pump-1")


@pytest.mark.row("A2")
def test_a_go_pumps_last_binlog_is_one_that_lies_in_the_window(world):
    go, other = world.pump("go-1", go=True), world.pump("pump-2")
    world.init()
    world.snapshot()
    before = world.archive.last().pump("go-1").last
    first = go.transaction()
    for _ in range(10):
        other.transaction(rows=5, size=100)
    later = [go.transaction() for _ in range(5)]
    until = world.cluster.tso()
    other.frame_rows = 2
    plan = world.plan(until)
    settings = world.told(task_budget_bytes=2000)
    reports = world.pull_all(plan, settings)
    world.commit(plan, reports, settings)
    end, last = world.archive.end(), world.archive.last().pump("go-1").last
    assert first < end < later[0]
    assert before.commit_ts <= last.commit_ts <= end
    # Its GC goes by age: what it collected behind the window's end was never pulled into a manifest.
    go.gc_point = later[2]
    go.binlogs = [each for each in go.binlogs if each[0] > later[2]]
    why, _ = held(world)
    assert "no longer has the last binlog" in why["go-1"]


@pytest.mark.row("A2")
def test_the_samples_of_a_go_pump_stay_few_and_end_with_its_last_binlog(world):
    go = world.pump("go-1", go=True)
    world.init()
    go.follow_clock = False
    wanted = [go.transaction() for _ in range(60)]
    plan = world.plan()
    go.fake()
    go.frame_rows = 2
    settings = world.told(pull_timeout_s=20.0)
    report = world.pull(plan, "go-1", settings)
    seen = [each.commit_ts for each in report.seen]
    assert seen == sorted(seen)
    assert seen[0] <= wanted[0]
    assert seen[-1] == wanted[-1]
    assert len(seen) <= 32


@pytest.mark.row("A2")
@pytest.mark.parametrize("how", ["emptied", "collected"])
def test_a_go_pump_that_no_longer_has_the_last_binlog_pulled_holds_the_window(world, how):
    pump = world.pump(go=True)
    world.init()
    pump.transaction()
    world.snapshot()
    if how == "emptied":
        pump.binlogs = []
    else:
        pump.gc_point = world.cluster.tso()
    kept = pump.transaction()
    why, _text = held(world)
    assert "no longer has the last binlog" in why["pump-1"]
    declare_lost(world.archive, world.cluster, "pump-1", "its GC ran", who="ops")
    done, rest = world.snapshot()
    assert (len(done.declared), rest.declared) == (1, ())
    assert world.commits()[-1] == (kept, "pump-1")


@pytest.mark.row("A2")
@pytest.mark.parametrize("how", ["answers", "down", "hangs"])
def test_a_go_pump_that_answers_without_its_last_binlog_is_not_called_silent(world, monkeypatch, how):
    monkeypatch.setattr(pull_pump, "_FIRST_BINLOG_S", 0.3)
    pump = world.pump(go=True)
    world.init()
    pump.transaction()
    world.snapshot()
    pump.binlogs, pump.follow_clock = [], False
    down = how != "answers"
    if down:
        pump.stop()
    plan = world.plan()
    settings = world.told(pull_timeout_s=0.4)
    shown = []
    with contextlib.ExitStack() as hung:
        if how == "hangs":
            host, port = pump.addr.split(":")
            hung.enter_context(socket.create_server((host, int(port))))
        with pytest.raises(WindowHeld) as caught:
            world.pull(plan, "pump-1", settings, shown.append)
    assert {each.silent_at for each in shown} == {pump.addr if down else ""}
    assert ("does not answer" in str(caught.value)) is down
    assert ("does not bring the last binlog pulled from it again" in str(caught.value)) is not down


@pytest.mark.row("A2")
def test_a_go_pump_offline_and_drained_counts_only_while_its_registry_value_stays(world):
    pump = world.pump(go=True)
    world.init()
    pump.register(NodeState.CLOSING)
    world.snapshot()
    assert world.archive.windows()[0].pump("pump-1").drained
    pump.register(NodeState.OFFLINE)
    pump.stop()
    world.snapshot()
    assert world.archive.windows()[1].pump("pump-1").registry
    world.snapshot()
    changed = world.cluster.node(NodeKind.PUMP, "pump-1").with_(update_ts=world.cluster.tso())
    world.cluster.update_node(NodeKind.PUMP, "pump-1", lambda _: changed)
    why, _ = held(world)
    assert "pump-1" in why


@pytest.mark.row("P7", "A2")
@pytest.mark.parametrize("kind", ["late", "orphan"])
def test_a_late_or_orphan_commit_holds_until_it_is_accepted_by_name(world, kind):
    pump = world.pump()
    world.init()
    flag = {"orphan": 1, "late": 2}[kind]
    commit_ts = pump.transaction(flag=flag)
    start_ts = Tso(pump.binlogs[-1][1])
    pump.pending[start_ts, commit_ts] = kind
    _why, text = held(world)
    assert f"archive accept pump-1 {start_ts} {commit_ts}" in text
    with pytest.raises(UsageError, match="shows no late or orphan"):
        accept(world.archive, world.cluster, "pump-1", Tso(5), Tso(6), "why")
    with pytest.raises(UsageError, match="reason"):
        accept(world.archive, world.cluster, "pump-1", start_ts, commit_ts, "")
    record, told = accept(world.archive, world.cluster, "pump-1", start_ts, commit_ts, "seen in the logs", who="ops")
    assert told
    assert (record.kind, pump.accepted) == (kind, [(start_ts, commit_ts)])
    accept(world.archive, world.cluster, "pump-1", start_ts, commit_ts, "again", who="ops")
    assert [each.reason for each in accepted_commits(world.archive)] == ["seen in the logs"]
    world.snapshot()
    assert [each.commit_ts for each in world.archive.windows()[0].accepted] == [commit_ts]
    assert world.commits() == ([(commit_ts, "pump-1")] if kind == "late" else [])


@pytest.mark.row("A7", "P7")
@pytest.mark.parametrize("kind", ["late", "orphan"])
def test_a_late_or_orphan_commit_that_another_pump_has_whole_is_taken_by_itself(world, kind):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    commit_ts = one.transaction()
    start_ts = Tso(one.binlogs[-1][1])
    two.transaction(start=start_ts, commit=commit_ts, flag={"orphan": 1, "late": 2}[kind])
    two.pending[start_ts, commit_ts] = kind
    world.snapshot()
    assert world.commits() == [(commit_ts, "pump-1")]
    assert world.archive.windows()[0].accepted[0].reason == "pump-1 has the whole transaction"
    assert two.accepted == [(start_ts, commit_ts)]


@pytest.mark.row("A7", "P7")
def test_a_late_commit_below_the_archives_end_holds_unless_the_archive_has_it(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    commit_ts = one.transaction()
    start_ts = Tso(one.binlogs[-1][1])
    world.snapshot()
    two.transaction(start=start_ts, commit=commit_ts, flag=2)
    two.pending[start_ts, commit_ts] = "late"
    other_start, other_commit = Tso(start_ts - 2), Tso(commit_ts - 2)
    two.transaction(start=other_start, commit=other_commit, flag=2)
    two.pending[other_start, other_commit] = "late"
    _why, text = held(world)
    assert str(other_commit) in text
    assert str(commit_ts) not in text
    _, told = accept(world.archive, world.cluster, "pump-2", other_start, other_commit, "known", who="ops")
    assert (told, two.accepted) == (False, []), "nothing brings it any more: a manifest has to say so first"
    world.snapshot()
    window = world.archive.windows()[1]
    assert {(each.commit_ts, each.who) for each in window.accepted} == {(commit_ts, "archive"), (other_commit, "ops")}
    assert sorted(two.accepted) == sorted([(start_ts, commit_ts), (other_start, other_commit)])
    world.snapshot()
    assert world.archive.last().accepted == ()
    assert verify(world.archive).problems == []
    # It is in no window: whoever reads over its commit ts is told, also one that ends before the window that says so.
    for upto in (other_commit, window.start, world.archive.end()):
        (lost,) = losses_of(world.archive.windows(), after=Tso(other_commit - 1), upto=upto).declared
        assert (lost.to_ts, lost.who, "late" in lost.reason) == (other_commit, "ops", True)
    assert not losses_of(world.archive.windows(), after=other_commit, upto=world.archive.end())


@pytest.mark.row("P7", "A2")
@pytest.mark.parametrize("where", ["inside", "passed"])
@pytest.mark.parametrize("kind", ["late", "orphan"])
def test_what_only_a_pump_shows_as_accepted_holds_until_the_archive_has_a_record(world, monkeypatch, kind, where):
    for asked_by in (declare, pull_pump):
        monkeypatch.setattr(asked_by, "_FIRST_BINLOG_S", 0.3)
    pump = world.pump()
    world.init()
    start_ts, commit_ts = world.cluster.tso(), world.cluster.tso()
    if where == "passed":
        world.snapshot()
    if (kind, where) == ("orphan", "inside"):
        pump.transaction(start=start_ts, commit=commit_ts, flag=1)
    pump.pending[start_ts, commit_ts] = kind
    pump.accepted.append((start_ts, commit_ts))
    why, _ = held(world)
    assert f"{kind} commit {commit_ts}" in why["pump-1"]
    if (kind, where) == ("late", "inside"):
        return  # an accepted one comes in order: no frame has brought it
    accept(world.archive, world.cluster, "pump-1", start_ts, commit_ts, "known", who="ops")
    world.snapshot()
    assert [(each.commit_ts, each.reason) for each in accepted_commits(world.archive)] == [(commit_ts, "known")]
    assert [each.reason for each in world.archive.last().accepted] == ["known"]
    assert losses_of(world.archive.windows(), after=Tso(commit_ts - 1), upto=commit_ts).declared


@pytest.mark.row("P6", "A2")
def test_a_second_prewrite_with_the_same_start_ts_holds_the_window_by_name(world):
    pump = world.pump()
    world.init()
    commit_ts = pump.transaction()
    start_ts = Tso(pump.binlogs[-1][1])
    pump.pending[start_ts, start_ts] = "orphan"
    why, _ = held(world)
    assert f"a prewrite of start ts {start_ts}" in why["pump-1"]
    assert f"archive accept pump-1 {start_ts} {start_ts}" in why["pump-1"]
    accept(world.archive, world.cluster, "pump-1", start_ts, start_ts, "the client was wrong", who="ops")
    world.snapshot()
    assert world.commits() == [(commit_ts, "pump-1")]
    assert [each.reason for each in world.archive.last().accepted] == ["the client was wrong"]


@pytest.mark.row("P6", "A2")
def test_a_declared_loss_leaves_out_no_second_prewrite_that_its_pump_has_on_file(world):
    pump = world.pump()
    world.init()
    start_ts = world.cluster.tso()
    declare_lost(world.archive, world.cluster, "pump-1", "its disk died", who="ops")
    pump.empty("two")
    pump.pending[start_ts, start_ts] = "orphan"
    why, _ = held(world)
    assert f"a prewrite of start ts {start_ts}" in why["pump-1"]
    assert accepted_commits(world.archive) == []


@pytest.mark.row("A2", "A4")
def test_what_somebody_accepts_while_a_declaration_leaves_it_out_is_listed_as_they_said(world, monkeypatch):
    pump = world.pump()
    world.init()
    start_ts = world.cluster.tso()
    pump.empty("two")
    declare_lost(world.archive, world.cluster, "pump-1", "its disk died", who="ops")
    commit_ts = pump.transaction(start=start_ts, flag=1)
    pump.pending[start_ts, commit_ts] = "orphan"
    look = settle.declarations

    def meanwhile(archive):
        accept(archive, world.cluster, "pump-1", start_ts, commit_ts, "I looked", who="me")
        return look(archive)

    # The records by name were read before: what is put between is what the window has to list.
    monkeypatch.setattr(settle, "declarations", meanwhile)
    world.snapshot()
    assert [(each.reason, each.who) for each in world.archive.last().accepted] == [("I looked", "me")]
    assert verify(world.archive).problems == []
    record, _ = accept(world.archive, world.cluster, "pump-1", start_ts, commit_ts, "again", who="ops")
    assert record == accepted_commits(world.archive)[0]


@pytest.mark.row("A2", "P7", "R2")
@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_orphan_that_was_accepted_as_late_is_lost_unless_another_pump_has_it(world, elsewhere):
    pump, other = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    commit_ts = pump.transaction(flag=2)
    start_ts = Tso(pump.binlogs[-1][1])
    pump.pending[start_ts, commit_ts] = "late"
    accept(world.archive, world.cluster, "pump-1", start_ts, commit_ts, "known", who="ops")
    # Its prewrite goes before it was pulled; the record, which an earlier release may have made of both, stays.
    pump.binlogs.clear()
    pump.transaction(start=start_ts, commit=commit_ts, flag=1)
    pump.pending[start_ts, commit_ts] = "orphan"
    if elsewhere:
        other.transaction(start=start_ts, commit=commit_ts)
    world.snapshot()
    (taken,) = world.archive.last().accepted
    assert (taken.kind, taken.who) == ("orphan", "archive" if elsewhere else "ops")
    assert world.commits() == ([(commit_ts, "pump-2")] if elsewhere else [])
    lost = losses_of(world.archive.windows(), after=Tso(commit_ts - 1), upto=commit_ts).declared
    assert [each.who for each in lost] == ([] if elsewhere else ["ops"])
    assert verify(world.archive).problems == []


@pytest.mark.row("P7", "A2")
def test_a_late_commit_that_was_accepted_at_the_pump_before_it_was_pulled_is_in_the_archive_and_holds_nothing(world):
    pump = world.pump()
    world.init()
    commit_ts = pump.transaction()
    start_ts = Tso(pump.binlogs[-1][1])
    pump.pending[start_ts, commit_ts] = "late"
    pump.accepted.append((start_ts, commit_ts))
    world.snapshot()
    assert world.commits() == [(commit_ts, "pump-1")]
    world.snapshot()
    assert [each.who for each in world.archive.last().accepted] == ["archive"]
    world.snapshot()
    assert world.archive.last().accepted == ()


@pytest.mark.row("A2")
def test_a_window_reads_no_records_of_what_was_settled_long_ago(world, monkeypatch):
    pump = world.pump()
    world.init()
    for _ in range(3):
        commit_ts = pump.transaction(flag=2)
        start_ts = Tso(pump.binlogs[-1][1])
        pump.pending[start_ts, commit_ts] = "late"
        accept(world.archive, world.cluster, "pump-1", start_ts, commit_ts, "known", who="ops")
        read, get = [], world.store.get
        monkeypatch.setattr(world.store, "get", lambda key, get=get, read=read: read.append(key) or get(key))
        world.snapshot()
        assert [each.commit_ts for each in world.archive.last().accepted] == [commit_ts]
        assert len([key for key in read if "/accept-" in key]) == 1
        pump.binlogs[:] = [each for each in pump.binlogs if each[0] != commit_ts]


def late_while_pulled(world, pump, *, kind="late", brought=True):
    """A commit below the stream's position, once the first frame of the next pull is out."""
    start_ts, commit_ts = world.cluster.tso(), world.cluster.tso()
    frames = []

    def come():
        frames.append(1)
        if len(frames) == 2:
            pump.pending[start_ts, commit_ts] = kind
            if brought:
                pump.transaction(start=start_ts, commit=commit_ts, flag={"orphan": 1, "late": 2}[kind])

    pump.on_frame = come
    return start_ts, commit_ts


@pytest.mark.row("A2", "P7")
def test_a_late_commit_that_comes_while_its_window_is_pulled_is_fetched_and_held_by_name(world):
    pump = world.pump()
    world.init()
    world.snapshot()
    start_ts, commit_ts = late_while_pulled(world, pump)
    kept = [pump.transaction() for _ in range(3)]
    pump.frame_rows = 1
    why, _ = held(world)
    assert f"archive accept pump-1 {start_ts} {commit_ts}" in why["pump-1"]
    assert pump.pulls[-2:] == [world.archive.end()] * 2
    accept(world.archive, world.cluster, "pump-1", start_ts, commit_ts, "known", who="ops")
    world.snapshot()
    assert [ts for ts, _ in world.commits()] == [commit_ts, *kept]


@pytest.mark.row("A2", "P7")
@pytest.mark.parametrize("accepted", [False, True])
def test_no_window_is_published_over_a_late_commit_that_no_frame_brought(world, accepted):
    pump = world.pump()
    world.init()
    world.snapshot()
    end = world.archive.end()
    start_ts, commit_ts = late_while_pulled(world, pump, brought=False)
    if accepted:
        pump.accepted.append((start_ts, commit_ts))
    for _ in range(3):
        pump.transaction()
    pump.frame_rows = 1
    why, _ = held(world)
    assert f"late commit {commit_ts}" in why["pump-1"]
    assert world.archive.end() == end
    pump.transaction(start=start_ts, commit=commit_ts, flag=0 if accepted else 2)
    if not accepted:
        accept(world.archive, world.cluster, "pump-1", start_ts, commit_ts, "known", who="ops")
    world.snapshot()
    assert commit_ts in [ts for ts, _ in world.commits()]


@pytest.mark.row("A2", "P7")
def test_an_orphan_that_comes_while_its_window_is_pulled_is_held_by_name(world):
    pump = world.pump()
    world.init()
    world.snapshot()
    start_ts, commit_ts = late_while_pulled(world, pump, kind="orphan", brought=False)
    for _ in range(3):
        pump.transaction()
    pump.frame_rows = 1
    why, _ = held(world)
    assert f"archive accept pump-1 {start_ts} {commit_ts}" in why["pump-1"]


@pytest.mark.row("A2", "P13")
def test_a_closing_pump_is_not_drained_while_a_late_commit_lies_behind_the_window(world):
    pump = world.pump()
    world.init()
    until = world.cluster.tso()
    start_ts, commit_ts = late_while_pulled(world, pump, brought=False)
    pump.register(NodeState.CLOSING)
    world.snapshot(until)
    assert not world.archive.last().pump("pump-1").drained
    pump.transaction(start=start_ts, commit=commit_ts, flag=2)
    why, _ = held(world)
    assert f"archive accept pump-1 {start_ts} {commit_ts}" in why["pump-1"]


@pytest.mark.row("A7", "P7")
def test_a_late_commit_below_the_pumps_gc_point_holds_by_name(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    commit_ts = two.transaction()
    start_ts = Tso(two.binlogs[-1][1])
    world.snapshot()
    one.pending[start_ts, commit_ts] = "late"
    one.gc_point = commit_ts + 1
    why, _ = held(world)
    assert f"archive accept pump-1 {start_ts} {commit_ts}" in why["pump-1"]
    accept(world.archive, world.cluster, "pump-1", start_ts, commit_ts, "pump-2 has it", who="ops")
    assert world.snapshot()


@pytest.mark.row("A2", "P7")
@pytest.mark.parametrize("kind", ["late", "orphan"])
def test_a_late_or_orphan_commit_below_genesis_is_no_part_of_the_archive(world, kind):
    pump = world.pump()
    start_ts, commit_ts = world.cluster.tso(), world.cluster.tso()
    pump.pending[start_ts, commit_ts] = kind
    world.init()
    assert world.archive.genesis().ts > commit_ts
    assert world.snapshot()
    assert pump.accepted == []


@pytest.mark.row("A2")
def test_every_holder_is_named_at_once(world):
    pumps = [world.pump(f"pump-{n}") for n in range(3)]
    world.init()
    for pump in pumps:
        pump.stop()
    why, _ = held(world)
    assert set(why) == {"pump-0", "pump-1", "pump-2"}
    for pump in pumps[:2]:
        pump.register(NodeState.OFFLINE)
    why, _ = held(world)
    assert set(why) == {"pump-0", "pump-1"}


@pytest.mark.row("A2")
def test_a_pump_that_changes_its_incarnation_in_the_middle_of_a_pull_is_found(world):
    pump = world.pump()
    world.init()
    pump.transaction()
    pump.incarnation = "two"
    why, _ = held(world)
    assert why["pump-1"] == "another incarnation"


@pytest.mark.row("A2", "P13")
def test_a_drained_pump_that_goes_offline_while_it_is_pulled_stays_drained(world):
    pump, other = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    pump.transaction()
    pump.register(NodeState.CLOSING)
    world.snapshot()
    plan = world.plan()
    assert plan.pump("pump-1").action == "pull"
    pump.register(NodeState.OFFLINE)
    pump.stop()
    other.transaction()
    reports = world.pull_all(plan)
    world.commit(plan, reports)
    assert world.archive.last().pump("pump-1").drained
    assert world.snapshot()


@pytest.mark.row("A2", "P13")
@pytest.mark.parametrize("drained", [False, True])
def test_a_pump_that_goes_offline_while_it_is_pulled_and_has_more_holds_the_window(world, drained):
    pump = world.pump("pump-1")
    world.init()
    if drained:
        pump.register(NodeState.CLOSING)
    world.snapshot()
    wanted = [pump.transaction() for _ in range(3)]
    plan = world.plan()
    assert world.archive.last().pump("pump-1").drained is drained
    pump.frame_rows = 1
    frames = []

    def leave():
        frames.append(1)
        if len(frames) == 2:
            pump.register(NodeState.OFFLINE)
            pump._stopping.set()

    if drained:
        pump.on_frame = leave
    else:
        pump.register(NodeState.OFFLINE)
        pump.stop()
    with pytest.raises(WindowHeld):
        world.pull(plan, "pump-1")
    pump.on_frame = lambda: None
    pump.stop()
    pump.start()
    world.snapshot()
    assert [ts for ts, _ in world.commits()] == wanted


@pytest.mark.row("A2", "P13")
def test_a_drained_pump_stays_drained_when_the_next_proof_is_cut_short(world):
    pump = world.pump()
    world.init()
    pump.register(NodeState.CLOSING)
    world.snapshot()
    until = world.cluster.tso()
    pump.follow_clock, pump.watermark = False, until + 1
    world.snapshot(until, pull_timeout_s=0.4)
    assert world.archive.last().pump("pump-1").drained
    pump.watermark = pump.transaction()
    why, _ = held(world)
    assert "has not shown that it is drained" in why["pump-1"]


@pytest.mark.row("A2", "P13")
@pytest.mark.parametrize("answers", [True, False])
def test_a_closing_pump_whose_pull_ends_by_the_budget_is_drained_or_holds_the_window(world, answers):
    pump, other = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    world.snapshot()
    wanted = [pump.transaction(rows=5, size=100) for _ in range(6)]
    pump.register(NodeState.CLOSING)
    last = pump.fake()
    until = world.cluster.tso()
    pump.follow_clock, pump.watermark = False, last
    if answers:
        pump.on_frame = lambda: (len(frames) > 1 and setattr(pump, "follow_clock", True)) or frames.append(1)
    frames = []
    plan = world.plan(until)
    settings = world.told(task_budget_bytes=2000, pull_timeout_s=0.5)
    if not answers:
        with pytest.raises(WindowHeld, match="has not shown that it is drained"):
            world.pull(plan, "pump-1", settings)
        assert world.pull(plan, "pump-2", settings).reached == until
        return
    reports = world.pull_all(plan, settings)
    assert last <= reports[0].reached < until
    world.commit(plan, reports, settings)
    assert world.archive.last().pump("pump-1").drained
    pump.register(NodeState.OFFLINE)
    pump.stop()
    assert other.transaction()
    world.snapshot()
    assert [ts for ts, _ in world.commits()][: len(wanted)] == wanted


@pytest.mark.row("A2", "P13")
@pytest.mark.parametrize("above", ["a transaction", "a prewrite"])
def test_a_closing_pump_with_more_than_the_budget_takes_does_not_hold_the_window(world, above):
    pump = world.pump("pump-1")
    world.init()
    pump.frame_rows = 3
    wanted = [pump.transaction(rows=5, size=100) for _ in range(12)]
    if above == "a prewrite":
        pump.binlogs, wanted = pump.binlogs[:3], wanted[:3]
        pump.follow_clock, pump.watermark, pump.blocker = False, wanted[-1], world.cluster.tso()
    pump.register(NodeState.CLOSING)
    plan = world.plan()
    settings = world.told(task_budget_bytes=1000, pull_timeout_s=0.5)
    report = world.pull(plan, "pump-1", settings)
    assert report.reached == wanted[2]
    world.commit(plan, [report], settings)
    assert not world.archive.last().pump("pump-1").drained
    assert [ts for ts, _ in world.commits()] == wanted[:3]


@pytest.mark.row("A2", "P13")
def test_a_closing_pump_that_was_pulled_whole_is_not_drained_where_anothers_budget_cuts_the_window_below_it(world):
    pump, other = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    below = pump.transaction()
    wanted = [other.transaction(rows=5, size=100) for _ in range(12)]
    other.frame_rows = 3
    above = pump.transaction()
    pump.register(NodeState.CLOSING)
    plan = world.plan()
    settings = world.told(task_budget_bytes=1000)
    reports = world.pull_all(plan, settings)
    whole, cut = reports
    assert (whole.reached, whole.tail_from) == (plan.end, 0)
    assert whole.drained_to, "it has shown that nothing lies behind the window that was planned"
    assert below < cut.reached < above
    world.commit(plan, reports, settings)
    last = world.archive.last()
    assert last.end == cut.reached
    assert not last.pump("pump-1").drained
    # Gone by now, it would take what lies above the window's end with it: that must not go unnoticed.
    pump.register(NodeState.OFFLINE)
    pump.stop()
    why, _ = held(world)
    assert "was not drained" in why["pump-1"]
    pump.start()
    pump.register(NodeState.CLOSING)
    world.snapshot()
    assert sorted(world.commits()) == [(below, "pump-1"), *((ts, "pump-2") for ts in wanted), (above, "pump-1")]
    assert world.archive.last().pump("pump-1").drained
