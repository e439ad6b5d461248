"""What the Pump asks PD beside its etcd: cluster id, timestamps, regions and stores of TiKV, GC safe points."""

from __future__ import annotations

from collections.abc import Sequence

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import ClusterUnavailable
from pumphouse.model.tso import Tso
from pumphouse.proto import metapb_pb2 as metapb
from pumphouse.proto import pdpb_pb2 as pdpb
from pumphouse.registry.pd_members import Members, PdOptions, parse_endpoints
from pumphouse.registry.pd_tso import TsoStream
from pumphouse.registry.regions import Located, RegionCache
from pumphouse.settings import TlsSettings


class PdClient:
    """One PD cluster, for any number of threads, on both sides of a fork."""

    def __init__(
        self,
        endpoints: str,
        tls: TlsSettings | None = None,
        options: PdOptions | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Connect.

        Args:
            endpoints: ``host:port[,…]``, each also as http:// or https:// URL.
            tls: certificates; TLS is on when they name a CA.
            options: times and tries.
            clock: for time-outs.

        Raises:
            ConfigError: an address cannot be one, or they belong to different clusters.
            ClusterUnavailable: no member answered.
        """
        tls = tls or TlsSettings()
        self.members = Members(parse_endpoints(endpoints, tls), tls, options, clock)
        try:
            self.members.connect()
        except BaseException:
            self.members.close()
            raise
        self._stream = TsoStream(self.members, clock)
        self._regions = RegionCache()
        self._stores: dict[int, str] = {}

    @property
    def url(self) -> str:
        """``pd://`` and the configured addresses."""
        return self.members.url

    @property
    def cluster_id(self) -> int:
        """Id of the cluster."""
        return self.members.cluster_id

    def tso(self) -> Tso:
        """A fresh timestamp; see `TsoStream.next`."""
        return self._stream.next()

    def tsos(self, count: int) -> Sequence[Tso]:
        """So many at once; see `TsoStream.take`."""
        return self._stream.take(count)

    # ---- TiKV's map --------------------------------------------------------------------------------------------

    def locate(self, key: bytes) -> Located:
        """The region of a key in memcomparable form; ClusterUnavailable when PD cannot say."""
        known = self._regions.get(key)
        if known is not None:
            return known
        answer: pdpb.GetRegionResponse = self.members.call(
            "the region of a key",
            lambda stub, timeout: stub.GetRegion(
                pdpb.GetRegionRequest(header=self.members.header, region_key=key), timeout=timeout
            ),
        )
        if not answer.region.id or not answer.region.peers:
            raise ClusterUnavailable(f"{self.url} knows no region of key {key.hex()}", url=self.url)
        voters = [peer for peer in answer.region.peers if peer.role == metapb.Voter and not peer.is_witness]
        leader = answer.leader if answer.leader.id else (voters or list(answer.region.peers))[0]
        located = Located(region=answer.region, leader=leader)
        if not located.holds(key):
            raise ClusterUnavailable(f"{self.url} named a region that does not hold key {key.hex()}", url=self.url)
        self._regions.put(located)
        return located

    def move_leader(self, located: Located, leader: metapb.Peer) -> None:
        """The region's leader is another peer; one that is none of its peers makes the region unknown."""
        if any(peer.id == leader.id and peer.store_id == leader.store_id for peer in located.region.peers):
            self._regions.put(Located(region=located.region, leader=leader))
        else:
            self._regions.forget(located)

    def forget(self, located: Located) -> None:
        """The region is not what it was, or its store does not answer: ask PD again about both."""
        self._regions.forget(located)
        self._stores.pop(located.leader.store_id, None)

    def store_address(self, store_id: int) -> str:
        """``host:port`` of a TiKV store; ClusterUnavailable when it is gone or unknown."""
        known = self._stores.get(store_id)
        if known is not None:
            return known
        answer: pdpb.GetStoreResponse = self.members.call(
            f"the address of store {store_id}",
            lambda stub, timeout: stub.GetStore(
                pdpb.GetStoreRequest(header=self.members.header, store_id=store_id), timeout=timeout
            ),
        )
        if not answer.store.address or answer.store.state == metapb.Tombstone:
            raise ClusterUnavailable(f"{self.url}: store {store_id} has no address any more", url=self.url)
        self._stores[store_id] = answer.store.address
        return answer.store.address

    # ---- GC ----------------------------------------------------------------------------------------------------

    def gc_safe_point(self) -> int:
        """What TiKV's GC may have cleaned up to, inclusive; 0 = nothing yet."""
        answer: pdpb.GetGCSafePointResponse = self.members.call(
            "the GC safe point",
            lambda stub, timeout: stub.GetGCSafePoint(
                pdpb.GetGCSafePointRequest(header=self.members.header), timeout=timeout
            ),
        )
        return answer.safe_point

    def hold_gc(self, service_id: str, safe_point: int, ttl_s: int) -> int:
        """Ask that GC does not pass ``safe_point`` for ``ttl_s`` seconds.

        Returns:
            The smallest safe point of all services, GC's own included. It is at most ``safe_point`` if PD took the
            request; if it is larger, GC may have gone further already and nothing was changed.
        """
        return self._service_safe_point(service_id, safe_point, ttl_s)

    def release_gc(self, service_id: str) -> None:
        """Take the hold away; a missing one is no error."""
        self._service_safe_point(service_id, 0, 0)

    def _service_safe_point(self, service_id: str, safe_point: int, ttl_s: int) -> int:
        answer: pdpb.UpdateServiceGCSafePointResponse = self.members.call(
            "the service safe point",
            lambda stub, timeout: stub.UpdateServiceGCSafePoint(
                pdpb.UpdateServiceGCSafePointRequest(
                    header=self.members.header, service_id=service_id.encode(), TTL=ttl_s, safe_point=safe_point
                ),
                timeout=timeout,
            ),
        )
        return answer.min_safe_point

    def close(self) -> None:
        """End the stream and close the channels."""
        self._stream.close()
        self.members.close()
