"""Registration: what the registry says of this Pump, and the heartbeat that keeps it fresh (rows W3, P10).

Cluster calls block, so they run on threads; everything else runs on the event loop.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import structlog

from pump_service.metrics import PumpMetrics
from pump_service.store.store import Elsewhere
from pumphouse.client.admin import PUMP_SILENT_S, RUNNING
from pumphouse.clock import Clock
from pumphouse.errors import BinlogError, PumpError
from pumphouse.model import strict
from pumphouse.model.node import NodeKind, NodeState, NodeStatus, PumpExtra, Replaced
from pumphouse.model.tso import Tso, compose, physical_ms
from pumphouse.registry.base import Cluster

log = structlog.get_logger()

_MAX_REPLACED = 8
_WRITES_AT_ONCE = 3
_PUT_BACK_S = 5.0
_CONNECT_S = 2.0
_DRAWN_WITHIN_S = 2.0


class Superseded(PumpError):
    """Another process has registered under this node id after us. Facts: node_id, found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a heartbeat says beside the state."""

    max_commit_ts: Tso
    extra: PumpExtra
    score: int = 0
    label: dict[str, str] | None = None


class Registrar:
    """Writes the Pump's registry value; knows what it found there at the start, to put it back."""

    def __init__(self, cluster: Cluster, node_id: str, host: str, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self.node_id = node_id
        self.host = host
        self.found = cluster.node(NodeKind.PUMP, node_id)
        self._registered = False
        self._mine: tuple[str, int] | None = None  # incarnation and start that we wrote
        self._replaced: tuple[Replaced, ...] = ()
        self._turns = itertools.count(1)
        self._newest = 0
        # Not the loop's own threads, which others may hold: a node that is alive says so. One write hangs, one waits.
        self._threads = ThreadPoolExecutor(_WRITES_AT_ONCE, thread_name_prefix="registry")
        self.start_tso = cluster.tso()
        self._drawn = (self.start_tso, clock.monotonic())  # the largest, and when it came
        self._draws: threading.Thread | None = None

    def approximate_tso(self) -> Tso:
        """The last heartbeat's timestamp + elapsed time, without asking the cluster."""
        drawn, came = self._drawn
        elapsed_ms = int((self._clock.monotonic() - came) * 1000)
        return Tso(max(compose(physical_ms(drawn) + elapsed_ms), drawn))

    def _draw(self) -> None:
        """Take the cluster's time: coverage holds it against declared losses, and this machine's stops while it sleeps.

        Where the cluster gives none out, or not in time, the heartbeat goes on without.
        """

        def draw() -> None:
            try:
                drawn = self._cluster.tso()
            except strict.SURVIVED as error:
                log.warning("heartbeat_without_timestamp", node_id=self.node_id, error=str(error))
            else:
                self._drawn = max(self._drawn, (drawn, self._clock.monotonic()))

        if self._draws is None or not self._draws.is_alive():
            self._draws = threading.Thread(target=draw, name="heartbeat-timestamp", daemon=True)
            self._draws.start()
        self._draws.join(_DRAWN_WITHIN_S)

    def elsewhere(self, bound: str) -> Elsewhere | None:
        """Where a process runs under our node id, None when none does; blocks. ``bound``: where this one listens.

        Its heartbeat is fresh, and something answers at its address or that cannot be told. A port that refuses is
        nobody's: that process is dead, whatever its last heartbeat says.
        """
        found = self.found
        if found is None or found.host in ("", self.host) or found.state not in RUNNING:
            return None
        if physical_ms(self.start_tso) - physical_ms(found.update_ts) > PUMP_SILENT_S * 1000:
            return None
        host, _, port = found.host.rpartition(":")
        answers = False
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S) as connection:
                answers = not _is_at(bound, connection)
        except ConnectionRefusedError:
            return None
        except (OSError, ValueError):
            pass
        return Elsewhere(addr=found.host, answers=answers)

    async def register(self, state: NodeState, report: Report) -> None:
        """`write` on a thread of ours. Whoever stops waiting leaves a write that gives up when a newer one begins."""
        turn = self._turn()
        await asyncio.get_running_loop().run_in_executor(self._threads, lambda: self.write(state, report, turn))

    async def close(self) -> None:
        """Wait for writes under way."""
        await asyncio.to_thread(self._threads.shutdown)

    def _turn(self) -> int:
        self._newest = next(self._turns)
        return self._newest

    def write(self, state: NodeState, report: Report, turn: int | None = None) -> None:
        """Register state and report; blocks. Superseded when another process took the node id.

        The registry compares before it sets, and a change that is tried again looks again whether it is the newest: so
        an older state never overwrites a newer one, however long it was under way.
        """
        mine_turn = self._turn() if turn is None else turn
        self._draw()
        before: NodeStatus | None = None

        def change(found: NodeStatus | None) -> NodeStatus | None:
            nonlocal before
            if mine_turn != self._newest:
                return found
            mine = report.extra
            other = found.extra if found is not None else None
            if found is not None and other is not None and self._is_anothers(found, other, mine):
                raise Superseded(
                    f"another process has registered as {self.node_id} (incarnation {other.incarnation}, start"
                    f" {other.start_count}, at {found.host}), this one is incarnation {mine.incarnation}, start"
                    f" {mine.start_count}",
                    hint="one node id belongs to one data directory and one process. Is that one the wrong one: stop"
                    " it, keep its directory, then start this one again. A further Pump takes an empty directory and a"
                    " node id of its own",
                    node_id=self.node_id,
                    found=other.incarnation,
                )
            if not self._registered:
                self._replaced = _replaced(found, mine)
                before = found
            return NodeStatus(
                node_id=self.node_id,
                host=self.host,
                state=state,
                score=report.score,
                label=report.label,
                max_commit_ts=report.max_commit_ts,
                update_ts=max(self.approximate_tso(), report.max_commit_ts),
                extra=replace(mine, replaced=self._replaced),
                unknown=found.unknown if found is not None else {},
            )

        self._mine = (report.extra.incarnation, report.extra.start_count)
        self._cluster.update_node(NodeKind.PUMP, self.node_id, change)
        if not self._registered:
            self._registered = True
            self._tell_of_replaced(before, report.extra)

    def _is_anothers(self, found: NodeStatus, other: PumpExtra, mine: PumpExtra) -> bool:
        if self._registered:
            return other.incarnation != mine.incarnation or other.start_count > mine.start_count
        # Two directories that were started at once: the other's process has written since this one looked.
        newer = self.found is None or found.update_ts > self.found.update_ts
        runs = found.state in RUNNING and found.host != self.host
        return newer and runs and other.incarnation != mine.incarnation

    def _tell_of_replaced(self, before: NodeStatus | None, mine: PumpExtra) -> None:
        """One that is offline was drained, as far as the registry tells; a Go Pump's directory is taken over."""
        if before is None or before.extra is None or before.state is NodeState.OFFLINE:
            return
        if self._replaced != before.extra.replaced:
            log.warning(
                "node_id_had_another_incarnation",
                node_id=self.node_id,
                replaced=before.extra.incarnation,
                incarnation=mine.incarnation,
                hint="snapshots will ask for what that one answered. Did this directory lose some"
                " (`incarnation_renewed` above): see there. Else it is another directory: is it the wrong one, stop"
                " this Pump, keep this directory, start the right one",
            )

    def put_back(self) -> None:
        """A failed start leaves the registry as it was, unless another has written there since; blocks."""
        turn = self._turn()

        def change(now: NodeStatus | None) -> NodeStatus | None:
            extra = None if now is None else now.extra
            ours = extra is not None and (extra.incarnation, extra.start_count) == self._mine
            return self.found if ours and turn == self._newest else now

        if self._mine is not None:  # even when it is not known whether that was written
            self._cluster.update_node(NodeKind.PUMP, self.node_id, change)
            self._registered, self._mine = False, None

    async def try_to_put_back(self) -> None:
        """`put_back` of a start that has failed already: nothing more can be done than to log that it could not be."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_PUT_BACK_S):
                await loop.run_in_executor(self._threads, self.put_back)
        except (BinlogError, OSError) as error:  # a TimeoutError is an OSError
            log.warning(
                "registry_not_put_back",
                node_id=self.node_id,
                error=str(error) or f"no answer within {_PUT_BACK_S:g} s",
                hint=f"the registry may show {self.node_id} as online: start it, or pumphouse update-pump",
            )


def _is_at(bound: str, connection: socket.socket) -> bool:
    """Whether the peer is this process, which listens already: a registered address may be another name of its own."""
    host, _, port = bound.rpartition(":")
    at, to = connection.getsockname()[0], connection.getpeername()
    if port != str(to[1]):
        return False
    listening = host.strip("[]")
    if listening not in ("", "0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return to[0] in {found[4][0] for found in socket.getaddrinfo(listening, None)}
    # Nobody else has this port on any address of this machine.
    return at == to[0] or ipaddress.ip_address(to[0]).is_loopback


def _replaced(found: NodeStatus | None, mine: PumpExtra) -> tuple[Replaced, ...]:
    """Who had this node id before: what they answered may be nowhere else, and an archive has to know of each."""
    if found is None:
        return ()
    other = found.extra
    earlier = () if other is None else other.replaced
    # A value without our fields is a Go Pump's, or this one's that a Go tool has rewritten.
    same = mine.start_count > 1 if other is None else other.incarnation == mine.incarnation
    if same:
        return earlier
    incarnation, start_count = ("", 0) if other is None else (other.incarnation, other.start_count)
    gone = Replaced(incarnation=incarnation, start_count=start_count, update_ts=found.seen_ts)
    return (*earlier, gone)[-_MAX_REPLACED:]


async def beat(
    registrar: Registrar,
    interval_s: float,
    state: Callable[[], NodeState],
    report: Callable[[], Report],
    metrics: PumpMetrics,
    in_turn: asyncio.Lock,
) -> None:
    """Write the registry value every ``interval_s`` seconds, for ever; failures are logged, Superseded is raised.

    ``in_turn`` keeps a heartbeat that is under way from overwriting a state that was registered after it was read.
    """
    while True:
        await asyncio.sleep(interval_s)
        try:
            async with in_turn:
                await registrar.register(state(), report())
        except Superseded:
            raise
        except strict.SURVIVED as error:
            metrics.heartbeat_failures.inc()
            log.warning("heartbeat_failed", node_id=registrar.node_id, error=str(error))
