"""What of a look wants a hand, and the next command to type. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pumphouse.archive.consumer import consumer_id
from pumphouse.loader.rules import RESYNC
from pumphouse.loader.state import BEGINNING, TargetState
from pumphouse.model.node import NodeState
from pumphouse.model.tso import show
from pumphouse.settings import Settings
from pumphouse.status.report import Finding, PumpState, Severity, Status, TargetStatus

# An hour without a window, or a load: far more than the intervals that anybody runs at.
LATE_S = 3600.0
# A watermark that stands still for so long waits for something: a prewrite, a disk.
HELD_S = 60.0


def findings(status: Status, no_cluster: str, settings: Settings) -> tuple[Finding, ...]:
    """Everything that wants a hand, the worst first.

    Args:
        status: what was seen.
        no_cluster: why the cluster could not be asked ('' = it was).
        settings: all of them.
    """
    found = [*_cluster(status, no_cluster)]
    if not no_cluster:
        found += [*_archive(status), *(each for pump in status.pumps for each in _pump(pump))]
        found += _consumers(status, settings)
    found += [each for target in status.targets for each in _target(target)]
    return tuple(sorted(found, key=lambda each: each.severity is not Severity.ERROR))


def _error(who: str, what: str, next_: str) -> Finding:
    return Finding(severity=Severity.ERROR, who=who, what=what, next=next_)


def _warning(who: str, what: str, next_: str) -> Finding:
    return Finding(severity=Severity.WARNING, who=who, what=what, next=next_)


def _cluster(status: Status, why: str) -> Iterator[Finding]:
    if why:
        yield _error("cluster", f"{status.cluster}: {why}", "pumphouse --config FILE status, with the settings of it")


def _archive(status: Status) -> Iterator[Finding]:
    archive = status.archive
    if archive.end is None or archive.begin is None:
        begun = "there is no archive" not in archive.problem
        what = archive.problem or "it does not answer"
        yield _error("archive", what, "pumphouse archive ls" if begun else "pumphouse archive init")
        return
    if archive.checkpoint is None:
        yield _error("archive", "the Pumps do not know it: their GC does not wait for it", "pumphouse archive init")
    for doubt in archive.doubts:
        yield _error("archive", doubt, "pumphouse archive verify")
    for each in archive.held_by:
        yield _error(each.who, f"it holds the archive at {show(archive.end)}: {each.why}", each.hint)
    if archive.restorable_from is None:
        what = "nothing can be restored: there is no dump of the tables that there were when it began"
        yield _warning("archive", what, "pumphouse archive dump")
    if archive.age_s is not None and archive.age_s > LATE_S:
        what = f"it ends {archive.age_s / 3600:.1f} h ago, at {show(archive.end)}"
        yield _warning("archive", what, "pumphouse snapshot")


def _pump(pump: PumpState) -> Iterator[Finding]:
    look = f"pumphouse pump status {pump.node_id}"
    who = f"Pump {pump.node_id}"
    if pump.silent:
        what = f"silent for {pump.silent_s:.0f} s at {pump.address}, registered as {pump.state}: it holds the archive"
        yield _error(who, what, f"pumphouse pump run, on its data directory; {look}")
    elif pump.problem:
        yield _warning(who, f"{pump.problem}, its last heartbeat is {pump.silent_s:.0f} s old", look)
    if pump.writer_failed:
        yield _error(who, "its disk failed, it writes no more", "pumphouse pump run, on its data directory")
    elif pump.read_only:
        yield _error(who, "its disk is full, it takes no prewrites", "pumphouse gc")
    if pump.state == NodeState.PAUSED:
        what = "paused: snapshots wait for it, and GC of all Pumps with them"
        yield _warning(who, what, "pumphouse pump run, on its data directory")
    elif pump.answers and pump.unresolved and (pump.lag_s is None or pump.lag_s > HELD_S):
        stands = "has no watermark yet" if pump.lag_s is None else f"has a watermark that is {pump.lag_s:.0f} s old"
        yield _warning(who, f"it {stands}: {pump.unresolved} prewrites have no outcome", look)


def _target(target: TargetStatus) -> Iterator[Finding]:
    loads, name = target.section != "restore_target", target.section.removeprefix("targets.")
    load = f"pumphouse load --target {name}" if loads and name != "target" else "pumphouse load"
    who = f"[{target.section}] {target.address}"
    rules = "load.rules" if name in ("target", "restore_target") else f"targets.{name}.rules"
    for table, why in target.parked.items():
        without = "" if why.endswith(RESYNC) else f", without its rule in {rules}"
        yield _warning(who, f"{table} is {why}", f"{load} --resync {table}{without}")
    if target.problem:
        then = f"pumphouse status, when it is back, or address, user and password of [{target.section}] are right"
        yield (_error if loads else _warning)(who, target.problem, then)
    elif target.held_by and target.state != TargetState.READY:
        pass  # somebody is at work on it
    elif loads and target.state == TargetState.INCOMPLETE and target.reason == BEGINNING:
        yield _error(who, f"{target.task} is {target.state}: {target.reason}", load)
    elif target.state and target.state != TargetState.READY:
        into = f"--into {name} " if loads else ""
        yield _error(
            who,
            f"{target.task} is {target.state}: {target.reason}",
            f"pumphouse restore {into}--to TIME, the same as before",
        )
    elif loads and target.at is None:
        yield _warning(who, "it was never loaded", load)
    elif loads and target.stopped_before is not None:
        what = f"a load to {show(target.stopped_before)} has stopped: {target.task} is at {show(target.at or 0)}"
        yield _warning(who, what, load)
    elif loads and target.lag_s is not None and target.lag_s > LATE_S and target.at is not None:
        yield _warning(who, f"{target.task} is {target.lag_s / 3600:.1f} h behind, at {show(target.at)}", load)


def _consumers(status: Status, settings: Settings) -> Iterator[Finding]:
    own = consumer_id(settings.archive.archive_id)
    for each in status.consumers:
        if each.stale and each.node_id != own:
            what = f"has written no checkpoint for {each.age_s / 3600:.1f} h and holds the Pumps' GC at "
            yield _warning(f"consumer {each.node_id}", what + show(each.checkpoint), "pumphouse drainers")
