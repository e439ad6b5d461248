"""A stand-in for TiKV: stores as real gRPC servers over one `Percolator`, regions that split and move."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from typing import Any, Self

import grpc

from pumphouse.codec.bytes import append_comparable
from pumphouse.proto import errorpb_pb2 as errorpb
from pumphouse.proto import kvrpcpb_pb2 as kvrpcpb
from pumphouse.proto import metapb_pb2 as metapb
from pumphouse.proto.tikvpb_pb2_grpc import TikvServicer, add_TikvServicer_to_server
from pumphouse.rpc.tls import server_credentials
from pumphouse.settings import TlsSettings
from tests.support.pd import StandInPd
from tests.support.percolator import Percolator


def comparable(key: bytes) -> bytes:
    """How regions are bounded."""
    out = bytearray()
    append_comparable(out, key)
    return bytes(out)


class _Store(TikvServicer):
    def __init__(self, tikv: StandInTikv, store_id: int) -> None:
        self._tikv = tikv
        self._id = store_id

    def MvccGetByKey(self, request: Any, context: grpc.ServicerContext) -> kvrpcpb.MvccGetByKeyResponse:
        error = self._tikv.refuse(self._id, request.context, request.key, "look")
        if error is not None:
            return kvrpcpb.MvccGetByKeyResponse(region_error=error)
        if self._tikv.look_error:
            return kvrpcpb.MvccGetByKeyResponse(error=self._tikv.look_error)
        return kvrpcpb.MvccGetByKeyResponse(info=self._tikv.data.look(request.key))

    def KvCheckTxnStatus(self, request: Any, context: grpc.ServicerContext) -> kvrpcpb.CheckTxnStatusResponse:
        error = self._tikv.refuse(self._id, request.context, request.primary_key, "check")
        if error is not None:
            return kvrpcpb.CheckTxnStatusResponse(region_error=error)
        return self._tikv.data.check(request)


class StandInTikv:
    """Stores 1 to n; region 1 holds everything until it is split. A context manager."""

    def __init__(self, pd: StandInPd, stores: int = 2, *, tls: TlsSettings | None = None) -> None:
        self.data = Percolator()
        self.look_error = ""
        self.asked: list[tuple[str, int, int]] = []  # kind, store, region
        self.once: list[Callable[[], errorpb.Error | None]] = []  # region errors, each for one question
        self._pd = pd
        self._servers: dict[int, grpc.Server] = {}
        self._tls = tls or TlsSettings()
        for store in range(1, stores + 1):
            self._start(store)
        region = metapb.Region(id=1, region_epoch=metapb.RegionEpoch(conf_ver=1, version=1), peers=self._peers(1))
        self.regions: dict[int, tuple[metapb.Region, metapb.Peer]] = {1: (region, region.peers[0])}
        self.tell()

    def _peers(self, region: int) -> list[metapb.Peer]:
        return [metapb.Peer(id=region * 100 + store, store_id=store) for store in self._servers]

    def _start(self, store: int) -> None:
        server = grpc.server(futures.ThreadPoolExecutor(8))
        add_TikvServicer_to_server(_Store(self, store), server)
        credentials, address = server_credentials(self._tls), "127.0.0.1:0"
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        server.start()
        self._servers[store] = server
        self._pd.state.stores[store] = metapb.Store(id=store, address=f"127.0.0.1:{port}")

    def stop(self, store: int) -> None:
        """The store is gone."""
        self._servers.pop(store).stop(0).wait()

    def tell(self) -> None:
        """PD learns how regions are now."""
        self._pd.state.regions = [(_copy(region), peer) for region, peer in self.regions.values()]

    def move(self, region_id: int, store: int) -> None:
        """Another peer leads."""
        region, _ = self.regions[region_id]
        self.regions[region_id] = (region, next(peer for peer in region.peers if peer.store_id == store))

    def split(self, region_id: int, key: bytes, new_id: int) -> None:
        """The part from ``key`` on becomes a region of its own."""
        region, leader = self.regions[region_id]
        left, right = _copy(region), _copy(region)
        left.end_key = right.start_key = comparable(key)
        right.id = new_id
        left.region_epoch.version = right.region_epoch.version = region.region_epoch.version + 1
        del right.peers[:]
        right.peers.extend(self._peers(new_id))
        self.regions[region_id] = (left, leader)
        self.regions[new_id] = (right, next(peer for peer in right.peers if peer.store_id == leader.store_id))

    def refuse(self, store: int, context: kvrpcpb.Context, key: bytes, kind: str) -> errorpb.Error | None:
        """The region error that TiKV would give, or None."""
        self.asked.append((kind, store, context.region_id))
        if self.once:
            return self.once.pop(0)()
        if context.region_id not in self.regions:
            return errorpb.Error(region_not_found=errorpb.RegionNotFound(region_id=context.region_id))
        region, leader = self.regions[context.region_id]
        if leader.store_id != store:
            return errorpb.Error(not_leader=errorpb.NotLeader(region_id=region.id, leader=leader))
        if context.region_epoch != region.region_epoch:
            return errorpb.Error(epoch_not_match=errorpb.EpochNotMatch(current_regions=[region]))
        place = comparable(key)
        if place < region.start_key or (region.end_key and place >= region.end_key):
            return errorpb.Error(key_not_in_region=errorpb.KeyNotInRegion(key=key, region_id=region.id))
        return None

    def __enter__(self) -> Self:
        """All stores run."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        for server in self._servers.values():
            server.stop(0).wait()


def _copy(region: metapb.Region) -> metapb.Region:
    copy = metapb.Region()
    copy.CopyFrom(region)
    return copy
