"""One look at everything: each part is asked in a thread of its own, and who does not answer in time is named."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import Any, NoReturn, TypeVar

import grpc

from pumphouse.archive import consumer, layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.copied import behind
from pumphouse.archive.coverage import is_done, judge_all
from pumphouse.archive.declare import declarations
from pumphouse.archive.drills import last_drill
from pumphouse.archive.failed import read_failed
from pumphouse.archive.manifest import Declaration, Manifest, PumpEntry
from pumphouse.archive.proofs import Outcome, Proof, red_proofs
from pumphouse.archive.restorable import restorable_from
from pumphouse.archive.verified import read_verified
from pumphouse.archive.window import Action
from pumphouse.client import admin
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import (
    BadManifest,
    BinlogError,
    ConfigError,
    CorruptionError,
    HistoryUnavailable,
    SchemaError,
    StoreUnavailable,
    TargetUnavailable,
)
from pumphouse.loader import fence, state
from pumphouse.loader.failed import read_failed as read_failed_load
from pumphouse.loader.plan import Mode
from pumphouse.loader.rules import Rules, read_left_out
from pumphouse.loader.target import TargetConnection, address, has_checkpoints
from pumphouse.model.node import NodeKind, NodeStatus
from pumphouse.model.tso import MAX_TSO, Tso, compose, physical_ms, show
from pumphouse.parts import Parts
from pumphouse.proto.pumphouse_pb2 import StatusRequest, StatusResponse
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.registry.base import CaptureRecord, CaptureState, Cluster
from pumphouse.registry.captures import is_live
from pumphouse.rpc.channel import open_channel
from pumphouse.rpc.shown import without_secrets
from pumphouse.runs.copy import copy_at
from pumphouse.schema.actions import SYSTEM_SCHEMAS
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.history import MysqlTableSource
from pumphouse.settings import ArchiveSettings, LoadRule, Settings, TargetSettings, TlsSettings
from pumphouse.status.findings import findings, late_s
from pumphouse.status.report import (
    ArchiveStatus,
    CaptureStatus,
    ConsumerStatus,
    CopyStatus,
    DrillStatus,
    HeldBy,
    PumpState,
    RedProof,
    Status,
    TargetStatus,
    only_restored,
)
from pumphouse.status.stops import stops_of

# So many windows say how far apart snapshots are; and so many names one request of an object store has.
_NEWEST = 3
_LISTED = 1000
# All answers together: a look takes less than two seconds, with the start of a Python process before it.
WITHIN_S = 1.2
_ONE_S = 0.9
# A cluster that has not answered by then: the archive is looked at without it.
_ALONE_S = 0.5
_VERIFY = "pumphouse archive verify"

# Looks of this process that wait for a store or a registry which does not answer; another one does not ask them.
# Each archive of each cluster has its own: one that hangs blinds nobody to the others.
_HANGING: defaultdict[tuple[str, str], threading.Semaphore] = defaultdict(partial(threading.BoundedSemaphore, 8))

T = TypeVar("T")


def look(
    settings: Settings,
    targets: Mapping[str, TargetSettings] | None = None,
    *,
    within_s: float = WITHIN_S,
    clock: Clock = SYSTEM_CLOCK,
) -> Status:
    """Ask everything that the settings name.

    Args:
        settings: all of them.
        targets: section or connection -> server; None = the sections that name a server.
        within_s: who has not answered by then is reported as not answering. Nothing is waited for longer.
        clock: measures ages.
    """
    limit = clock.monotonic() + within_s
    if targets is None:
        targets = settings.target_sections
    now = compose(int(clock.now() * 1000))
    parts = Parts(settings)
    hanging = _HANGING[settings.cluster.url, settings.archive.root]
    asks = hanging.acquire(blocking=False)

    def left() -> float:
        return max(0.0, limit - clock.monotonic())

    rules = {name: getattr(each, "rules", settings.load.rules) for name, each in targets.items()}
    asked = {name: Asked(partial(_target, name, each, rules[name], now)) for name, each in targets.items()}
    asked_registry = Asked(partial(_registry, parts) if asks else _nobody)
    alone = Asked(partial(_alone, asked_registry, settings.archive, now) if asks else _nobody)
    registry = asked_registry.answer(left())
    known = registry if isinstance(registry, _Registry) else None
    archive = Asked(lambda: _archive(parts.archive, parts.cluster, now)) if known else alone
    nodes = known.pumps if known else []
    pumps = [
        (node, Asked(partial(_ask, node, known.cluster_id if known else 0, settings.tls)))
        for node in nodes
        if not node.left
    ]
    copied = Asked(partial(_copy, parts, settings)) if known and settings.archive.copy_root else None
    stops = Asked(lambda: stops_of(parts.archive, settings.load.rules)) if known else None
    found = archive.answer(left())
    if not isinstance(found, ArchiveStatus):
        problem = _why(found if known else registry)
        found = ArchiveStatus(url=without_secrets(settings.archive.root), problem=problem)
    if found.begin is None and known:
        found = replace(found, next=Asked(partial(_before_init, parts, nodes)).answer(left()) or "")
    if found.end is not None:
        answer = stops and stops.answer(left())
        found = replace(found, stops=answer if isinstance(answer, tuple) else None)
    if copied is not None:
        answer = copied.answer(left())
        found = replace(
            found,
            copy=answer
            if isinstance(answer, CopyStatus)
            else CopyStatus(url=without_secrets(settings.archive.copy_root), problem=_why(answer)),
        )
    if asks:
        behind_it = (parts, hanging, asked_registry, alone, archive, copied, stops)
        threading.Thread(target=_close_behind, args=behind_it, daemon=True).start()
    stale_s = settings.archive.consumer_stale_s
    status = Status(
        cluster=without_secrets(settings.cluster.url),
        now=now,
        archive=replace(found, late_s=late_s(found.interval_s)),
        pumps=tuple(_pump(node, each.answer(left()), now, clock) for node, each in pumps),
        targets=tuple(row for name, each in asked.items() for row in _rows(name, targets[name], each.answer(left()))),
        consumers=tuple(_consumer(node, stale_s, clock) for node in (known.consumers if known else [])),
        captures=tuple(capture_status(each, clock.now()) for each in (known.captures if known else [])),
        unread=known.unread if known else (),
    )
    why = "" if known else _why(registry)
    return replace(status, findings=findings(status, why, settings))


class Asked:
    """A question in a thread of its own, which nobody waits for at the end of the process."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._answer: Any = None
        self._done = threading.Event()
        threading.Thread(target=self._run, name="status", daemon=True).start()

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except Exception as error:  # noqa: BLE001 - it is the answer
            self._answer = error
        self._done.set()

    @property
    def done(self) -> bool:
        """Whether the answer is there."""
        return self._done.is_set()

    def answer(self, timeout_s: float | None) -> Any:
        """What came, also an error; None when nothing did."""
        return self._answer if self._done.wait(timeout_s) else None


