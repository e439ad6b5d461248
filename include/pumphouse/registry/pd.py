"""``pd://host:port[,…]``: the cluster of a TiDB (row W4): PD's id and clock, the registry in the etcd inside PD.

Nodes lie where the Go tools keep them, ``/tidb-binlog/v1/…``; resolvers beside them (`pumphouse.registry.etcd_nodes`).
Plain user names and passwords are not used by PD's etcd; TLS is.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator, Sequence

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BinlogError
from pumphouse.library_log import library_logger
from pumphouse.model.tso import Tso
from pumphouse.registry.etcd_client import EtcdClient
from pumphouse.registry.etcd_nodes import EtcdNodes
from pumphouse.registry.pd_client import PdClient
from pumphouse.registry.pd_members import PdOptions
from pumphouse.settings import TlsSettings

log = library_logger(__name__)

_KEPT_S = 60
_RENEWED_S = 15.0


class PdCluster(EtcdNodes):
    """Cluster on PD. Its connections are made again after a fork."""

    def __init__(
        self,
        endpoints: str,
        tls: TlsSettings | None = None,
        options: PdOptions | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Connect; see `PdClient` for what may be wrong."""
        self.client = PdClient(endpoints, tls, options, clock)
        super().__init__(EtcdClient(self.client.members.endpoints, tls, clock=clock), clock=clock)

    @property
    def url(self) -> str:
        """``pd://`` and the configured addresses."""
        return self.client.url

    def cluster_id(self) -> int:
        """PD's."""
        return self.client.cluster_id

    def tso(self) -> Tso:
        """PD's; one round trip, shared by all threads that wait for one."""
        return self.client.tso()

    def tsos(self, count: int) -> Sequence[Tso]:
        """By few round trips."""
        return self.client.tsos(count)

    @contextlib.contextmanager
    def keep_readable(self, ts: Tso) -> Iterator[None]:
        """Keep TiDB's GC below ts by a service safe point of its own, renewed by a thread."""
        name, ended = f"pumphouse-read-{secrets.token_hex(4)}", threading.Event()

        def renew() -> None:
            while not ended.wait(_RENEWED_S):
                try:
                    self._keep(name, ts)
                except BinlogError as error:
                    log.warning("gc_hold_failed", service=name, reason=error.message)

        self._keep(name, ts)
        thread = threading.Thread(target=renew, name=name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with contextlib.suppress(BinlogError):  # it ends by itself
                self.client.release_gc(name)

    def _keep(self, name: str, ts: Tso) -> None:
        # GC at X takes what newer versions cover up to X inclusive.
        if self.client.hold_gc(name, ts - 1, _KEPT_S) >= ts:
            log.warning("gc_passed_read", service=name, ts=int(ts))

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
        self._etcd.close()

    @property
    def _client(self) -> EtcdClient:
        # Members that PD has taken in since the start are asked too. At the end: the client counts by place.
        known = self._etcd.endpoints
        new = tuple(each for each in self.client.members.endpoints if each not in known)
        if new:
            self._etcd.endpoints = (*known, *new)
        return self._etcd
