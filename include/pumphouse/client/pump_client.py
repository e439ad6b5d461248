"""The pump client: spreads prewrites over a cluster's Pumps and sends each commit where its prewrite went.

Behaviour as TiDB's own client has it (rows C1-C5): a Pump for each prewrite by strategy, other Pumps when one fails,
commits and rollbacks in the background. With copies (row Q5) each prewrite has so many Pumps, no two of them on one
host. One client serves all threads of a process; it does not survive a fork.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import grpc

from pumphouse.client.commits import PERMANENT, CommitSender, Send
from pumphouse.client.members import Members, same_process
from pumphouse.client.probes import Probes
from pumphouse.client.pump import WRITE_BYTES_PER_S, Payload, PumpConnection, refuse_too_large, time_for
from pumphouse.client.selector import make_selector
from pumphouse.client.watch import PumpWatch
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import (
    BadBinlog,
    BinlogError,
    ConfigError,
    PumpDraining,
    PumpReadOnly,
    PumpUnavailable,
    WriterFailed,
)
from pumphouse.library_log import library_logger
from pumphouse.model.address import machine_of
from pumphouse.model.node import NodeKind, NodeStatus
from pumphouse.registry.base import Cluster
from pumphouse.rpc.retry import RetryPolicy, RetryState
from pumphouse.settings import TlsSettings

log = library_logger(__name__)

RETRY_INTERVAL_S = 0.1
WATCH_INTERVAL_S = 1.0
PROBE_INTERVAL_S = 30.0
_PROBES_END_S = 1.0
# Open transactions that are remembered; one that was never ended is forgotten after so many newer ones.
_MOST_OPEN = 1_000_000
# What a prewrite is taken to need before any was answered, and the weight of each answer from then on.
_USUAL_S, _USUAL_WEIGHT = 0.2, 1 / 16
# Threads that bring second copies, at the most.
_COPYING = 32
# Refusals that a Pump gives in its own words: it will say the same to the next prewrite.
_REFUSALS = (PumpDraining, PumpReadOnly, WriterFailed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStats:
    """What a client did so far, in binlogs."""

    prewrites: int
    prewrite_retries: int
    prewrites_failed: int
    commits_sent: int
    commits_lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connected:
    """A connection, and the Pump as it was registered when that was opened."""

    to: NodeStatus
    by: PumpConnection


class PumpClient:
    """Writes binlogs of transactions to the Pumps of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        strategy: str = "range",
        labels: Mapping[str, str] | None = None,
        label_fallback: bool = False,
        copies: int = 1,
        write_timeout_s: float = 15.0,
        write_bytes_per_s: float = WRITE_BYTES_PER_S,
        leave_after: float = 10.0,
        leave_min_s: float = 1.0,
        tls: TlsSettings | None = None,
        watch_interval_s: float = WATCH_INTERVAL_S,
        probe_interval_s: float = PROBE_INTERVAL_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Look the Pumps up and keep watching them.

        Args:
            cluster: where the Pumps are registered. Not closed by the client.
            strategy: ``range`` (one after the other), ``hash`` (by start ts), ``score`` (in proportion to what each
                Pump says it can take) or ``label`` (only Pumps that carry ``labels``).
            labels: for ``label``: what a Pump must carry (its setting ``pump.labels``), all of it.
            label_fallback: for ``label``: while no such Pump is available, take any. Else the prewrite fails.
            copies: how many Pumps, each on another host, take each transaction; without so many it must not commit. A
                host is what stands before the port in the address that a Pump has registered.
            write_timeout_s: time-out of one call, and age at which a prewrite stops going round.
            write_bytes_per_s: a second is added to both for so many bytes of payloads: what the slowest Pump, with
                the way to it, manages.
            leave_after: a prewrite leaves a Pump that is silent for so many times what an answer usually takes, while
                another one may take it; the silent one is not chosen again before it answers a probe. 0 = never.
            leave_min_s: seconds that it waits at the least before it leaves.
            tls: certificates.
            watch_interval_s: seconds between looks at a registry that tells of no changes by itself.
            probe_interval_s: seconds between probes of Pumps that are online but not available.
            clock: time.

        Raises:
            PumpUnavailable: no Pump is registered.
            ConfigError: a strategy, labels, a rate or a number of copies that cannot be.
        """
        self._cluster = cluster
        self._cluster_id = cluster.cluster_id()
        self._tls = tls
        if not write_bytes_per_s > 0:
            raise ConfigError(
                f"write_bytes_per_s is {write_bytes_per_s}: it must be above 0",
                hint=f"leave it out: {WRITE_BYTES_PER_S:.0f} bytes a second",
            )
        if copies < 1:
            raise ConfigError(f"copies is {copies}: at least one Pump takes a transaction", hint="leave it out: 1")
        self._copies = copies
        self._copying = ThreadPoolExecutor(_COPYING, "copies") if copies > 1 else None
        self._timeout_s = write_timeout_s
        self._bytes_per_s = write_bytes_per_s
        self._leave_after, self._leave_min_s = leave_after, leave_min_s
        self._usual_s = _USUAL_S
        self._clock = clock
        selectors = [make_selector(strategy, labels, label_fallback=label_fallback) for _ in range(copies)]
        self._members = Members(*selectors)
        self._lock = threading.Lock()
        self._closed = False
        self._connections: dict[str, _Connected] = {}
        self._last_tries: set[PumpConnection] = set()
        self._senders: dict[str, CommitSender] = {}
        self._taken_by: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        self._prewrites = self._retries = self._failed = 0
        self._commits_sent = self._commits_lost = 0  # by senders that are no more
        pumps = cluster.readable_nodes(NodeKind.PUMP)
        if not pumps:
            raise PumpUnavailable(f"no Pump is registered in {cluster.url}", hint="start one with `pumphouse pump run`")
        self._members.update(pumps)
        self._probes = Probes(self._probe)
        self._watch = PumpWatch(
            cluster,
            self._members,
            lambda: self._probes.start(self._members.to_probe()),
            self._let_go,
            interval_s=watch_interval_s,
            probe_interval_s=probe_interval_s,
            clock=clock,
        )

    # Writing

    def write_prewrite(self, payload: bytes, start_ts: int) -> str:
        """Store a transaction's P-binlog; durable on some Pump on return.

        After a time-out the binlog goes to another Pump, so one that answers too late may hold it as well: both ask for
        the outcome, and the archive reads the transaction once.

        Returns:
            Node id of the Pump that took it, of the first copy; the commit will go there.

        Raises:
            PumpUnavailable: no Pump took it; the transaction must not commit.
            BadBinlog: too large, or not a binlog.
            ClusterMismatch: the Pumps belong to another cluster.
        """
        (outcome,) = self._store_copies([(start_ts, payload)])
        if isinstance(outcome, BinlogError):
            raise outcome
        return outcome

    def write_prewrites(self, prewrites: Sequence[tuple[int, Payload]]) -> list[BinlogError | None]:
        """Store the P-binlogs of many transactions, given as (start ts, payload); one outcome each, None = durable.

        They go to one Pump together and in this order, on one stream with few fsyncs; to a Go Pump one by one. What it
        does not take goes to others, as with `write_prewrite`. A transaction with an error must not commit.

        Raises:
            ClusterMismatch: the Pumps belong to another cluster.
            PeerRefused: our certificate is not one that they take.
        """
        return [None if isinstance(outcome, str) else outcome for outcome in self._store_copies(prewrites)]

    def write_commits(self, outcomes: Sequence[tuple[int, bytes]]) -> None:
        """Send C and Rollback binlogs of many transactions, given as (start ts, payload); as `write_commit`."""
        of: dict[str, list[bytes]] = {}
        with self._lock:
            for start_ts, payload in outcomes:
                for node_id in self._taken_by.pop(start_ts, ()):
                    of.setdefault(node_id, []).append(payload)
            for node_id, payloads in of.items():
                self._send(node_id, *payloads)

    def write_commit(self, payload: bytes, start_ts: int) -> None:
        """Send a C-binlog in the background, to the Pump that took the P. Never fails; a lost one is asked for."""
        self.write_commits([(start_ts, payload)])

    def write_rollback(self, payload: bytes, start_ts: int) -> None:
        """Send a Rollback binlog; as `write_commit`."""
        self.write_commit(payload, start_ts)

    def forget(self, start_ts: int) -> None:
        """End a transaction without a C or Rollback: its Pump will ask."""
        with self._lock:
            self._taken_by.pop(start_ts, None)

    # State

    @property
    def cluster(self) -> Cluster:
        """The cluster, for timestamps."""
        return self._cluster

    @property
    def stats(self) -> ClientStats:
        """Counts so far."""
        with self._lock:
            senders = list(self._senders.values())
            return ClientStats(
                prewrites=self._prewrites,
                prewrite_retries=self._retries,
                prewrites_failed=self._failed,
                commits_sent=self._commits_sent + sum(sender.sent for sender in senders),
                commits_lost=self._commits_lost + sum(sender.lost for sender in senders),
            )

    def available(self) -> list[NodeStatus]:
        """Pumps that take prewrites, as far as is known."""
        return self._members.available()

    def refresh(self) -> None:
        """Look at the registry now; a failure leaves what is known."""
        self._watch.refresh()
        self._let_go()

    def probe(self) -> None:
        """Send an empty binlog to each Pump that is online but not available, and wait; an answer brings it back."""
        self._probes.start(self._members.to_probe())
        self._probes.wait()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all commits are answered or given up; False when the time is up before."""
        until = self._clock.monotonic() + timeout_s
        with self._lock:
            senders = list(self._senders.values())
        return all(sender.flush(max(0.0, until - self._clock.monotonic())) for sender in senders)

    def close(self, flush_s: float = 5.0) -> None:
        """Flush commits for so long, then stop all threads and close all channels; later writes are refused."""
        self.flush(flush_s)
        with self._lock:
            self._closed = True
            senders = list(self._senders.values())
            connections = [*(each.by for each in self._connections.values()), *self._last_tries]
            self._connections.clear()
        for sender in senders:
            sender.close(0)
        self._watch.close()
        for connection in connections:
            connection.close()
        self._probes.close(_PROBES_END_S)  # they have ended with their connections
        if self._copying is not None:
            self._copying.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # Inside

    def _store_copies(self, prewrites: Sequence[tuple[int, Payload]]) -> list[str | BinlogError]:
        """`_store` for every copy; one outcome each."""
        if self._copying is None:
            return self._store(prewrites, 0)
        outcomes = self._on_hosts(prewrites, self._copying)
        # A host that fell out was replaced by one that another copy was already on its way to.
        if apart := [place for place, each in enumerate(outcomes) if each is None]:
            again = self._on_hosts([prewrites[place] for place in apart], self._copying)
            for place, each in zip(apart, again, strict=True):
                outcomes[place] = each
        return [
            _too_near(start_ts, self._copies) if each is None else each
            for (start_ts, _), each in zip(prewrites, outcomes, strict=True)
        ]

    def _on_hosts(
        self, prewrites: Sequence[tuple[int, Payload]], pool: ThreadPoolExecutor
    ) -> list[str | BinlogError | None]:
        """All copies side by side, but what lies in a file is read for one at a time; None = not on enough hosts.

        Those for which no Pump is there come before: while nobody takes them, the others fill no disk.
        """
        lacking = self._members.lacking()
        there = [copy for copy in range(self._copies) if copy not in lacking]
        in_files = not all(isinstance(payload, bytes) for _, payload in prewrites)
        found: list[list[str | BinlogError]] = []
        for copy in [*lacking, *(there if in_files else ())]:
            found.append(self._store(prewrites, copy))
            if all(isinstance(each, BinlogError) for each in found[-1]):
                return [*found[-1]]
        if not in_files:
            found += self._side_by_side(prewrites, there, pool)
        return [self._joined(each) for each in zip(*found, strict=True)]

    def _side_by_side(
        self, prewrites: Sequence[tuple[int, Payload]], copies: Sequence[int], pool: ThreadPoolExecutor
    ) -> list[list[str | BinlogError]]:
        try:
            others = [pool.submit(self._store, prewrites, copy) for copy in copies[1:]]
        except RuntimeError as error:
            if not self._closed:
                raise
            raise PumpUnavailable("this client is closed") from error
        try:
            found = [self._store(prewrites, copy) for copy in copies[:1]]
        finally:
            wait(others)
        return found + [each.result() for each in others]

    def _joined(self, outcomes: Sequence[str | BinlogError]) -> str | BinlogError | None:
        """One outcome of all copies; None = they are on fewer hosts."""
        for each in outcomes:
            if isinstance(each, BinlogError):
                return each
        pumps = [self._members.get(str(each)) for each in outcomes]
        hosts = {machine_of(pump.host) for pump in pumps if pump is not None}
        return outcomes[0] if len(hosts) == self._copies else None

    def _store(self, prewrites: Sequence[tuple[int, Payload]], copy: int) -> list[str | BinlogError]:
        """Node id of the Pump that took it, or the error, of each; raises what concerns all of them."""
        outcomes: list[str | BinlogError] = [""] * len(prewrites)
        left = []
        for place, (_, payload) in enumerate(prewrites):
            try:
                refuse_too_large(payload)
                left.append(place)
            except BadBinlog as error:
                outcomes[place] = error
        policy = RetryPolicy(
            interval_s=RETRY_INTERVAL_S,
            timeout_s=time_for((prewrites[place][1] for place in left), self._timeout_s, self._bytes_per_s),
            min_tries=len(self._members.available()) + 1,
        )
        state = RetryState(policy, self._clock)
        tried: set[PumpConnection] = set()
        while left:
            pump = self._members.select(prewrites[left[0]][0], state.tries, copy)
            if pump is not None:
                connected = self._connected(pump)
                tried.add(connected.by)
                left = self._try(connected, prewrites, left, outcomes, self._patience(pump))
            else:
                self.refresh()
            if left:
                with self._lock:
                    self._retries += len(left)
                if not state.another():
                    break
        for pump in self._members.last_resort(copy):
            if left:
                left = self._last_try(pump, prewrites, left, outcomes, tried)
        with self._lock:
            self._failed += len(left)
        for place in left:
            outcomes[place] = _nobody_took(prewrites[place][0], outcomes[place], self._copies)
        return outcomes

    def _last_try(
        self,
        pump: NodeStatus,
        prewrites: Sequence[tuple[int, Payload]],
        places: Sequence[int],
        outcomes: list[str | BinlogError],
        tried: set[PumpConnection],
    ) -> list[int]:
        """`_try` over a connection of its own, that no other thread ends; it stays where the shared one was no good."""
        with self._lock:
            if self._closed:
                raise PumpUnavailable("this client is closed", node_id=pump.node_id)
            connected = self._open(self._members.get(pump.node_id) or pump)
            self._last_tries.add(connected.by)
        useless: PumpConnection | None = connected.by
        try:
            left = self._try(connected, prewrites, places, outcomes, self._timeout_s)
            with self._lock:
                shared = self._connections.get(pump.node_id)
                if not left and not self._closed and (shared is None or shared.by in tried):
                    self._connections[pump.node_id] = connected
                    useless = None if shared is None else shared.by
        finally:
            with self._lock:
                self._last_tries.discard(connected.by)
            if useless is not None:
                useless.close()
        return left

    def _try(
        self,
        connected: _Connected,
        prewrites: Sequence[tuple[int, Payload]],
        places: Sequence[int],
        outcomes: list[str | BinlogError],
        patience_s: float,
    ) -> list[int]:
        """One try at one Pump; the places that another one may still take. What no other would answer is raised."""
        node_id, payloads = connected.to.node_id, [prewrites[place][1] for place in places]
        began = self._clock.monotonic()
        answers = connected.by.write_many(payloads, patience_s)
        left = []
        self._remember([prewrites[p][0] for p, error in zip(places, answers, strict=True) if error is None], node_id)
        for place, error in zip(places, answers, strict=True):
            outcomes[place] = node_id if error is None else error
            if error is not None and not isinstance(error, PERMANENT):
                left.append(place)
            elif error is not None and not isinstance(error, BadBinlog):
                raise error
        if not left:
            self._members.succeeded(connected.to)
            self._took(self._clock.monotonic() - began - time_for(payloads, 0.0, self._bytes_per_s))
        elif patience_s < self._timeout_s and _is_silence(outcomes[left[-1]]):
            if self._members.silent(connected.to, outcomes[left[-1]]):
                self._probes.start([connected.to])
        elif not connected.by.ended:
            refusal = next((error for error in answers if isinstance(error, _REFUSALS)), None)
            self._members.failed(connected.to, refusal or outcomes[left[-1]], refused=refusal is not None)
        return left

    def _patience(self, pump: NodeStatus) -> float:
        """Seconds to wait for an answer: fewer while there is another Pump to go to.

        What was left may be stored all the same, as after any time-out.
        """
        if not self._leave_after or not self._members.can_be_left(pump):
            return self._timeout_s
        return min(max(self._leave_min_s, self._leave_after * self._usual_s), self._timeout_s)

    def _took(self, seconds: float) -> None:
        with self._lock:
            self._usual_s += (max(seconds, 0.0) - self._usual_s) * _USUAL_WEIGHT

    def _probe(self, pump: NodeStatus) -> None:
        try:
            connected = self._connected(pump)
            connected.by.probe(self._timeout_s)
        except (BinlogError, OSError) as error:  # an OSError: a certificate that cannot be read now
            log.debug("probe_failed", node_id=pump.node_id, error=str(error))
        else:
            self._members.succeeded(connected.to, probed=True)

    def _remember(self, stored: Sequence[int], node_id: str) -> None:
        with self._lock:
            self._prewrites += len(stored)
            for start_ts in stored:
                before = self._taken_by.get(start_ts, ())
                if node_id not in before:  # else it was told to try again
                    self._taken_by[start_ts] = (*before, node_id)
            while len(self._taken_by) > _MOST_OPEN:
                self._taken_by.popitem(last=False)

    def _connected(self, pump: NodeStatus) -> _Connected:
        """The connection to the Pump as it is registered now; one to a process that is gone is closed.

        Its channel would wait after each failure before it looks for the new process, and calls fail meanwhile.
        """
        stale = None
        with self._lock:
            if self._closed:  # a thread that was on its way would leave a channel behind
                raise PumpUnavailable("this client is closed", node_id=pump.node_id)
            # Under the lock: what another thread has connected to meanwhile was registered later.
            pump = self._members.get(pump.node_id) or pump
            connected = self._connections.get(pump.node_id)
            if connected is not None and (
                connected.by.batch != _takes_batches(pump) or not same_process(connected.to, pump)
            ):
                stale, connected = connected, None
            if connected is None:
                connected = self._connections[pump.node_id] = self._open(pump)
        if stale is not None:
            stale.by.close()
        return connected

    def _open(self, pump: NodeStatus) -> _Connected:
        batch = _takes_batches(pump)
        connection = PumpConnection(
            pump.node_id, pump.host, self._cluster_id, self._tls, batch=batch, bytes_per_s=self._bytes_per_s
        )
        return _Connected(to=pump, by=connection)

    def _let_go(self) -> None:
        """End what belongs to Pumps that were removed, once nothing is on its way to them."""
        with self._lock:
            gone = {node_id for node_id in (*self._senders, *self._connections) if self._members.get(node_id) is None}
            gone -= {node_id for node_id in gone & self._senders.keys() if not self._senders[node_id].idle}
            senders = [self._senders.pop(node_id) for node_id in gone & self._senders.keys()]
            connections = [self._connections.pop(node_id).by for node_id in gone & self._connections.keys()]
            self._commits_sent += sum(sender.sent for sender in senders)
            self._commits_lost += sum(sender.lost for sender in senders)
        for sender in senders:
            sender.close(0)
        for connection in connections:
            connection.close()

    def _send(self, node_id: str, *payloads: bytes) -> None:
        """Queue outcomes for a Pump. Call it with the lock held."""
        if self._closed:
            self._commits_lost += len(payloads)
        else:
            self._sender(node_id).put(*payloads)

    def _sender(self, node_id: str) -> CommitSender:
        sender = self._senders.get(node_id)
        if sender is None:
            sender = self._senders[node_id] = CommitSender(node_id, self._sender_of(node_id), clock=self._clock)
        return sender

    def _sender_of(self, node_id: str) -> Send:
        def send(payloads: Sequence[bytes]) -> list[BinlogError | None]:
            pump = self._members.get(node_id)
            if pump is None:
                gone = PumpUnavailable(f"Pump {node_id} is not registered any more", node_id=node_id)
                return [gone] * len(payloads)
            return self._connected(pump).by.write_many(payloads, self._timeout_s)

        return send


def _nobody_took(start_ts: int, last: str | BinlogError, copies: int) -> PumpUnavailable:
    took = "no Pump took the prewrite" if copies == 1 else f"fewer than {copies} hosts took the prewrite"
    error = PumpUnavailable(
        f"{took} of transaction {start_ts}; the last error: {last or 'no Pump is online'}",
        hint="see `pumphouse pumps`; the transaction must not commit",
        start_ts=start_ts,
        node_id=last.facts.get("node_id", "") if isinstance(last, BinlogError) else "",
    )
    error.__cause__ = last if isinstance(last, BinlogError) else None
    return error


def _too_near(start_ts: int, copies: int) -> PumpUnavailable:
    return PumpUnavailable(
        f"copies of transaction {start_ts} are not on {copies} hosts; it must not commit",
        hint="try it again",
        start_ts=start_ts,
    )


def _is_silence(outcome: str | BinlogError) -> bool:
    """Whether the time was up before an answer came."""
    return isinstance(outcome, PumpUnavailable) and outcome.code == grpc.StatusCode.DEADLINE_EXCEEDED.name


def _takes_batches(pump: NodeStatus) -> bool:
    return pump.extra is not None and pump.extra.batch