def _close_behind(parts: Parts, hanging: threading.Semaphore, *asked: Asked | None) -> None:
    """Close what they ask with, when the last of them has its answer: who looks again and again leaves nothing open."""
    for each in asked:
        if each is not None:
            each.answer(None)
    parts.close()
    hanging.release()


def _nobody() -> NoReturn:
    raise StoreUnavailable("earlier looks still wait for an answer of archive or cluster: it is not asked again")


def _why(answer: Any) -> str:
    if answer is None:
        return "it does not answer in time"
    return str(answer.message if isinstance(answer, BinlogError) else answer)


# -- the parts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registry:
    """What a cluster knows; ``unread`` as in `Status`."""

    cluster_id: int
    pumps: list[NodeStatus]
    consumers: list[NodeStatus]
    captures: list[CaptureRecord]
    unread: tuple[tuple[str, str], ...]


def _registry(parts: Parts) -> _Registry:
    cluster: Cluster = parts.cluster
    unread = []
    try:
        consumers = cluster.nodes(NodeKind.DRAINER)
    except CorruptionError as error:
        consumers = cluster.readable_nodes(NodeKind.DRAINER)
        unread.append((str(error.facts["node_id"]), str(error)))
    try:
        captures = cluster.captures()
    except CorruptionError as error:
        captures = cluster.readable_captures()
        unread.append(("", str(error)))
    return _Registry(
        cluster_id=cluster.cluster_id(),
        pumps=cluster.readable_nodes(NodeKind.PUMP),
        consumers=consumers,
        captures=captures,
        unread=tuple(unread),
    )


