"""Who runs a capture: its record in the cluster, renewed by a thread, and the right to decide that comes with it."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import structlog

from pumphouse.capture.journal import Mark
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BinlogError, CaptureFenced
from pumphouse.registry.base import CAPTURE_TTL_S, CaptureRecord, CaptureState, Cluster
from pumphouse.registry.captures import is_live

log = structlog.get_logger()

RENEW_S = 2.0
# Clocks of two hosts may differ by that much: who holds a lease gives it up so long before another may take it.
_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a record says of a running capture beside who runs it."""

    mark: Mark
    lag_s: float = 0.0
    source: str = ""  # address of what is read now; '' = as it was
    server: str = ""  # its identity; '' = as it was
    why: str = ""  # it is behind; '' = nothing is known to be wrong
    waits: bool | None = None  # commits of the source, for this capture; None = it does not ask for that


def new_owner() -> str:
    """A name for a process."""
    return secrets.token_hex(8)


class Lease:
    """Held from `take` until `release`, or until the registry was out of reach for too long."""

    def __init__(self, cluster: Cluster, record: CaptureRecord, clock: Clock, began: float) -> None:
        """``began``: before it was asked for, by the monotonic clock."""
        self._cluster = cluster
        self._record = record
        self._clock = clock
        self._until = began + CAPTURE_TTL_S - _MARGIN_S
        self._said = record.heartbeat
        self._lost: CaptureFenced | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._progress: Callable[[], Progress | None] = lambda: None

    @classmethod
    def take(
        cls,
        cluster: Cluster,
        capture_id: str,
        *,
        source: str,
        server: str,
        owner: str = "",
        dead: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """Become the one that runs a capture.

        Args:
            cluster: where it is registered.
            capture_id: which.
            source: address of what it follows.
            server: identity of the server there; '' = as it was.
            owner: what this process is called; '' = a new name.
            dead: an owner that does not run any more, whatever its record says.
            clock: of heartbeats.

        Raises:
            CaptureFenced: another process runs it.
        """
        owner = owner or new_owner()

        def change(found: CaptureRecord | None) -> CaptureRecord:
            if found is not None and found.owner not in (owner, dead) and is_live(found, clock.now()):
                raise CaptureFenced(
                    f"the capture {capture_id} runs on {found.host}, its last heartbeat is "
                    f"{max(0.0, clock.now() - found.heartbeat):.0f} s old",
                    hint=f"stop that one first; one that was killed is out after {CAPTURE_TTL_S:.0f} s",
                    capture_id=capture_id,
                    owner=found.owner,
                )
            return CaptureRecord(
                capture_id=capture_id,
                source=source,
                server=server or ("" if found is None else found.server),
                owner=owner,
                host=socket.gethostname(),
                state=CaptureState.RUNNING,
                heartbeat=clock.now(),
                gtid="" if found is None else found.gtid,
                moment=0.0 if found is None else found.moment,
                lag_s=0.0 if found is None else found.lag_s,
                transactions=0 if found is None else found.transactions,
                start_ts=0 if found is None else found.start_ts,
                commit_ts=0 if found is None else found.commit_ts,
                anew=found is not None and found.anew,
                paused=0.0 if found is None else found.paused,
            )

        began = clock.monotonic()
        record = cluster.update_capture(capture_id, change)
        if record is None:
            raise CaptureFenced(f"the capture {capture_id} is not registered", capture_id=capture_id)
        return cls(cluster, record, clock, began)

    def keep(
        self, progress: Callable[[], Progress | None], also: Callable[[Progress | None], None], stop: threading.Event
    ) -> None:
        """Renew it from now on, with what ``progress`` says; ``also`` is called with that after each renewal.

        ``stop`` is set once another process has it: `require_kept` says so.
        """
        self._progress = progress

        def run() -> None:
            while not self._closed.wait(RENEW_S):
                said = progress()
                if not self._renew(said):
                    if self._lost is not None:  # whatever the main thread waits for
                        stop.set()
                    continue
                try:
                    also(said)
                except (BinlogError, OSError) as error:
                    log.warning("capture_upkeep_failed", error=str(error))

        self._thread = threading.Thread(target=run, name="capture-lease", daemon=True)
        self._thread.start()

    def held(self) -> None:
        """CaptureFenced where this process may not decide any more; asks the registry where that is not sure."""
        if self._lost is None and self._over():
            self._renew(self._progress())  # it stood still, or the registry was away: whose it is now decides
        self.require_kept()
        if self._over():
            raise CaptureFenced(
                f"the registry was not reached for {CAPTURE_TTL_S - _MARGIN_S:.0f} s: another process may run the "
                f"capture {self._record.capture_id} by now",
                hint="start it again once the registry answers",
                capture_id=self._record.capture_id,
                owner=self._record.owner,
            )

    def _over(self) -> bool:
        """Whether another process may have it by now.

        The monotonic clock stands still while the host is suspended. The other one, which all hosts go by, does not.
        """
        return self._clock.monotonic() > self._until or self._clock.now() > self._said + CAPTURE_TTL_S - _MARGIN_S

    @property
    def paused(self) -> bool:
        """Whether somebody wants it to stand still, as of the last heartbeat."""
        return self._record.paused > 0

    def require_kept(self) -> None:
        """CaptureFenced where another process is known to have it."""
        if self._lost is not None:
            raise self._lost

    def say(self, progress: Progress | None) -> None:
        """Write how far it is at once; `held` tells whether that went well."""
        self._renew(progress)

    def release(self, progress: Progress | None, failure: BaseException | None = None) -> None:
        """Give it back, in order; what it ended with stays in the record."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if isinstance(failure, CaptureFenced):
            return
        state = CaptureState.STOPPED if failure is None else CaptureState.FAILED
        try:
            reason = str(failure) if isinstance(failure, BinlogError) else f"{type(failure).__name__}: {failure}"
            self._write(progress, state, "" if failure is None else reason)
        except (BinlogError, OSError) as error:
            log.warning("capture_end_not_registered", error=str(error))

    def _renew(self, progress: Progress | None) -> bool:
        began, said = self._clock.monotonic(), self._clock.now()
        try:
            self._write(progress, CaptureState.RUNNING, "")
        except CaptureFenced as error:
            self._lost = error
        except (BinlogError, OSError) as error:
            log.warning("capture_heartbeat_failed", error=str(error))
        else:
            self._until, self._said = began + CAPTURE_TTL_S - _MARGIN_S, said
            return True
        return False

    def _write(self, progress: Progress | None, state: CaptureState, reason: str) -> None:
        record = replace(self._record, state=state, reason=reason, heartbeat=self._clock.now())
        if progress is not None:
            record = replace(
                record,
                gtid=progress.mark.gtid,
                moment=progress.mark.moment,
                lag_s=progress.lag_s,
                transactions=progress.mark.transactions,
                start_ts=progress.mark.start_ts,
                commit_ts=progress.mark.commit_ts,
                anew=progress.mark.anew,
                source=progress.source or record.source,
                server=progress.server or record.server,
                semi_sync=progress.waits,
                reason=progress.why if state is CaptureState.RUNNING else reason,
            )

        def change(found: CaptureRecord | None) -> CaptureRecord:
            if found is None or found.owner != record.owner:
                raise CaptureFenced(
                    f"the capture {record.capture_id} was taken over"
                    + ("" if found is None else f" by a process on {found.host}"),
                    hint="two processes must not run one capture: stop one of them",
                    capture_id=record.capture_id,
                )
            return replace(record, paused=found.paused)

        written = self._cluster.update_capture(record.capture_id, change)
        if written is not None:
            self._record = replace(self._record, paused=written.paused)
