"""One Pump's part of one window: its stream from the window's start to above its end, into segments of its own.

Nothing that is written here is visible before a manifest names it, so a killed task leaves only orphans.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.content import content_digest, parse_binlog
from pumphouse.archive.coverage import (
    GONE,
    may_be_gone,
    registry_digest,
    same_incarnation,
    same_start,
    still_drained,
)
from pumphouse.archive.declare import settled_of
from pumphouse.archive.duplicates import digest_of
from pumphouse.archive.holders import holder
from pumphouse.archive.manifest import AcceptedCommit, Declaration, LastBinlog, PumpEntry, SegmentEntry
from pumphouse.archive.puller import LATE, ORPHAN, Frame, Puller, kept_out, open_puller
from pumphouse.archive.segment import SegmentWriter
from pumphouse.archive.window import (
    Action,
    PendingCommit,
    PlannedPump,
    ProgressSink,
    PullProgress,
    PullReport,
    WindowPlan,
    silent,
)
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import PositionCollected, PumpUnavailable, WindowHeld
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import Tso, show
from pumphouse.proto.pumphouse_pb2 import StatusResponse
from pumphouse.registry.base import Cluster
from pumphouse.rpc.operator import proof
from pumphouse.settings import Settings

_FIRST_BINLOG_S = 15.0
_MAX_SAMPLES = 32


def pull_node(
    archive: Archive,
    cluster: Cluster,
    plan: WindowPlan,
    node_id: str,
    settings: Settings,
    progress: ProgressSink = silent,
    *,
    patience_s: float | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> PullReport:
    """Pull one Pump of a plan.

    Waits up to ``archive.pull_timeout_s`` while the Pump is away or a prewrite holds it, then reports how far it came,
    or raises WindowHeld where that is nowhere. PositionCollected when the Pump has collected what is needed.
    ``patience_s``: no longer than this without a step forward, for who comes again later; not for a Pump that was
    declared lost, which is given up at the end of the wait.
    """
    pump = plan.pump(node_id)
    if pump.action is not Action.PULL:
        return _unpulled(cluster, plan, pump)
    return _PumpPull(archive, cluster, plan, pump, settings, progress, patience_s, clock).run()


def _way_out(blocked_by: Tso) -> str:
    if blocked_by:
        return f"start the writer's resolver; last way out: pumphouse pump settle {blocked_by} --rolled-back --reason …"
    return "start that Pump if it is down, else try again; docs/operations.md, 'When a window is held'"


def _unpulled(cluster: Cluster, plan: WindowPlan, pump: PlannedPump) -> PullReport:
    """A Pump from which nothing can come: drained, or given up."""
    status = cluster.node(NodeKind.PUMP, pump.node_id)
    seen_offline = status is not None and status.extra is None and status.left
    return PullReport(
        node_id=pump.node_id,
        action=pump.action,
        reached=plan.end,
        incarnation=pump.incarnation,
        start_count=pump.start_count,
        state=pump.state,
        registry=pump.registry or (registry_digest(status) if status is not None and seen_offline else ""),
        batch=status is None or status.extra is not None,
        last=pump.last,
        declared=pump.declared if pump.action is Action.LOST else None,
        replaced=pump.replaced,
    )


class _PumpPull:
    """The state of one pull."""

    def __init__(
        self,
        archive: Archive,
        cluster: Cluster,
        plan: WindowPlan,
        pump: PlannedPump,
        settings: Settings,
        progress: ProgressSink,
        patience_s: float | None,
        clock: Clock,
    ) -> None:
        self._archive = archive
        self._cluster = cluster
        self._plan = plan
        self._pump = pump
        self._settings = settings
        self._progress = progress
        self._clock = clock
        self._genesis = archive.genesis().ts
        self._deadline = clock.monotonic() + settings.archive.pull_timeout_s
        # Where a loss is declared, who is not there in time is given up: then the whole time is given.
        self._patience_s = patience_s if pump.declared is None else None
        self._begin()

    def _begin(self) -> None:
        """Everything that one pull gathers."""
        self._position = self._plan.start
        self._moved = self._clock.monotonic()
        self._rows = 0
        self._bytes = 0
        self._tail_from = Tso(0)
        self._pending: dict[tuple[int, int], PendingCommit] = {}
        self._samples: list[LastBinlog] = []
        self._seen: Frame | None = None
        self._waiting_for = ""
        self._hole_used = False

    def run(self) -> PullReport:
        """Pull, and where the Pump is closing, find out whether it is drained."""
        try:
            try:
                return self._pull()
            except _MissedError:
                # A stream does not go back for what comes below its position: only another one brings it.
                self._deadline = self._clock.monotonic() + self._settings.archive.pull_timeout_s
                self._begin()
                return self._pull()
        except _MissedError as missed:
            commit = missed.commit
            self._waiting_for = (
                f"its {commit.kind} commit {show(commit.commit_ts)} of the transaction that began at "
                f"{show(commit.start_ts)} came while it was pulled"
            )
            raise WindowHeld(
                f"Pump {self._pump.node_id} holds the window after {show(self._plan.start)}: {self._waiting_for}",
                hint="run the snapshot again: it brings it",
                holders=[self._holder(commit)],
                node_id=self._pump.node_id,
            ) from None
        except _DrainedError:
            # It went offline, as it may once it is drained: nothing of it lies in this window.
            gone = replace(self._pump, action=Action.DRAINED, declared=None)
            return replace(_unpulled(self._cluster, self._plan, gone), state=self._state_now())
        except _TimeUpError:
            raise WindowHeld(
                f"Pump {self._pump.node_id} holds the window after {show(self._plan.start)}: {self._waiting_for}",
                hint=_way_out(self._blocked_by()),
                holders=[self._holder()],
                node_id=self._pump.node_id,
            ) from None

    def _pull(self) -> PullReport:
        status = self._registered()
        batch = status.extra is not None and status.extra.batch
        attempt = layout.attempt_id()
        plan, pump = self._plan, self._pump
        with SegmentWriter(
            self._archive.store,
            lambda number: layout.segment_key(plan.start, plan.end, pump.node_id, attempt, number),
            pump.node_id,
            part_bytes=self._settings.archive.part_bytes,
            raw=True,
        ) as writer:
            lost = not self._fetch(writer)
            segments = () if lost else tuple(writer.finish())
        for (start_ts, commit_ts), why in writer.unreadable.items():
            self._pending[start_ts, commit_ts] = PendingCommit(
                kind=AcceptedCommit.UNREADABLE, start_ts=Tso(start_ts), commit_ts=Tso(commit_ts), digest="", why=why
            )
        if lost:
            return _unpulled(self._cluster, plan, replace(pump, action=Action.LOST))
        self._moved = self._clock.monotonic()
        reached = Tso(min(self._position, plan.end))
        drained_to = self._drain(reached) if status.state is NodeState.CLOSING else Tso(0)
        below = self._pending_below(reached, segments)
        seen = self._seen
        if seen is None:
            raise _TimeUpError
        return PullReport(
            node_id=pump.node_id,
            action=Action.PULL,
            reached=reached,
            incarnation=seen.incarnation,
            start_count=seen.start_count,
            state=str(status.state),
            sync_log=seen.sync_log,
            batch=batch,
            segments=segments,
            drained_to=drained_to,
            tail_from=self._tail_from,
            last=None if self._hole_used else pump.last,
            seen=tuple(self._samples),
            pending=(*self._pending.values(), *below),
            declared=pump.declared if self._hole_used else None,
            replaced=pump.replaced,
        )

    # -- the window ---------------------------------------------------------------------------------------------

    def _fetch(self, writer: SegmentWriter) -> bool:
        """Pull to above the window's end or to the byte budget. False: the Pump is away and was declared lost."""
        budget = self._settings.archive.task_budget_bytes
        self._prove_go_pump()
        try:
            for frame in self._stream(self._plan.end):
                self._take(frame, writer)
                if self._bytes >= budget:
                    break
        except _TimeUpError:
            if self._position > self._plan.start:
                return True  # what came is complete up to there: a shorter window
            if self._hole() is not None:
                self._hole_used = True
                return False
            raise
        return True

    def _hole(self) -> Declaration | None:
        """The declared loss that covers the whole of this window, where there is one."""
        declared = self._pump.declared
        return declared if declared is not None and self._plan.end <= declared.to_ts else None

    def _take(self, frame: Frame, writer: SegmentWriter | None = None, *, reached: Tso | None = None) -> None:
        """Write the real binlogs of the window; note what lies above it and what is late or orphan.

        With ``reached`` the window is full up to there already: everything real is above it.
        """
        further = frame.complete_to > self._position
        self._position = Tso(max(self._position, frame.complete_to))
        batch = frame.batch
        if batch is not None and batch.num_rows:
            commit_ts = batch.column("commit_ts").to_numpy()
            if frame.last is not None and reached is None:
                self._sample(batch, commit_ts)
            start_ts = batch.column("start_ts").to_numpy()
            flag = batch.column("flag").to_numpy()
            real = commit_ts != start_ts
            inside = real & (commit_ts <= (self._plan.end if reached is None else reached))
            above = commit_ts[real & ~inside]
            if above.size and not self._tail_from:
                self._tail_from = Tso(int(above[0]))
            for row in np.flatnonzero(inside & (flag != 0)):
                self._note(batch, int(row), int(flag[row]))
            keep = inside & (flag != ORPHAN)
            if writer is not None and keep.any():
                wanted = batch if keep.all() else batch.filter(pa.array(keep))
                writer.add(_with_queries(wanted))
                self._rows += wanted.num_rows
                self._bytes += wanted.column("payload").nbytes
        if further:  # the writing is no part of the next wait
            self._moved = self._clock.monotonic()
        self._show()

    def _sample(self, batch: pa.RecordBatch, commit_ts: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Keep what can prove a Go Pump's continuity, wherever in its stream the window will end."""
        inside = int(np.count_nonzero(commit_ts <= self._plan.end))
        for row in sorted({0, inside - 1}) if inside else ():
            sha256 = hashlib.sha256(batch.column("payload")[row].as_buffer()).hexdigest()
            self._samples.append(LastBinlog(commit_ts=Tso(int(commit_ts[row])), sha256=sha256))
        if len(self._samples) > _MAX_SAMPLES:
            self._samples = [*self._samples[:-1:2], self._samples[-1]]

    def _note(self, batch: pa.RecordBatch, row: int, flag: int) -> None:
        start_ts, commit_ts = batch.column("start_ts")[row].as_py(), batch.column("commit_ts")[row].as_py()
        late = flag == LATE
        self._pending[start_ts, commit_ts] = PendingCommit(
            kind=AcceptedCommit.LATE if late else AcceptedCommit.ORPHAN,
            start_ts=Tso(start_ts),
            commit_ts=Tso(commit_ts),
            digest=content_digest(batch.column("payload")[row].as_py()) if late else "",
        )

    def _pending_below(self, reached: Tso, segments: Sequence[SegmentEntry]) -> list[PendingCommit]:
        """Late and orphan commits that are in no frame of this pull: they came when the stream had passed them.

        Read when the last frame is there. Those at or below genesis are no part of the archive.
        """
        while True:
            puller = self._open_puller()
            try:
                status = puller.status()
                found = [] if status is None else [*self._passed(puller, status)]
            except PumpUnavailable as error:
                self._away(str(error))
                continue
            finally:
                puller.close()
            if status is not None:
                found.extend(self._missed(status, reached, segments))
            return found

    def _passed(self, puller: Puller, status: StatusResponse) -> Iterator[PendingCommit]:
        """Those that the archive has passed, in (genesis, start].

        The Pump's word that one is accepted may come from anybody, or from another archive: it counts only where this
        archive has listed it in a manifest.
        """
        node_id, start = self._pump.node_id, self._plan.start
        commits = [(kind, each) for kind, each in kept_out(status) if self._genesis < each.commit_ts <= start]
        settled = settled_of(self._archive, node_id) if any(each.accepted for _, each in commits) else frozenset()
        for kind, each in commits:
            start_ts, commit_ts = Tso(each.start_ts), Tso(each.commit_ts)
            if each.accepted and layout.settled_key(node_id, start_ts, commit_ts) in settled:
                continue
            digest = ""
            if kind == AcceptedCommit.LATE:
                # Below the Pump's GC point nothing can be compared: then it is accepted by name or not at all.
                with suppress(PositionCollected):
                    found = puller.first_after(Tso(commit_ts - 1), _FIRST_BINLOG_S)
                    digest = content_digest(found[1]) if found and found[0] == commit_ts else ""
            yield PendingCommit(kind=kind, start_ts=start_ts, commit_ts=commit_ts, digest=digest)

    def _missed(
        self, status: StatusResponse, reached: Tso, segments: Sequence[SegmentEntry]
    ) -> Iterator[PendingCommit]:
        """Those above the window's start; _MissedError where there is a payload to bring."""
        for kind, each in kept_out(status):
            key = (int(each.start_ts), int(each.commit_ts))
            if each.commit_ts <= self._plan.start or key in self._pending:
                continue
            if each.commit_ts > reached:
                # The next window brings it.
                if each.commit_ts <= self._position and not each.accepted and not self._tail_from:
                    self._tail_from = Tso(each.commit_ts)
                continue
            commit = PendingCommit(kind=kind, start_ts=Tso(key[0]), commit_ts=Tso(key[1]), digest="")
            if kind == AcceptedCommit.ORPHAN:
                yield commit
            # One that was accepted comes like any other, if it came in time.
            elif not each.accepted or not digest_of(self._archive.store, segments, *map(Tso, key)):
                raise _MissedError(commit)

    # -- a closing Pump -----------------------------------------------------------------------------------------

    def _drain(self, reached: Tso) -> Tso:
        """Pull past two fresh timestamps; returns the second, 0 where the Pump has more than this window takes.

        The state was read before F2 is taken: every prewrite that this Pump took is older than F2, so past F2 each
        has its outcome, and past F3 each outcome is in the stream.

        The Pump goes offline as soon as the checkpoint has passed its last position. So no window is published that
        may reach it without the proof: WindowHeld. It does not where something real, or a prewrite without an outcome,
        lies above: the last position comes after those.
        """
        self._moved = self._clock.monotonic()
        self._deadline = self._moved + self._settings.archive.pull_timeout_s
        first = self._seen
        fence = Tso(0)
        try:
            for _turn in range(2):
                fence = self._cluster.tso()
                for frame in self._stream(fence):
                    self._take(frame, reached=reached)
                    if self._tail_from:
                        return Tso(0)
        except _TimeUpError:
            if self._seen is not None and self._seen.blocked_by:
                return Tso(0)
            if still_drained(self._seen, self._before) and not self._rows:
                return Tso(0)
            self._waiting_for = f"it is closing and has not shown that it is drained: {self._waiting_for}"
            raise
        if first is None or self._seen is None or not same_start(first, self._seen):
            self._waiting_for = "it was started again while it was asked whether it is drained"
            raise _TimeUpError
        return fence

    @cached_property
    def _before(self) -> PumpEntry | None:
        """What the last manifest, or genesis, says of the Pump."""
        pumps = (self._archive.last() or self._archive.genesis()).pumps
        return next((each for each in pumps if each.node_id == self._pump.node_id), None)

    # -- the stream ---------------------------------------------------------------------------------------------

    def _stream(self, to: Tso) -> Iterator[Frame]:
        """Frames until the position is above ``to``; connects again while there is time, then _TimeUpError."""
        while self._position <= to:
            puller: Puller | None = None
            try:
                puller = self._open_puller()
                for frame in puller.frames(self._position):
                    self._check_identity(frame)
                    self._waiting_for = _why(frame, to)
                    yield frame
                    if self._position > to:
                        return
                    self._check_time()
            except PumpUnavailable as error:
                self._away(str(error))
            except PositionCollected as error:
                if self._hole() is None or error.gc_point is None:
                    error.advice = ()
                    error.add_hint(
                        "the Pump's GC went past the archive; what is missing can only be given up: "
                        f"`pumphouse archive declare-lost {self._pump.node_id} --reason …`"
                    )
                    raise
                self._hole_used = True
                self._position = Tso(max(self._position, int(error.gc_point)))
                if self._position > self._plan.end and not self._tail_from:
                    self._tail_from = self._position  # what lay between is not known: this proves no drain
            finally:
                if puller is not None:
                    puller.close()

    def _away(self, why: str, *, answers: bool = False) -> None:
        """Wait a little for a Pump that does not answer, or that answers without what is needed."""
        status = self._cluster.node(NodeKind.PUMP, self._pump.node_id)
        self._waiting_for = why if answers else f"it does not answer, the registry says {self._state_now()}: {why}"
        if not self._rows and may_be_gone(status, self._before):
            raise _DrainedError
        self._show(silent_at="" if status is None or answers else status.host)
        self._check_time()
        self._clock.sleep(self._settings.archive.poll_interval_s)

    def _state_now(self) -> str:
        status = self._cluster.node(NodeKind.PUMP, self._pump.node_id)
        return GONE if status is None else str(status.state)

    def _check_identity(self, frame: Frame) -> None:
        node_id, pump = self._pump.node_id, self._pump
        if not same_incarnation(frame, pump):
            raise WindowHeld(
                f"Pump {node_id} came back as another incarnation ({frame.incarnation}) while it was pulled",
                hint="run the snapshot again: it says what to do",
                holders=[holder(node_id, "another incarnation")],
                node_id=node_id,
            )
        if self._seen is None and pump.needed:
            self._need_hole("it came back as another incarnation")
        self._seen = frame

    def _need_hole(self, why: str) -> None:
        """Use the declared loss; WindowHeld where it does not cover this window."""
        if self._hole() is None:
            raise WindowHeld(
                f"Pump {self._pump.node_id}: {why}, and no declared loss covers the window",
                hint="run the snapshot again: it says what to do",
                holders=[holder(self._pump.node_id, why)],
                node_id=self._pump.node_id,
            )
        self._hole_used = True

    def _prove_go_pump(self) -> None:
        """A Go Pump has no incarnation: the last binlog pulled from it must come again."""
        last = self._pump.last
        if last is None:
            return
        while True:
            puller = self._open_puller()
            why, answers = "it answers and does not bring the last binlog pulled from it again", True
            try:
                found = puller.first_after(Tso(last.commit_ts - 1), _FIRST_BINLOG_S)
            except PumpUnavailable as error:
                found, why, answers = None, str(error), False
            finally:
                puller.close()
            if found is not None:
                break
            try:
                self._away(why, answers=answers)
            except _TimeUpError:
                if self._hole() is not None:
                    self._hole_used = True
                    return
                raise WindowHeld(
                    f"Go Pump {self._pump.node_id} holds the window after {show(self._plan.start)}: "
                    f"{self._waiting_for}",
                    hint=_way_out(self._blocked_by()),
                    holders=[self._holder()],
                    node_id=self._pump.node_id,
                ) from None
        if LastBinlog(commit_ts=found[0], sha256=hashlib.sha256(found[1]).hexdigest()) == last:
            return
        if self._hole() is not None:
            self._hole_used = True
            return
        why = f"it no longer has the last binlog pulled from it ({show(last.commit_ts)})"
        raise WindowHeld(
            f"Go Pump {self._pump.node_id}: {why}; its data was lost or its GC went past the archive",
            hint=f"pumphouse archive declare-lost {self._pump.node_id} --reason …",
            holders=[holder(self._pump.node_id, why)],
            node_id=self._pump.node_id,
        )

    def _open_puller(self) -> Puller:
        settings = self._settings
        return open_puller(self._registered(), self._archive.cluster_id, settings.tls, proof(settings.cluster))

    def _registered(self) -> NodeStatus:
        status = self._cluster.node(NodeKind.PUMP, self._pump.node_id)
        if status is None:
            self._waiting_for = "it is gone from the registry"
            raise WindowHeld(
                f"Pump {self._pump.node_id} left the registry while the window was fetched",
                holders=[self._holder()],
                node_id=self._pump.node_id,
            )
        if status.extra is not None and not same_incarnation(status, self._pump):
            self._waiting_for = "it came back as another incarnation"
        return status

    def _check_time(self) -> None:
        now = self._clock.monotonic()
        if now >= self._deadline or (self._patience_s is not None and now >= self._moved + self._patience_s):
            raise _TimeUpError

    def _blocked_by(self) -> Tso:
        """Start ts of the prewrite without an outcome that the Pump named last, 0 = none."""
        return Tso(0) if self._seen is None else self._seen.blocked_by

    def _holder(self, missed: PendingCommit | None = None) -> dict[str, Any]:
        """This Pump: by the prewrite that blocks it, or by a commit that came too late for the stream."""
        why, reached = self._waiting_for or "it sent nothing", int(self._position)
        if missed is not None:
            return holder(self._pump.node_id, why, missed.start_ts, reached=reached, commit_ts=int(missed.commit_ts))
        return holder(self._pump.node_id, why, self._blocked_by(), reached=reached)

    def _show(self, silent_at: str = "") -> None:
        self._progress(
            PullProgress(
                node_id=self._pump.node_id,
                start=self._plan.start,
                end=self._plan.end,
                reached=Tso(min(self._position, self._plan.end)),
                rows=self._rows,
                payload_bytes=self._bytes,
                waiting_for=self._waiting_for,
                silent_at=silent_at,
            )
        )


class _TimeUpError(Exception):
    """pull_timeout_s is over."""


class _MissedError(Exception):
    """A late commit of the window that no frame brought."""

    def __init__(self, commit: PendingCommit) -> None:
        super().__init__(commit)
        self.commit = commit


class _DrainedError(Exception):
    """The Pump went offline and is known as drained."""


def _why(frame: Frame, to: Tso) -> str:
    if frame.complete_to > to:
        return ""
    if frame.blocked_by and frame.blocked_by <= to:
        return (
            f"its watermark is {show(frame.complete_to)}; the transaction that began at {show(frame.blocked_by)} "
            "has no outcome"
        )
    if frame.batch is None:
        return f"its watermark is {show(frame.complete_to)}"
    return ""


def _with_queries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add ddl_query, from the payloads of DDL binlogs alone."""
    ddl = np.flatnonzero(batch.column("ddl_job_id").to_numpy() > 0)
    if not ddl.size:
        return batch
    queries: list[bytes | None] = [None] * batch.num_rows
    for row in ddl:
        queries[row] = parse_binlog(batch.column("payload")[int(row)].as_py()).ddl_query
    return batch.append_column("ddl_query", pa.array(queries, pa.large_binary()))