def capture_status(record: CaptureRecord, now: float) -> CaptureStatus:
    """A capture as it is shown: one that says it runs, and has not said so for a while, is silent."""
    live = is_live(record, now)
    silent = record.state is CaptureState.RUNNING and not live
    return CaptureStatus(
        capture_id=record.capture_id,
        source=record.source,
        host=record.host,
        state="silent" if silent else "paused" if live and record.paused else record.state.value,
        silent_s=max(0.0, now - record.heartbeat),
        gtid=record.gtid,
        lag_s=record.lag_s,
        transactions=record.transactions,
        semi_sync=record.semi_sync,
        reason=record.reason,
    )


def _alone(registry: Asked, settings: ArchiveSettings, now: Tso) -> ArchiveStatus | None:
    """What the archive says by itself, where the cluster has not answered after a while; it cannot be waited for."""
    if isinstance(registry.answer(_ALONE_S), _Registry):
        return None
    return _archive(Archive.alone(settings), None, now)


def _archive(archive: Archive, cluster: Cluster | None, now: Tso) -> ArchiveStatus:
    try:
        genesis = archive.genesis()
    except ConfigError as error:
        return ArchiveStatus(url=archive.url, problem=error.message)
    last, begin, kept = archive.last(), restorable_from(archive), archive.range()
    verified, doubts = _doubts(archive, cluster)
    end, known = (genesis.ts, genesis.pumps) if last is None else (last.end, last.pumps)
    declared = declarations(archive)
    return ArchiveStatus(
        url=archive.url,
        begin=kept.start,
        expired=kept.told(),
        marks={show(each.ts): each.reason for each in kept.marks},
        end=end,
        restorable_from=begin,
        restorable_to=None if begin is None else end,
        age_s=_behind(end, now),
        verified_to=verified,
        doubts=doubts,
        checkpoint=_checkpoint(archive, cluster),
        held_by=() if cluster is None else _held_by(cluster, known, declared, end),
        declared_lost=len(declared),
        interval_s=None if last is None else _interval_s(archive, kept.start, last, now),
        failed=_failed(archive, last),
        without={each.name: each.why for base in archive.bases(MAX_TSO)[-1:] for each in base.without},
        drill=_drill(archive, now),
        red=tuple(_red(each) for each in red_proofs(archive)),
        binlog_skipped=None if last is None else last.binlog_skipped,
        unsynced=tuple(each.node_id for each in known if not (each.sync_log or is_done(each))),
    )


def _checkpoint(archive: Archive, cluster: Cluster | None) -> Tso | None:
    try:
        return None if cluster is None else consumer.checkpoint(cluster, archive.archive_id)
    except CorruptionError:
        return None  # it is among the consumers


def _interval_s(archive: Archive, begin: Tso, last: Manifest, now: Tso) -> float:
    """The longest of the newest windows: one that is added by hand, between two of the schedule, is short.

    Older ones are looked at as far before the end as that is before now: what lies there decides whether it is late,
    and one request names it. Where that are more than a few windows, the newest one tells enough.
    """
    since = Tso(max(begin, 2 * last.end - now))
    listed = archive.store.list(layout.WINDOWS, after=layout.before_window(since))
    starts = [layout.window_start(each.key) for each in islice(listed, _LISTED)]
    bounds = [since, *starts, last.end][-1 - _NEWEST :] if len(starts) < _LISTED else ()
    windows = ((last.start, last.end), *pairwise(bounds))
    return max(physical_ms(end) - physical_ms(start) for start, end in windows) / 1000


def _copy(parts: Parts, settings: Settings) -> CopyStatus:
    archive = parts.archive
    copy, end = copy_at(settings, settings.archive.copy_root, archive), archive.end()
    reached, windows = behind(archive, copy, end=end)
    late_s = None if reached is None else max(0.0, (physical_ms(end) - physical_ms(reached)) / 1000)
    return CopyStatus(url=copy.url, end=reached, behind_s=late_s, windows=windows)


