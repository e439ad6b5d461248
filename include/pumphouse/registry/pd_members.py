"""PD's members: who answers, who leads, and calls on the leader that outlive a change of it.

See docs/formats.md, "A cluster on PD".

Every call is made within a deadline, over as many leaders as it takes. Channels and locks belong to one process: they
are closed before a fork and made again on both sides.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import ClusterMismatch, ClusterUnavailable, ConfigError
from pumphouse.library_log import library_logger
from pumphouse.proto import pdpb_pb2 as pdpb
from pumphouse.proto.pdpb_pb2_grpc import PDStub
from pumphouse.rpc import forks
from pumphouse.rpc.channel import open_channel
from pumphouse.rpc.shown import without_secrets
from pumphouse.settings import TlsSettings

log = library_logger(__name__)

R = TypeVar("R")
S = TypeVar("S")
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0
# A server that speaks gRPC and is something else, as an etcd; one that becomes a PD has this service from the start.
_NO_PD = "unknown service pdpb.PD"


@dataclass(frozen=True, slots=True, kw_only=True)
class PdOptions:
    """Times and tries. The first three are those of the Go tools."""

    timeout_s: float = 3.0  # of one call
    init_tries: int = 100
    init_wait_s: float = 1.0
    deadline_s: float = 30.0  # of one question, over changes of the leader: PD takes up to 15 s for one


def parse_endpoints(text: str, tls: TlsSettings) -> tuple[str, ...]:
    """``host:port`` of each member in ``host:2379,http://host:2379,…``; `tls` alone decides about encryption.

    Raises:
        ConfigError: an entry is no address, or asks for https where no CA is set.
    """
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        if entry.startswith("https://") and not tls.enabled:
            shown = without_secrets(text, entry)
            raise ConfigError(f"{shown}: https needs the setting tls.ca", hint="set tls.ca, tls.cert and tls.key")
        try:
            split = urlsplit(entry if "://" in entry else f"http://{entry}")
            known = split.scheme in ("http", "https") and split.hostname and split.port and not split.username
        except ValueError:
            known = None
        if not known:
            raise ConfigError(
                f"{without_secrets(text, entry)!r} is no address of PD", hint="as in pd://10.0.0.1:2379,10.0.0.2:2379"
            )
        found.append(split.netloc)
    if not found:
        raise ConfigError("the cluster URL names no PD", hint="as in pd://10.0.0.1:2379,10.0.0.2:2379")
    return tuple(dict.fromkeys(found))


@dataclass(slots=True)
class _Local:
    """What belongs to one process."""

    pid: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    discovering: threading.Lock = field(default_factory=threading.Lock)
    channels: dict[str, grpc.Channel] = field(default_factory=dict)
    stubs: dict[tuple[str, Any], Any] = field(default_factory=dict)
    leader: str = ""


class Members:
    """The members of one PD cluster."""

    def __init__(
        self,
        endpoints: tuple[str, ...],
        tls: TlsSettings,
        options: PdOptions | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.options = options or PdOptions()
        self._configured = endpoints
        self._known: tuple[str, ...] = ()
        self._tls = tls
        self._clock = clock
        self._cluster_id = 0
        self._closed = False
        self._state = _Local(os.getpid())
        forks.close_at_fork(self)

    @property
    def url(self) -> str:
        """``pd://`` and the configured addresses."""
        return f"pd://{','.join(self._configured)}"

    @property
    def endpoints(self) -> tuple[str, ...]:
        """``host:port`` of every member: those that PD names, then the configured ones."""
        return tuple(dict.fromkeys((*self._known, *self._configured)))

    @property
    def cluster_id(self) -> int:
        """Id of the cluster; `connect` was called before."""
        return self._cluster_id

    @property
    def header(self) -> pdpb.RequestHeader:
        """Header of every request."""
        return pdpb.RequestHeader(cluster_id=self._cluster_id)

    def connect(self) -> int:
        """Ask every configured address for its members until one answers; the cluster id, which all must share.

        Raises:
            ConfigError: two addresses belong to different clusters, or none of them is a PD.
            ClusterUnavailable: nobody answered, ``init_tries`` times over.
        """
        failure = ""
        for tried in range(self.options.init_tries):
            answers, failure = self._ask_members(self._configured, wanted=len(self._configured))
            ids = {answer.header.cluster_id for answer in answers}
            if len(ids) > 1:
                raise ConfigError(
                    f"{self.url} names members of different clusters: {', '.join(map(str, sorted(ids)))}",
                    hint="all addresses of cluster.url must belong to one PD cluster",
                )
            if ids:
                self._cluster_id = ids.pop()
                self._learn(answers)
                return self._cluster_id
            if _NO_PD in failure:
                raise ConfigError(
                    f"{self.url} is no PD: {failure}",
                    hint=f"if this is an etcd: --cluster etcd://{','.join(self._configured)} (the setting cluster.url)",
                    url=self.url,
                )
            if not tried:
                log.warning("pd_does_not_answer", url=self.url, reason=failure, tries=self.options.init_tries)
            if tried + 1 < self.options.init_tries:
                self._clock.sleep(self.options.init_wait_s)
        raise ClusterUnavailable(
            f"{self.url} does not answer: {failure}", hint="check the setting cluster.url", url=self.url
        )

    def leader(self) -> str:
        """``host:port`` of the member that leads, asked for if it is not known; ClusterUnavailable if none does."""
        state = self._local()
        with state.discovering:
            if not state.leader:
                state.leader = self._discover()
            return state.leader

    def forget(self, leader: str) -> None:
        """This member did not answer as a leader does: ask again who leads."""
        state = self._local()
        with state.lock:
            if state.leader == leader:
                state.leader = ""

    def channel(self, target: str) -> grpc.Channel:
        """The channel to a member or another server of the cluster, opened on first use; see `stub`."""
        state = self._local()
        with forks.no_fork(), state.lock:
            return self._channel(state, target)

    def stub(self, target: str, kind: Callable[[grpc.Channel], S]) -> S:
        """A stub of generated code over `channel`, made while the channel is open: gRPC dies where it is not.

        A fork may close the channel before the stub is called; the call then raises ValueError and sends nothing.
        """
        state = self._local()
        with forks.no_fork(), state.lock:
            channel = self._channel(state, target)
            stub = state.stubs.get((target, kind))
            if stub is None:
                stub = state.stubs[target, kind] = kind(channel)
            return stub

    def call(self, what: str, ask: Callable[[PDStub, float], R]) -> R:
        """Ask the leader; when it fails, or leads no more, the next one, until the deadline.

        Args:
            what: for the error's text.
            ask: makes the call with a time-out in seconds; the response has a header.

        Raises:
            ClusterUnavailable: no leader answered in time.
            ClusterMismatch: PD has another cluster id than at the start.
        """
        until = self._clock.monotonic() + self.options.deadline_s
        wait = _FIRST_WAIT_S
        hint = "is PD up and has it a leader?"
        while True:
            leader = ""
            try:
                leader = self.leader()
                timeout = max(0.1, min(self.options.timeout_s, until - self._clock.monotonic()))
                response: Any = ask(self.stub(leader, PDStub), timeout)
                failure = self.refusal(response.header)
                if not failure:
                    return response  # type: ignore[no-any-return]
                if response.header.error.type == pdpb.NOT_BOOTSTRAPPED:
                    until = 0.0  # so it stays until somebody starts a store
                    hint = "start a TiKV: this PD has no store yet"
            except grpc.RpcError as error:
                failure = reason_of(error)
            except ClusterUnavailable as error:
                failure = error.message
            except ValueError as error:  # a fork closed the channel between our look and our call: nothing was sent
                failure = str(error)
            if leader:
                self.forget(leader)
            if self._closed or self._clock.monotonic() + wait > until:
                raise ClusterUnavailable(f"{what}: {self.url} gave no answer: {failure}", hint=hint, url=self.url)
            self._clock.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT_S)

    def refusal(self, header: pdpb.ResponseHeader) -> str:
        """Why an answer is none; '' = it is one. Raises ClusterMismatch."""
        if header.error.type != pdpb.OK or header.error.message:
            return f"{pdpb.ErrorType.Name(header.error.type)} {header.error.message}"
        if header.cluster_id != self._cluster_id:
            raise ClusterMismatch(
                f"{self.url} is cluster {header.cluster_id} now, it was {self._cluster_id}",
                hint="the addresses belong to another cluster; check the setting cluster.url",
                got=header.cluster_id,
                want=self._cluster_id,
            )
        return ""

    def close(self) -> None:
        """Close the channels; what waits for an answer fails."""
        self._closed = True
        self._close_channels()

    def before_fork(self) -> None:
        """See `pumphouse.rpc.forks`."""
        self._close_channels()

    # ---- parts -------------------------------------------------------------------------------------------------

    def _local(self) -> _Local:
        if self._state.pid != os.getpid():
            self._state = _Local(os.getpid())
        return self._state

    def _channel(self, state: _Local, target: str) -> grpc.Channel:
        if self._closed:
            raise ClusterUnavailable(f"{self.url} was closed", url=self.url)
        channel = state.channels.get(target)
        if channel is None:
            channel = state.channels[target] = open_channel(target, self._tls)
        return channel

    def _close_channels(self) -> None:
        state = self._local()
        with state.lock:
            channels, state.channels = list(state.channels.values()), {}
            state.stubs = {}
            state.leader = ""
        for channel in channels:
            channel.close()

    def _discover(self) -> str:
        """The leader that most members name: one that was cut off may still take itself for it."""
        candidates = self.endpoints
        answers, failure = self._ask_members(candidates, wanted=len(candidates) // 2 + 1)
        named = Counter(
            target_of(answer.leader.client_urls)
            for answer in answers
            if answer.leader.client_urls and answer.header.cluster_id == self._cluster_id
        )
        if not named:
            raise ClusterUnavailable(
                f"{self.url} has no leader: {failure or 'an election is under way'}", hint="is PD up?", url=self.url
            )
        self._learn(answers)
        return named.most_common(1)[0][0]

    def _learn(self, answers: Iterable[pdpb.GetMembersResponse]) -> None:
        for answer in answers:
            found = tuple(target_of(member.client_urls) for member in answer.members if member.client_urls)
            if found:
                self._known = found
                return

    def _ask_members(self, targets: tuple[str, ...], *, wanted: int) -> tuple[list[pdpb.GetMembersResponse], str]:
        """Good answers of these members, asked all at once, and why another failed; returns when ``wanted`` agree."""
        done: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        failure = ""
        asked = 0
        for target in targets:
            try:
                call = self.stub(target, PDStub).GetMembers.future(
                    pdpb.GetMembersRequest(), timeout=self.options.timeout_s
                )
            except ValueError as error:  # closed by a fork; who asked tries again
                failure = f"{target}: {error}"
                continue
            asked += 1
            call.add_done_callback(lambda finished, target=target: done.put((target, finished)))
        answers: list[pdpb.GetMembersResponse] = []
        for _ in range(asked):
            target, finished = done.get()
            try:
                answer = finished.result()
            except grpc.RpcError as error:
                found = f"{target}: {reason_of(error)}"
                # What may pass outweighs what does not: only where all say so there is no PD.
                failure = failure if failure and _NO_PD in found else found
                continue
            except grpc.FutureCancelledError:
                failure = f"{target}: closed"
                continue
            if answer.header.error.type != pdpb.OK or not answer.header.cluster_id:
                failure = f"{target}: {answer.header.error.message or 'no cluster id'}"
                continue
            answers.append(answer)
            leaders = Counter(target_of(a.leader.client_urls) for a in answers if a.leader.client_urls)
            if leaders and leaders.most_common(1)[0][1] >= wanted:
                break
        return answers, failure


def target_of(urls: Iterable[str]) -> str:
    """``host:port`` of the first of a member's client URLs."""
    return urlsplit(next(iter(urls), "")).netloc


def reason_of(error: grpc.RpcError) -> str:
    """Code and text of a failed call."""
    call: Any = error
    return f"{call.code().name}: {call.details()}" if hasattr(call, "code") and call.code() else str(error)
