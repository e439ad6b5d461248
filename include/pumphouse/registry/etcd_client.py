"""etcd v3 as far as a registry needs it: range, put, delete, txn and watch, over several endpoints.

The messages are etcd's own (``proto/etcd_rpc.proto``). A call that fails goes on at the next endpoint, but only
when trying again is safe: always for a read, and for a write only when the error shows that etcd has not taken it. Any
other failed write has an unknown outcome: ClusterUnavailable with ``sent=True``, and whoever wrote reads back.

A client may be used by all threads of a process and on both sides of a fork: channels are closed before it and made
again on both sides.
"""

from __future__ import annotations

import ipaddress
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BinlogError, ClusterUnavailable, ConfigError
from pumphouse.library_log import library_logger
from pumphouse.proto import etcd_kv_pb2 as kvpb
from pumphouse.proto import etcd_rpc_pb2 as pb
from pumphouse.proto.etcd_rpc_pb2_grpc import AuthStub, KVStub, WatchStub
from pumphouse.rpc import forks
from pumphouse.rpc.channel import open_channel
from pumphouse.settings import TlsSettings

log = library_logger(__name__)

REQUEST_TIMEOUT_S = 5.0
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 0.5
# A member that has lost its leader refuses at once with this, rather than let the caller wait.
_REQUIRE_LEADER = ("hasleader", "true")
# What etcd says when it has refused a request before proposing it.
_NOT_TAKEN = ("etcdserver: no leader", "etcdserver: too many requests", "etcdserver: not capable")
# What gRPC says when a request never left.
_NOT_SENT = ("failed to connect", "DNS resolution failed")
# What etcd says when its quota is used up.
_FULL = "database space exceeded"
_FULL_HINT = "compact and defragment etcd, disarm its alarm, and run it with --auto-compaction-retention=1h"
_UNCERTAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class Compacted(BinlogError):
    """History from a revision on was asked for that etcd has already dropped. Facts: revision (the oldest kept)."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key as it is at some revision."""

    key: bytes
    value: bytes
    mod_revision: int  # revision of the last write to the key; 0 = the key does not exist
    version: int  # writes since the key was created


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Keys of a range in order, and the revision of the store that they were read at."""

    kvs: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Outcome of a transaction; ``ranges`` are the answers to the `get_op` of the branch that ran, in order."""

    succeeded: bool
    revision: int
    ranges: tuple[RangeResult, ...]


@dataclass(slots=True)
class _Stubs:
    """One open channel."""

    channel: grpc.Channel
    kv: Any
    watch: Any
    auth: Any


@dataclass(slots=True)
class _Local:
    """What belongs to one process; replaced by a new one at a fork."""

    pid: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    stubs: dict[int, _Stubs] = field(default_factory=dict)
    token: str = ""


