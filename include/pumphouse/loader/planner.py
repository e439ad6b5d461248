"""What a load does from where the target stands: go on, repeat, abandon. Planners (`pumphouse.loader.steps`), pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pumphouse import advice
from pumphouse.errors import BinlogError, LoadError, TargetAhead, TargetIncomplete, UsageError
from pumphouse.loader.names import require_names
from pumphouse.loader.plan import Mode
from pumphouse.loader.state import Checkpoint, Standing, TargetState
from pumphouse.loader.steps import Abandon, Apply, Discard, Given, Halt, Step, Steps, TakeBack
from pumphouse.loader.target import address
from pumphouse.loader.work import Work, open_work, repeat_work, works_between
from pumphouse.model.tso import Tso, show


def plan_load(given: Given, checkpoint: Checkpoint, to: Tso | None) -> Steps:
    """Load (checkpoint, to]; None = to the archive's end. No steps when the target is there already."""
    require_ready(given, checkpoint)
    view, rules, end, at = given.view, given.rules, given.view.end, checkpoint.ts
    if at > end:
        raise TargetAhead(
            f"target {address(given.target)} is at {show(at)}, the archive ends at {show(end)}",
            hint="this is not the archive that the target was loaded from, or it was cut",
            target=address(given.target),
            checkpoint=at,
            archive_end=end,
        )
    goal = end if to is None else to
    _require_before(given, goal, at, "stands at")
    before, work = unfinished(given)
    if work is not None:
        # It can only be carried out as a whole: its units are of all its range.
        _require_before(given, goal, work.plan.to_ts, "has an open plan that ends at")
    if at < goal:
        require_names(given.target, view, rules, at, goal)
    if work is not None:
        work = _extended(given, work, goal)
        before += (Apply(work=work),)
        at = max(at, work.plan.to_ts)
    return Steps(from_ts=checkpoint.ts, to_ts=max(at, goal), before=before, after=tuple(_plans(given, at, goal)))


def plan_repeat(given: Given, checkpoint: Checkpoint, since: Tso) -> Steps:
    """Apply (since, checkpoint] once more: for tables that have a key and whose shape did not change since."""
    require_ready(given, checkpoint)
    before, work = unfinished(given)
    if work is not None and work.plan.mode is not Mode.REPEAT:
        raise LoadError("a plan is open", hint="finish it first: run the load without --repeat-from")
    if work is None:
        if since >= checkpoint.ts:
            raise UsageError(f"the target is at {show(checkpoint.ts)}: nothing after {show(since)} was loaded")
        work = repeat_work(given.view, since, checkpoint.ts, given.task, given.settings, given.rules)
    return Steps(from_ts=checkpoint.ts, to_ts=checkpoint.ts, before=before, after=(Apply(work=work),))


def plan_abandon(standing: Standing, task: str, target: str, reason: str) -> Steps:
    """Give the open plan up; the target is inconsistent from then on, and only a restore clears that."""
    plan, found = standing.plan, standing.checkpoint
    if plan is None:
        raise UsageError(f"task {task} has no open plan on {target}")
    at = Tso(0) if found is None else found.ts
    return Steps(from_ts=at, to_ts=at, before=(Abandon(plan=plan, reason=reason),))


def require_ready(given: Given, checkpoint: Checkpoint) -> None:
    """TargetIncomplete unless the target may be loaded."""
    if checkpoint.state is not TargetState.READY:
        target = address(given.target)
        raise TargetIncomplete(
            f"target {target} is {checkpoint.state}: {checkpoint.reason}",
            hint=("restore it: ", advice.RESTORE_THIS),
            target=target,
            state=str(checkpoint.state),
        )


def unfinished(given: Given) -> tuple[tuple[Step, ...], Work | None]:
    """What an earlier run left unfinished: the steps before it goes on, and its plan where it does.

    A plan of which nothing was applied is given up: it is made anew. So a plan that could not be carried out (a DDL
    that straddles its end, a schema that was wrong) is nobody's burden, and a new one sees more of the archive.
    """
    standing = given.standing
    plan = standing.plan
    if plan is None:
        return (), None
    if plan.only or standing.untouched:
        return (Discard(plan=plan),), None
    work = open_work(given.view, plan, address(given.target), given.rules, standing.begun)
    # Before anything of the plan becomes another.
    return ((TakeBack(work=work),) if plan.mode is Mode.REPLAY else ()), work


def _extended(given: Given, work: Work, goal: Tso) -> Work:
    """A replay that was begun goes on to what is asked for now: more of the archive may be what it stopped for."""
    plan = work.plan
    if plan.mode is not Mode.REPLAY or goal <= plan.to_ts:
        return work
    # What it leaves out of its range so far is settled: other transactions of that may be on the target.
    txns = {ts: rule for ts, rule in given.rules.txns.items() if ts in plan.without or ts > plan.to_ts}
    rules = replace(given.rules, txns=txns)
    longer = next(works_between(given.view, plan.from_ts, goal, given.task, given.settings, rules, plan.mode))
    return longer.numbered(plan.number, {}).leaving_out(plan.without) if longer.plan.to_ts > plan.to_ts else work


def _plans(given: Given, after: Tso, upto: Tso) -> Iterator[Step]:
    """One or several; `Halt` behind those that lead to what nothing can be loaded past."""
    mode = Mode.REPLAY if given.settings.mode == "replay" else Mode.MERGE
    try:
        for work in works_between(given.view, after, upto, given.task, given.settings, given.rules, mode):
            yield Apply(work=work)
    except BinlogError as error:
        yield Halt(error=error)


def _require_before(given: Given, goal: Tso, at: Tso, what: str) -> None:
    if at > goal:
        target = address(given.target)
        raise TargetAhead(
            f"target {target} {what} {show(at)}, beyond {show(goal)}, which was asked for",
            hint=("a load only goes forward: ask for a later moment, or ", advice.RESTORE_THIS),
            target=target,
            checkpoint=at,
            to=goal,
        )
