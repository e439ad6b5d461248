"""What of a look wants a hand, and the next command to type. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pumphouse.archive.consumer import consumer_id
from pumphouse.loader.rules import RESYNC
from pumphouse.loader.state import BEGINNING, TargetState
from pumphouse.model.node import NodeState
from pumphouse.model.tso import physical_ms, show
from pumphouse.settings import Settings
from pumphouse.status.report import ArchiveStatus, Finding, PumpState, Severity, Status, TargetStatus, only_restored

# So long behind is late where nothing is known of the interval; and a load, behind the archive.
LATE_S = 3600.0
# An archive whose end is older than so many of its windows, and than the shortest time below, is late.
_INTERVALS = 3
_SHORTEST_LATE_S = 300.0
# An archive cannot end further ahead of the clock than clocks differ.
_AHEAD_S = 60.0
# A watermark that stands still for so long waits for something: a prewrite, a disk.
HELD_S = 60.0
# A transaction is not under way for so long: its prewrite has lost its outcome, or somebody holds it.
OPEN_S = 10.0
# A capture that works is some tenths of a second behind, and some seconds behind a large transaction.
CAPTURE_LAG_S = 60.0
_SHOWN = 5
_DUMP = "pumphouse archive dump"
NO_DUMP = "nothing can be restored: there is no dump of the tables that there were when it began"
# In the name of a run: of a DAG.
_OF_DAG = " of "


def findings(status: Status, no_cluster: str, settings: Settings) -> tuple[Finding, ...]:
    """Everything that wants a hand, the worst first.

    Args:
        status: what was seen.
        no_cluster: why the cluster could not be asked ('' = it was).
        settings: all of them.
    """
    # First of all: what everything else is for does not work.
    found = [*_drill(status, settings), *_proofs(status, settings), *_cluster(status, no_cluster)]
    if not no_cluster:
        late = late_s(status.archive.interval_s)
        found += [*_copy(status, settings)]
        own = consumer_id(settings.archive.archive_id)
        found += [*_archive(status, late, own), *_writers(status)]
        found += [each for pump in status.pumps for each in _pump(pump)]
        found += [*_captures(status, late), *_consumers(status, own)]
    scratch = {f"targets.{name}" for name, each in settings.targets.items() if each.scratch}
    loaded = [each for each in status.targets if each.at is not None or each.section not in scratch]
    late_load_s, begins = LATE_S if no_cluster else LATE_S + late, _begins(status)
    found += [each for target in loaded for each in _target(target, late_load_s, begins=begins)]
    return tuple(sorted(found, key=lambda each: each.severity is not Severity.ERROR))


def _error(who: str, what: str, next_: str) -> Finding:
    return Finding(severity=Severity.ERROR, who=who, what=what, next=next_)


def ago(seconds: float | None) -> str:
    """How long ago, for people."""
    if seconds is None:
        return "-"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _warning(who: str, what: str, next_: str) -> Finding:
    return Finding(severity=Severity.WARNING, who=who, what=what, next=next_)


def _cluster(status: Status, why: str) -> Iterator[Finding]:
    if why:
        yield _error("cluster", f"{status.cluster}: {why}", "pumphouse --config FILE status, with the settings of it")


def _drill(status: Status, settings: Settings) -> Iterator[Finding]:
    """The last drill, where it was red or failed, or where none has ended for long."""
    last, into = status.archive.drill, settings.drill.into
    if last is not None and not last.green:
        what = f"{last.verdict}{': ' * bool(last.why)}{last.why}, {ago(last.age_s)} ago"
        at = f" at {show(last.at)}" if last.at else ""
        rows = "" if last.why else "; pumphouse archive proofs --tables"
        yield _error(f"drill into {last.into}{at}", what, f"{last.again}{rows}")
    elif into and status.archive.end is not None and (last is None or last.age_s > settings.drill.max_age_s):
        what = "none has ended yet" if last is None else f"the last one ended {last.age_s / 86_400:.1f} days ago"
        yield _warning(f"drill into {into}", what, f"pumphouse drill --into {into}{' --whole' * settings.drill.whole}")


def _proofs(status: Status, settings: Settings) -> Iterator[Finding]:
    """The newest proof of each target, where it is red."""
    for proof, each in status.red:
        name = each.section.removeprefix("targets.")
        how = "" if name == "target" else f" --on {name}"
        how += "" if each.task == settings.load.task else f" --task {each.task}"
        what = f"the newest proof, at {show(proof.at)}, is DIFFERENT: {', '.join(proof.tables[:_SHOWN])}"
        more = f" and {len(proof.tables) - _SHOWN} more" if len(proof.tables) > _SHOWN else ""
        again = f"pumphouse archive prove{how}; pumphouse archive proofs --tables"
        yield _error(f"[{each.section}] {each.address}", f"{what}{more}", again)


def _captures(status: Status, late_s: float) -> Iterator[Finding]:
    """What of a source comes late or not at all: its binlogs are deleted one day, whether they were read or not."""
    for each in status.captures:
        who = f"capture {each.capture_id} of {each.source}"
        start = f"pumphouse capture run, on {each.host}"
        if each.state == "failed":
            yield _error(who, f"it ended: {each.reason}", start)
        elif each.state == "silent":
            yield _error(who, f"its last heartbeat is {each.silent_s:.0f} s old", start)
        elif each.state == "stopped":
            yield _warning(who, f"it was stopped {each.silent_s:.0f} s ago", start)
        elif each.state == "paused":
            what = "it is paused: what the source writes is not in the Pumps, and its binlogs are deleted one day"
            yield _warning(who, what, f"pumphouse capture resume {each.capture_id}")
        elif each.lag_s > CAPTURE_LAG_S:
            what = f"it is {each.lag_s:.0f} s behind" + (f": {each.reason}" if each.reason else "")
            stands = bool(each.reason) or each.lag_s > late_s
            yield (_error if stands else _warning)(who, what, "pumphouse capture status; pumphouse pumps")
        if each.state == "running" and each.semi_sync is False:
            what = "the source's commits do not wait for it (semi-sync is off there, or fell back)"
            yield _warning(who, what, "pumphouse capture check; pumphouse pumps")


def late_s(interval_s: float | None) -> float:
    """From which age on an archive is late, in seconds, where its windows are so long: late by twice that."""
    return LATE_S if interval_s is None else max(_SHORTEST_LATE_S, _INTERVALS * interval_s)


def _begins(status: Status) -> bool:
    """Whether the archive is so young that the first load of those that are scheduled may still be under way."""
    begin, interval_s = status.archive.begin, status.archive.interval_s
    if begin is None or interval_s is None:
        return False
    return physical_ms(status.now) - physical_ms(begin) < 1000 * late_s(interval_s)


def _writers(status: Status) -> Iterator[Finding]:
    """Whether anybody takes prewrites; without an archive, that is what comes first anyway."""
    online = [each for each in status.pumps if each.state == NodeState.ONLINE and not (each.silent or each.problem)]
    takes = [each for each in online if not (each.read_only or each.writer_failed)]
    if status.archive.begin is not None and not takes:
        what = "none takes prewrites: every writer stands still"
        # `_pump` says of each one what it wants.
        full = [each for each in online if each.read_only and not each.writer_failed]
        run = "pumphouse pump run, on the data directory of each; pumphouse pumps"
        others = f"; {run}" if len(full) < len(status.pumps) else ""
        yield _error("Pumps", what, f"pumphouse gc{others}" if full else run)


def _archive(status: Status, late_s: float, own: str) -> Iterator[Finding]:
    archive = status.archive
    if archive.end is None or archive.begin is None:
        begun = "there is no archive" not in archive.problem
        what = archive.problem or "it does not answer"
        yield _error("archive", what, "pumphouse archive ls" if begun else archive.next or "pumphouse archive init")
        return
    if archive.checkpoint is None and own not in dict(status.unread):
        yield _error("archive", "the Pumps do not know it: their GC does not wait for it", "pumphouse archive init")
    for doubt, again in archive.doubts.items():
        yield _error("archive", doubt, again)
    if archive.end > status.now + (int(_AHEAD_S * 1000) << 18):
        what = f"it ends in the future, at {show(archive.end)}: the clock here, or of what gives out TSOs, is wrong"
        yield _error("archive", what, "date -u, here and on the host of the TSOs")
    for each in archive.held_by:
        yield _error(each.who, f"it holds the archive at {show(archive.end)}: {each.why}", each.hint)
    for name, how in archive.failed.items():
        again = "pumphouse snapshot" if name == "snapshot" else _DUMP
        yield _error("archive", f"the last {name} failed, {how}", again)
    yield from _written(archive)
    yield from _restorable(archive)
    for table, why in archive.without.items():
        what = f"its newest dump lacks {table}, by a rule of dump.without: {why}"
        yield _warning("archive", what, f"pumphouse archive dump --table {table}, without its rule")
    if archive.age_s is not None and archive.age_s > late_s:
        age = f"{archive.age_s / 3600:.1f} h" if archive.age_s >= 3600 else f"{archive.age_s / 60:.0f} min"
        yield _warning("archive", f"it ends {age} ago, at {show(archive.end)}", "pumphouse snapshot")


def _written(archive: ArchiveStatus) -> Iterator[Finding]:
    """What is written now, and may be in no window."""
    if archive.binlog_skipped:
        what = f"it skips binlogs (ignore-error), as it said at {show(archive.end or 0)}: what it writes is in no Pump"
        yield _error("TiDB", what, f"curl -X POST http://TIDB:10080/binlog/recover, of each TiDB; then {_DUMP}")
    for node_id in archive.unsynced:
        what = "it runs without fsync: what it answered may be lost with the power"
        yield _warning(f"Pump {node_id}", what, "pumphouse pump run, on its data directory, with pump.sync_log = true")


def _restorable(archive: ArchiveStatus) -> Iterator[Finding]:
    """What no restore can do."""
    if archive.restorable_from is None:
        yield _error("archive", NO_DUMP, _DUMP)
    elif archive.stops is None:
        what = "whether a DDL or a loss stops restores of the whole is not known: it was not read in time"
        yield _warning("archive", what, "pumphouse restore --to latest --dry-run")
    elif archive.stops:
        first, *more = archive.stops
        also = f"; behind that, {len(more)} more" if more else ""
        yield _error("archive", f"the whole is restorable only up to {show(first.at)}: {first.why}{also}", _DUMP)


def _copy(status: Status, settings: Settings) -> Iterator[Finding]:
    """The copy, where it is damaged, was never made, or is further behind than the setting."""
    copy, again = status.archive.copy, "pumphouse archive copy"
    if copy is None or status.archive.end is None:
        return
    if copy.problem:
        yield _error("copy", f"{copy.url}: {copy.problem}", again)
    elif copy.end is None:
        yield _warning("copy", f"there is none at {copy.url}, which archive.copy_root names", again)
    elif copy.behind_s is not None and copy.behind_s > settings.archive.copy_late_s:
        what = f"{copy.url} ends at {show(copy.end)}, {copy.windows} windows behind the archive"
        yield _warning("copy", what, again)


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
    elif pump.open_s is not None and pump.open_s > OPEN_S and pump.open_ts is not None:
        what = f"the prewrite {pump.open_ts} has had no outcome for {pump.open_s:.0f} s: it holds the archive there"
        yield _warning(who, what, look)


def _named(table: str) -> str:
    """What a resync is given of what a rule named: a pattern is no table."""
    return "DB.TABLE for each of its tables" if "*" in table else table


def _target(target: TargetStatus, late_s: float, *, begins: bool) -> Iterator[Finding]:
    loads, name = not only_restored(target.section), target.section.removeprefix("targets.")
    load = f"pumphouse load --target {name}" if loads and name != "target" else "pumphouse load"
    who = f"[{target.section}] {target.address}"
    again = load
    if _OF_DAG in target.last_run and not target.failed:
        # Its worker was killed: Airflow notices when the heartbeat stays away, and tries the run again.
        again = f"pumphouse status, some minutes later: Airflow goes on with {target.last_run} by itself"
    rules = "load.rules" if name == "target" or not loads else f"targets.{name}.rules"
    for table, why in target.parked.items():
        without = "" if why.endswith(RESYNC) else f", without its rule in {rules}"
        yield _warning(who, f"{table} is {why}", f"{load} --resync {_named(table)}{without}")
    for table, why in target.left_out.items():
        what = f"{table} is {why}; the rule is gone, and the table still stands as it was then"
        yield _warning(who, what, f"{load} --resync {_named(table)}")
    if target.problem:
        then = f"pumphouse status, when it is back, or address, user and password of [{target.section}] are right"
        yield (_error if loads else _warning)(who, target.problem, then)
    elif target.held_by and target.state != TargetState.READY:
        pass  # somebody is at work on it
    elif loads and target.state == TargetState.INCOMPLETE and target.reason == BEGINNING:
        yield _error(who, f"{target.task} is {target.state}: {target.reason}", again)
    elif target.state and target.state != TargetState.READY:
        into = f"--into {name} " if loads else ""
        yield _error(
            who,
            f"{target.task} is {target.state}: {target.reason}",
            f"pumphouse restore {into}--to TIME, the same as before",
        )
    elif loads and target.at is None:
        yield from _unloaded(who, target, load, begins=begins)
    elif loads and (target.failed or target.stopped_before is not None):
        what = f"the last load failed, {target.failed}"
        if target.stopped_before is not None:
            failed = f"; {what}" if target.failed else ""
            at = show(target.at or 0)
            what = f"a load to {show(target.stopped_before)} has stopped: {target.task} is at {at}{failed}"
        yield (_error if target.failed else _warning)(who, what, again)
    elif loads and target.lag_s is not None and target.lag_s > late_s and target.at is not None:
        yield _warning(who, f"{target.task} is {target.lag_s / 3600:.1f} h behind, at {show(target.at)}", load)


def _unloaded(who: str, target: TargetStatus, load: str, *, begins: bool) -> Iterator[Finding]:
    if target.tables:
        there = f"and has {target.tables} tables: a first load takes no database that has some"
        equal = f"if it equals the source, {load} --equal-at TIME takes it as it is"
        yield _warning(who, f"it was never loaded, {there}; {equal}", load)
    elif not begins:
        yield _warning(who, "it was never loaded", load)


def _consumers(status: Status, own: str) -> Iterator[Finding]:
    for name, why in status.unread:
        if name:
            gone = "pumphouse archive init" if name == own else f"pumphouse consumer unregister {name}"
            yield _error(f"consumer {name}", why, gone)
        else:
            yield _error("captures", why, "pumphouse capture status")
    for each in status.consumers:
        if each.stale and each.node_id != own:
            what = f"has written no checkpoint for {each.age_s / 3600:.1f} h and holds the Pumps' GC at "
            yield _warning(f"consumer {each.node_id}", what + show(each.checkpoint), "pumphouse drainers")