class EtcdClient:
    """Client of one etcd cluster, which may be the one inside PD."""

    def __init__(
        self,
        endpoints: Sequence[str],
        tls: TlsSettings | None = None,
        *,
        user: str = "",
        password: str = "",
        timeout_s: float = REQUEST_TIMEOUT_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Connects on first use.

        Args:
            endpoints: ``host:port`` of the members, tried in this order.
            tls: certificates; encrypted when a CA is set.
            user: etcd user; empty = no authentication.
            password: its password. Without TLS it can be read on the way, which is logged as a warning.
            timeout_s: time of one call over all endpoints, connecting included.
            clock: time.
        """
        if not endpoints:
            raise ConfigError("the cluster URL names no etcd", hint="as in etcd://10.0.0.1:2379,10.0.0.2:2379")
        self.endpoints = tuple(endpoints)
        self.clock = clock
        self._tls = tls or TlsSettings()
        self._user, self._password = user, password
        if user and not self._tls.enabled:
            in_clear = [endpoint for endpoint in self.endpoints if not _is_this_machine(endpoint)]
            if in_clear:
                log.warning(
                    "etcd_password_in_clear",
                    endpoints=in_clear,
                    user=user,
                    hint="set tls.ca: without it the password and all that etcd holds can be read on the network",
                )
        self._timeout_s = timeout_s
        # With several endpoints a call leaves time for two more after one that does not answer.
        self._try_s = timeout_s if len(self.endpoints) == 1 else max(timeout_s / 3, 0.5)
        self._at = 0
        self._closed = False
        self._local = _Local(os.getpid())
        forks.close_at_fork(self)

    # Reading

    def range(self, key: bytes, range_end: bytes = b"", *, revision: int = 0) -> RangeResult:
        """Keys in [key, range_end), or the one key when range_end is empty; linearizable.

        Raises:
            Compacted: ``revision`` is not kept any more.
            ClusterUnavailable: no answer in time.
        """
        request = pb.RangeRequest(key=key, range_end=range_end, revision=revision)
        return _range_result(self._call(lambda stubs: stubs.kv.Range, request, safe=True))

    def prefix(self, prefix: bytes) -> RangeResult:
        """All keys that begin with a prefix."""
        return self.range(prefix, end_of_prefix(prefix))

    def get(self, key: bytes, *, revision: int = 0) -> KeyValue | None:
        """One key, or None."""
        return next(iter(self.range(key, revision=revision).kvs), None)

    # Writing

    def put(self, key: bytes, value: bytes) -> int:
        """Write a key whatever it holds; returns the revision. Trying again is the caller's choice."""
        answer = self._call(lambda stubs: stubs.kv.Put, pb.PutRequest(key=key, value=value), safe=False)
        return int(answer.header.revision)

    def delete(self, key: bytes, range_end: bytes = b"") -> int:
        """Delete a key or a range; returns how many there were. Deleting again is safe and done."""
        request = pb.DeleteRangeRequest(key=key, range_end=range_end)
        return int(self._call(lambda stubs: stubs.kv.DeleteRange, request, safe=True).deleted)

    def txn(
        self,
        compare: Sequence[pb.Compare],
        success: Sequence[pb.RequestOp],
        failure: Sequence[pb.RequestOp] = (),
    ) -> TxnResult:
        """If all comparisons hold do the one, else the other, atomically; see `mod_is`, `put_op` and their like.

        Raises:
            ClusterUnavailable: no answer; with ``sent=True`` it may have been done, or may yet be.
        """
        request = pb.TxnRequest(compare=compare, success=success, failure=failure)
        answer = self._call(lambda stubs: stubs.kv.Txn, request, safe=False)
        ranges = tuple(_range_result(op.response_range) for op in answer.responses if op.HasField("response_range"))
        return TxnResult(answer.succeeded, answer.header.revision, ranges)

    def compact(self, revision: int) -> None:
        """Let etcd drop the history below a revision."""
        self._call(lambda stubs: stubs.kv.Compact, pb.CompactionRequest(revision=revision), safe=False)

    # Watching

    def open_watch(self, requests: Any) -> Any:
        """The raw watch stream at the present endpoint; `pumphouse.registry.etcd_watch` makes an iterator of it."""
        stubs = self._stubs()
        return stubs.watch.Watch(requests, metadata=self._metadata(stubs))

    def failed(self, at: int) -> None:
        """The endpoint with this index did not answer: go on at the next one."""
        if at == self._at:
            self._at = (at + 1) % len(self.endpoints)

    @property
    def at(self) -> int:
        """Index of the endpoint in use."""
        return self._at

    def forget_token(self) -> None:
        """Authenticate again at the next call."""
        self._local.token = ""

    # Life

    def before_fork(self) -> None:
        """Close the channels; see `pumphouse.rpc.forks`."""
        old, self._local = self._local, _Local(os.getpid())
        for stubs in old.stubs.values():
            stubs.channel.close()

    def close(self) -> None:
        """Close the channels; calls under way fail."""
        self._closed = True
        self.before_fork()

    # Inside

    def _call(self, method: Callable[[_Stubs], Any], request: Any, *, safe: bool) -> Any:
        until = self.clock.monotonic() + self._timeout_s
        wait = _FIRST_WAIT_S
        renewed = False
        while True:
            at = self._at
            left = max(until - self.clock.monotonic(), 0.001)
            try:
                stubs = self._stubs()
                return method(stubs)(request, timeout=min(left, self._try_s), metadata=self._metadata(stubs))
            except ValueError as error:  # the channel was closed between our look and our call: nothing was sent
                if self._closed:
                    raise ClusterUnavailable(f"the client of {self._name(at)} is closed", url=self._name(at)) from error
                reason, again, sent = str(error), True, False
            except grpc.RpcError as error:
                code, reason = _code_of(error)
                if self._user and not renewed and _is_stale_token(code, reason):
                    renewed = True
                    self.forget_token()
                    continue
                again, sent = self._judge(code, reason, at, safe=safe)
            self.failed(at)
            if not again or self._closed or self.clock.monotonic() + wait >= until:
                raise ClusterUnavailable(
                    f"etcd at {self._name(at)} did not answer: {reason}",
                    hint=_FULL_HINT if _FULL in reason else "is etcd running, and has it a leader? See cluster.url",
                    url=self._name(at),
                    sent=sent,
                )
            self.clock.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT_S)

    def _judge(self, code: grpc.StatusCode, reason: str, at: int, *, safe: bool) -> tuple[bool, bool]:
        """Whether to try again, and whether etcd may have done it; raises what no other try would change."""
        if code == grpc.StatusCode.OUT_OF_RANGE and "compacted" in reason:
            raise Compacted(f"etcd at {self._name(at)}: {reason}")
        if (
            code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
            or "user name is empty" in reason
        ):
            raise ConfigError(
                f"etcd at {self._name(at)} refuses user {self._user!r}: {reason}",
                hint="see the settings cluster.user and cluster.password",
                url=self._name(at),
            )
        if code not in _UNCERTAIN:
            raise ClusterUnavailable(f"etcd at {self._name(at)}: {reason}", url=self._name(at), sent=False)
        if _FULL in reason:  # refused, and for longer than anyone would wait
            return False, False
        not_done = any(text in reason for text in _NOT_TAKEN) or any(text in reason for text in _NOT_SENT)
        return safe or not_done, not (safe or not_done)

    def _stubs(self) -> _Stubs:
        at = self._at
        local = self._local
        if local.pid == os.getpid() and (found := local.stubs.get(at)) is not None:
            return found
        with forks.no_fork():
            if self._closed:
                raise ValueError("closed")
            if self._local.pid != os.getpid():
                self._local = _Local(os.getpid())
            local = self._local
            with local.lock:
                if at not in local.stubs:
                    channel = open_channel(self.endpoints[at], self._tls)
                    local.stubs[at] = _Stubs(channel, KVStub(channel), WatchStub(channel), AuthStub(channel))
                return local.stubs[at]

    def _metadata(self, stubs: _Stubs) -> list[tuple[str, str]]:
        if not self._user:
            return [_REQUIRE_LEADER]
        local = self._local
        if not local.token:
            request = pb.AuthenticateRequest(name=self._user, password=self._password)
            try:
                local.token = stubs.auth.Authenticate(request, timeout=self._try_s).token
            except grpc.RpcError as error:
                code, reason = _code_of(error)
                if "authentication is not enabled" in reason:
                    return [_REQUIRE_LEADER]
                if code == grpc.StatusCode.INVALID_ARGUMENT:
                    raise ConfigError(
                        f"etcd refuses user {self._user!r}: {reason}",
                        hint="see the settings cluster.user and cluster.password",
                    ) from error
                raise
        return [_REQUIRE_LEADER, ("token", local.token)]

    def _name(self, at: int) -> str:
        return self.endpoints[at]


