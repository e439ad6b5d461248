"""``etcd://host:port[,host:port…][/root]``: a cluster on a plain etcd, 3.4 or later (row W4).

<root>/pumphouse/v1/cluster     {"format_version":1,"cluster_id":N}; made once, together with the clock
<root>/pumphouse/v1/tso         the last timestamp given out (`pumphouse.registry.etcd_tso`)
<root>/tidb-binlog/v1/…         nodes, as TiDB Binlog keeps them in PD's etcd (`pumphouse.registry.etcd_nodes`)
<root>/pumphouse/v1/resolvers/  registered resolvers
<root>/pumphouse/v1/captures/   registered captures
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import ClusterUnavailable, ConfigError, CorruptionError
from pumphouse.model import strict
from pumphouse.model.tso import Tso
from pumphouse.registry.etcd_client import EtcdClient, get_op, mod_is, put_op
from pumphouse.registry.etcd_nodes import OWN_ROOT, PATIENCE_S, EtcdNodes
from pumphouse.registry.etcd_tso import EtcdTso

FORMAT_VERSION = 1
_RETRY_WAIT_S = 0.1


class EtcdCluster(EtcdNodes):
    """Cluster on etcd. Its connections are made again after a fork."""

    def __init__(self, client: EtcdClient, *, root: str = "", create: bool = True, clock: Clock = SYSTEM_CLOCK) -> None:
        """Open, or make, the cluster under a root; takes the client over.

        Raises:
            ConfigError: there is none and it is not to be made.
            ClusterUnavailable: etcd did not answer.
        """
        super().__init__(client, root=root, clock=clock)
        self._tso_key = f"{root}{OWN_ROOT}/tso".encode()
        self._tso = EtcdTso(client, self._tso_key, clock=clock)
        self._cluster_id = self._open(create=create)

    @property
    def url(self) -> str:
        """``etcd://``, the endpoints and the root."""
        return f"etcd://{','.join(self._client.endpoints)}{self._root}"

    def cluster_id(self) -> int:
        """Random, made with the cluster; positive and below 2^62."""
        return self._cluster_id

    def tso(self) -> Tso:
        """A fresh timestamp; one round trip to etcd, shared by all threads that wait for one."""
        return self._tso.next()

    def tsos(self, count: int) -> Sequence[Tso]:
        """By one round trip."""
        return self._tso.take(count)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _open(self, *, create: bool) -> int:
        key = f"{self._root}{OWN_ROOT}/cluster".encode()
        until = self._clock.monotonic() + PATIENCE_S
        while True:
            kv = self._client.get(key)
            if kv is not None:
                return _read_cluster_id(key, kv.value)
            if not create:
                raise ConfigError(
                    f"there is no cluster at {self.url}",
                    hint="check the setting cluster.url, and that its storage is there. A Pump makes one at its first "
                    "start, not on a data directory that belongs to a cluster already",
                    url=self.url,
                    missing=True,
                )
            wanted = {"format_version": FORMAT_VERSION, "cluster_id": secrets.randbelow((1 << 62) - 1) + 1}
            value = json.dumps(wanted, separators=(",", ":")).encode()
            # A clock that is there without a cluster was left by hand: it goes on and does not begin anew.
            clock = self._client.get(self._tso_key)
            last = b"0" if clock is None else clock.value
            revision = 0 if clock is None else clock.mod_revision
            try:
                self._client.txn(
                    [mod_is(key, 0), mod_is(self._tso_key, revision)],
                    [put_op(key, value), put_op(self._tso_key, last)],
                    [get_op(key)],
                )
            except ClusterUnavailable:
                if self._clock.monotonic() >= until:
                    raise
                self._clock.sleep(_RETRY_WAIT_S)


def _read_cluster_id(key: bytes, value: bytes) -> int:
    name = key.decode()
    try:
        data = strict.loads(value)
        version, cluster_id = data["format_version"], strict.integer(data["cluster_id"], 1, (1 << 64) - 1)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"etcd key {name} names no cluster", path=name, reason=str(error)) from error
    if version != FORMAT_VERSION:
        raise CorruptionError(
            f"etcd key {name} has format_version {version}, this program reads {FORMAT_VERSION}", path=name
        )
    return cluster_id
