"""A small server for applications: answers Pumps that ask what became of a transaction (``pumphouse.v1.TxnResolver``).

The application gives one function. It registers in the cluster with the prefixes of the prewrite keys that it answers
for, and keeps its heartbeat; a Pump asks the live resolver whose prefix fits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import Self

import grpc

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BinlogError, ClusterMismatch, ConfigError
from pumphouse.library_log import library_logger
from pumphouse.model.address import dialable, joined, reachable
from pumphouse.model.tso import Tso
from pumphouse.proto.pumphouse_pb2 import TxnStatusRequest, TxnStatusResponse
from pumphouse.proto.pumphouse_pb2_grpc import TxnResolverServicer, add_TxnResolverServicer_to_server
from pumphouse.registry.base import STOPPED, Cluster, ResolverRecord
from pumphouse.rpc.channel import SERVER_OPTIONS
from pumphouse.rpc.status import abort_details
from pumphouse.rpc.tls import check_grpc_peer, server_credentials
from pumphouse.settings import TlsSettings

log = library_logger(__name__)

HEARTBEAT_INTERVAL_S = 3.0


class OutcomeKind(StrEnum):
    """What became of a transaction."""

    PENDING = "PENDING"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer. ROLLED_BACK promises that no commit can follow."""

    kind: OutcomeKind
    commit_ts: Tso = Tso(0)


PENDING = Outcome(OutcomeKind.PENDING)
ROLLED_BACK = Outcome(OutcomeKind.ROLLED_BACK)


def committed(commit_ts: Tso) -> Outcome:
    """The transaction committed with that ts."""
    return Outcome(OutcomeKind.COMMITTED, commit_ts)


Answer = Callable[[Tso, bytes, bool], Outcome]
"""(start ts, prewrite key, decide) -> Outcome. With ``decide`` the function must make sure that an open transaction can
not commit any more (write a marker that makes a later commit fail) before it says ROLLED_BACK; without, it only looks,
and says PENDING. Raising means no answer: the Pump waits and asks again."""