def _is_this_machine(endpoint: str) -> bool:
    host = endpoint.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def end_of_prefix(prefix: bytes) -> bytes:
    """The ``range_end`` of all keys that begin with a prefix."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else b"\x00"


def mod_is(key: bytes, revision: int) -> pb.Compare:
    """The key was last written at this revision; 0 = it does not exist."""
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key, mod_revision=revision)


def value_is(key: bytes, value: bytes) -> pb.Compare:
    """The key exists and holds this."""
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.VALUE, key=key, value=value)


def none_written_since(prefix: bytes, revision: int) -> pb.Compare:
    """No key under the prefix was written after this revision (one may have been deleted)."""
    return pb.Compare(
        result=pb.Compare.LESS,
        target=pb.Compare.MOD,
        key=prefix,
        range_end=end_of_prefix(prefix),
        mod_revision=revision + 1,
    )


def put_op(key: bytes, value: bytes) -> pb.RequestOp:
    """Write a key."""
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value))


def delete_op(key: bytes) -> pb.RequestOp:
    """Delete a key."""
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))


def get_op(key: bytes) -> pb.RequestOp:
    """Read a key."""
    return pb.RequestOp(request_range=pb.RangeRequest(key=key))


def key_value(kv: kvpb.KeyValue) -> KeyValue:
    """Of the wire's."""
    return KeyValue(kv.key, kv.value, kv.mod_revision, kv.version)


def _range_result(answer: pb.RangeResponse) -> RangeResult:
    return RangeResult(tuple(key_value(kv) for kv in answer.kvs), answer.header.revision)


def _code_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = (error.details() if isinstance(error, grpc.Call) else str(error)) or ""
    return code, details or code.name


def _is_stale_token(code: grpc.StatusCode, reason: str) -> bool:
    return code == grpc.StatusCode.UNAUTHENTICATED or "auth token" in reason or "revision of auth store" in reason