def _red(proof: Proof) -> RedProof:
    names = (*(each.name for each in proof.of(Outcome.DIFFERENT)), *proof.unexpected)
    return RedProof(target=proof.target, task=proof.task, at=proof.at, tables=names)


def _drill(archive: Archive, now: Tso) -> DrillStatus | None:
    last = last_drill(archive)
    if last is None or last.ended_ms is None:
        return None
    return DrillStatus(
        verdict=last.verdict,
        green=last.green,
        at=last.at,
        into=last.into,
        age_s=max(0.0, (physical_ms(now) - last.ended_ms) / 1000),
        why=last.why,
        again=last.again,
    )


def _before_init(parts: Parts, pumps: Sequence[NodeStatus]) -> str:
    """What has to be typed before `archive init` ('' = nothing): a Pump first, then the schema where nobody logs it."""
    if all(node.left for node in pumps):
        return "pumphouse pump run --data-dir DIR --addr HOST:PORT"
    history = parts.history
    if isinstance(history, MysqlTableSource):
        captured = "capture" in parts.settings.model_fields_set
        makes = "pumphouse capture run" if captured else "pumphouse schema import"
        try:
            return "" if next(history.jobs(), None) is not None else makes
        except HistoryUnavailable:
            return ""
        except SchemaError:  # there is no such table
            return makes
    return ""


def _failed(archive: Archive, last: Manifest | None) -> dict[str, str]:
    """Failures that are younger than what ended well: a window's fence is taken before it is read, a dump ends last."""
    found = {}
    for each in read_failed(archive):
        since = Tso(0) if last is None else last.fence
        if each.what == "dump":
            since = max((base.ts for base in archive.bases(MAX_TSO)), default=Tso(0))
        if each.at_ms > physical_ms(since):
            found[each.what] = f"{show(compose(each.at_ms))}: {each.message}{f' ({each.hint})' if each.hint else ''}"
    return found


def _doubts(archive: Archive, cluster: Cluster | None) -> tuple[Tso | None, dict[str, str]]:
    """Up to where the archive was verified, as far as that is known, and why it cannot be relied on as it is."""
    noted, doubts = None, dict.fromkeys(archive.store.losing(), _VERIFY)
    try:
        if cluster is not None:
            consumer.require(archive, cluster)
    except CorruptionError as error:
        if "node_id" not in error.facts:  # else it is among the consumers, of which nothing can be read
            doubts[str(error)] = "pumphouse archive init"
    except BinlogError as error:
        doubts[error.message] = "pumphouse archive ls"
    try:
        noted = read_verified(archive)
    except BadManifest as error:
        doubts[str(error)] = _VERIFY
    return None if noted is None else noted.end, doubts


def _held_by(
    cluster: Cluster, known: Sequence[PumpEntry], declared: Sequence[Declaration], end: Tso
) -> tuple[HeldBy, ...]:
    """As the next snapshot judges; it asks the registry for every node, and takes none that it cannot read."""
    try:
        verdicts = judge_all(cluster.nodes(NodeKind.PUMP), known, declared, end)
    except BinlogError as error:
        return (HeldBy(who="cluster", why=error.message, hint=error.hint),)
    return tuple(
        HeldBy(who=f"Pump {each.node_id}", why=each.why, hint=each.hint)
        for each in verdicts
        if each.action is Action.HELD
    )


def _behind(ts: int, now: Tso) -> float | None:
    """Seconds; None of 0: nothing is known yet."""
    return None if not ts else max(0.0, (physical_ms(now) - physical_ms(ts)) / 1000)


def _ask(node: NodeStatus, cluster_id: int, tls: TlsSettings) -> StatusResponse | None:
    """The Pump's own word; None of a Go Pump, which has none."""
    if node.extra is None:
        return None
    with open_channel(node.host, tls) as channel:
        answer: StatusResponse = PumpBatchStub(channel).Status(StatusRequest(cluster_id=cluster_id), timeout=_ONE_S)
        return answer