class ResolverServer:
    """Serves one resolver until it is closed."""

    def __init__(
        self,
        cluster: Cluster,
        resolver_id: str,
        prefixes: Sequence[bytes],
        answer: Answer,
        *,
        addr: str = "127.0.0.1:0",
        tls: TlsSettings | None = None,
        heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S,
        threads: int = 4,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Listen, register and start the heartbeat.

        Args:
            cluster: where to register. Not closed by the server.
            resolver_id: the same id replaces an earlier registration.
            prefixes: of the prewrite keys that it answers for; ``b""`` = all.
            answer: the application's function; called from several threads.
            addr: ``host:port`` to listen on and to register; port 0 picks one.
            tls: certificates.
            heartbeat_interval_s: well below the ten seconds after which Pumps think it dead.
            threads: questions that are answered at once.
            clock: time.

        Raises:
            ResolverOverlap: another live resolver answers for some of the keys.
            ConfigError: nothing can listen on ``addr``.
        """
        self._cluster = cluster
        self._clock = clock
        self._interval_s = heartbeat_interval_s
        tls = tls or TlsSettings()
        self._server = grpc.server(ThreadPoolExecutor(threads, thread_name_prefix="resolver"), options=SERVER_OPTIONS)
        add_TxnResolverServicer_to_server(_Servicer(cluster.cluster_id(), prefixes, answer, tls), self._server)
        credentials = server_credentials(tls)
        try:
            port = (
                self._server.add_insecure_port(dialable(addr))
                if credentials is None
                else self._server.add_secure_port(dialable(addr), credentials)
            )
        except RuntimeError as error:
            self._server.start()  # its threads run from its making on, and only one that was started stops
            self._server.stop(0).wait()
            raise ConfigError(f"the resolver cannot listen on {addr}: {error}", addr=addr) from error
        self.host = reachable(joined(addr.rpartition(":")[0], port))
        self._record = ResolverRecord(
            resolver_id=resolver_id, host=self.host, prefixes=tuple(prefixes), heartbeat=clock.now()
        )
        self._server.start()
        try:
            cluster.put_resolver(self._record)
        except BaseException:
            self._server.stop(0).wait()
            raise
        self._closed = threading.Event()
        self._beat = threading.Thread(target=self._keep_alive, name="resolver-heartbeat", daemon=True)
        self._beat.start()

    def close(self) -> None:
        """Register as stopped and stop; questions under way are answered.

        Its keys stay claimed: Pumps wait for its next start, whatever else could be asked about them. Only `unregister`
        gives them up. A registry that cannot be reached is only logged: without heartbeats it is seen soon enough.
        """
        self._end(forget=False)

    def unregister(self) -> None:
        """Stop for good: nobody claims its keys any more. Wait until every transaction of them has its outcome."""
        self._end(forget=True)

    def _end(self, *, forget: bool) -> None:
        self._closed.set()
        self._beat.join()
        try:
            registered = {record.resolver_id: record for record in self._cluster.resolvers()}
            mine = registered.get(self._record.resolver_id)
            if mine is not None and mine.host == self.host:  # not one that replaced us
                if forget:
                    self._cluster.delete_resolver(self._record.resolver_id)
                else:
                    self._cluster.put_resolver(replace(self._record, heartbeat=STOPPED))
        except (BinlogError, OSError) as error:
            log.warning("resolver_end_not_registered", resolver_id=self._record.resolver_id, error=str(error))
            if forget:
                raise
        finally:
            self._server.stop(grace=1.0).wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _keep_alive(self) -> None:
        while not self._closed.wait(self._interval_s):
            record = ResolverRecord(
                resolver_id=self._record.resolver_id,
                host=self.host,
                prefixes=self._record.prefixes,
                heartbeat=self._clock.now(),
            )
            try:
                self._cluster.put_resolver(record)
            except (BinlogError, OSError) as error:
                log.warning("resolver_heartbeat_failed", resolver_id=record.resolver_id, error=str(error))


class _Servicer(TxnResolverServicer):
    def __init__(self, cluster_id: int, prefixes: Sequence[bytes], answer: Answer, tls: TlsSettings) -> None:
        self._cluster_id = cluster_id
        self._prefixes = tuple(prefixes)
        self._answer = answer
        self._tls = tls

    def TxnStatus(self, request: TxnStatusRequest, context: grpc.ServicerContext) -> TxnStatusResponse:  # noqa: N802
        """One question of a Pump."""
        try:
            check_grpc_peer(context.auth_context(), self._tls, peer=context.peer())
            self._check_cluster(request.cluster_id)
        except BinlogError as error:
            refuse(context, error)
        start_ts = Tso(request.start_ts)
        if not request.prewrite_key.startswith(self._prefixes):
            # Meant for whoever listened here before. Our store knows nothing of it, which would read "rolled back".
            log.warning("resolver_asked_of_strange_key", start_ts=start_ts, prewrite_key=request.prewrite_key.hex())
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this resolver does not answer for the prewrite key of transaction {start_ts}",
            )
        try:
            outcome = self._answer(start_ts, request.prewrite_key, request.decide)
        except Exception as error:  # noqa: BLE001 - the application's code: any failure of it is "no answer"
            log.warning("resolver_has_no_answer", start_ts=start_ts, error=repr(error))
            context.abort(grpc.StatusCode.UNAVAILABLE, f"no answer for transaction {start_ts}: {error!r}")
        if outcome.kind == OutcomeKind.COMMITTED and outcome.commit_ts <= start_ts:
            log.error("resolver_answer_impossible", start_ts=start_ts, commit_ts=outcome.commit_ts)
            context.abort(grpc.StatusCode.INTERNAL, f"commit ts {outcome.commit_ts} is not above start ts {start_ts}")
        return TxnStatusResponse(outcome=outcome.kind.value, commit_ts=outcome.commit_ts)

    def _check_cluster(self, got: int) -> None:
        if got != self._cluster_id:
            raise ClusterMismatch(
                f"the Pump belongs to cluster {got}, this resolver to {self._cluster_id}",
                got=got,
                want=self._cluster_id,
            )


def refuse(context: grpc.ServicerContext, error: BinlogError) -> None:
    """End a call of a threaded server with our error and its details; does not return."""
    code, details, metadata = abort_details(error)
    context.set_trailing_metadata(metadata)
    context.abort(code, details)