def _pump(node: NodeStatus, answer: Any, now: Tso, clock: Clock) -> PumpState:
    known = PumpState(
        node_id=node.node_id,
        address=node.host,
        state=str(node.state),
        silent_s=admin.age_s(node, clock),
        silent=admin.is_silent(node, clock),
        answers=isinstance(answer, StatusResponse),
        watermark=node.max_commit_ts,
        lag_s=_behind(node.max_commit_ts, now),
    )
    if not isinstance(answer, StatusResponse):
        if node.extra is None:
            return known
        code = answer.code().name if isinstance(answer, grpc.RpcError) and isinstance(answer, grpc.Call) else ""
        return replace(known, problem=f"it does not answer{f' ({code})' if code else ''}")
    return replace(
        known,
        state=answer.state or known.state,
        watermark=Tso(answer.watermark),
        lag_s=_behind(answer.watermark, now),
        available_bytes=answer.available_bytes,
        value_log_bytes=answer.value_log_bytes,
        read_only=answer.read_only,
        writer_failed=answer.writer_failed,
        unresolved=answer.unresolved,
        in_clear=tuple(answer.in_clear),
        open_s=answer.oldest_unresolved[0].age_ms / 1000 if answer.oldest_unresolved else None,
        open_ts=Tso(answer.oldest_unresolved[0].start_ts) if answer.oldest_unresolved else None,
    )


def _target(section: str, settings: TargetSettings, rules: Sequence[LoadRule], now: Tso) -> list[TargetStatus]:
    where = address(settings)
    with TargetConnection.open(settings, timeout_s=_ONE_S) as connection:
        if not has_checkpoints(connection):
            return [TargetStatus(section=section, address=where, tables=_tables(connection))]
        last_run = str(connection.value(f"SELECT run FROM {connection.table('fence')} WHERE id = 1") or "")  # noqa: S608
        held_by, known, said = fence.owned_by(connection), state.read_all(connection), Rules.of(rules, Tso(0)).tables
        out_of = {each.task: read_left_out(connection, each.task) for each in known}
        found = [
            TargetStatus(
                section=section,
                address=where,
                task=each.task,
                at=each.ts,
                lag_s=None if only_restored(section) else _behind(each.ts, now),
                state=str(each.state),
                reason=each.reason,
                held_by=held_by,
                parked={n: str(out) for n, out in out_of[each.task].items() if out.parked},
                left_out={n: str(out) for n, out in out_of[each.task].items() if not out.parked and n not in said},
                failed="" if held_by else read_failed_load(connection, each.task),
                stopped_before=None if held_by else _stopped_before(connection, each.task),
                last_run=last_run,
            )
            for each in known
        ]
        if found:
            return found
        return [TargetStatus(section=section, address=where, held_by=held_by, tables=_tables(connection))]


def _tables(connection: TargetConnection) -> int:
    """How many tables there are beside the server's own and ours."""
    own = (*SYSTEM_SCHEMAS, connection.settings.schema_name.lower())
    sql = "SELECT COUNT(*) FROM information_schema.tables WHERE LOWER(table_schema) NOT IN %s"
    return int(connection.value(sql, (own,)) or 0)


def _stopped_before(connection: TargetConnection, task: str) -> Tso | None:
    """End of a load's plan that is open; not of a resync's or a repeat's, which a load does not go on with."""
    if connection.dialect is Dialect.TIDB:
        return None  # who owns it is known of the server alone that was asked
    to_ts = connection.value(
        f"SELECT MAX(to_ts) FROM {connection.table('plan')} WHERE task = %s AND state = 'open'"  # noqa: S608
        " AND mode <> %s AND spec NOT LIKE %s",
        (task, str(Mode.REPEAT), '%"only":%'),
    )
    return None if to_ts is None else Tso(int(to_ts))


def _rows(section: str, settings: TargetSettings, answer: Any) -> list[TargetStatus]:
    if isinstance(answer, list):
        return answer
    why = str(answer.__cause__ or answer) if isinstance(answer, TargetUnavailable) else _why(answer)
    return [TargetStatus(section=section, address=address(settings), problem=why)]


def _consumer(node: NodeStatus, stale_s: float, clock: Clock) -> ConsumerStatus:
    age = admin.age_s(node, clock)
    return ConsumerStatus(
        node_id=node.node_id,
        state=str(node.state),
        checkpoint=node.max_commit_ts,
        age_s=age,
        stale=not node.left and age > stale_s,
        holds_gc=not node.left,
        reader=not node.host,
    )
