"""A stand-in for PD: real gRPC servers that share one state, with leader changes, silences and a real etcd behind them.

Its clock, service safe points and refusals follow PD's rules; what a test sets on the state happens at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any, Self

import grpc

from pumphouse.model.tso import compose
from pumphouse.proto import metapb_pb2 as metapb
from pumphouse.proto import pdpb_pb2 as pdpb
from pumphouse.proto.pdpb_pb2_grpc import PDServicer, add_PDServicer_to_server
from pumphouse.rpc.tls import server_credentials
from pumphouse.settings import TlsSettings

GC_WORKER = "gc_worker"


@dataclass
class PdState:
    """What all members know."""

    cluster_id: int = 7_000_000_000_000_000_001
    leader: int | None = 0
    suffix_bits: int = 0
    last: int = 0  # logical counter is part of it
    tso_requests: list[int] = field(default_factory=list)  # counts, as they came
    tso_streams: int = 0
    bootstrapped: bool = True  # it has a store
    mute: bool = False  # the leader takes requests for timestamps and says nothing
    spoil: Callable[[pdpb.TsoResponse], None] | None = None
    gc_safe_point: int = 0
    services: dict[str, tuple[int, float]] = field(default_factory=dict)  # id -> safe point, expiry
    regions: list[tuple[metapb.Region, metapb.Peer]] = field(default_factory=list)
    stores: dict[int, metapb.Store] = field(default_factory=dict)
    region_questions: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def allocate(self, count: int) -> int:
        """The largest of ``count`` fresh timestamps."""
        with self.lock:
            step = 1 << self.suffix_bits
            first = max(self.last + step, compose(int(time.time() * 1000)))
            first += -first % step
            if (first & 0x3FFFF) + (count - 1) * step > 0x3FFFF:
                first = compose((first >> 18) + 1)
            self.last = first + (count - 1) * step
            return self.last

    def smallest_service(self) -> tuple[str, int, float]:
        """As PD: expired ones are dropped, GC's own is always there."""
        with self.lock:
            now = time.time()
            self.services = {name: found for name, found in self.services.items() if found[1] > now}
            self.services.setdefault(GC_WORKER, (0, float("inf")))
            name = min(self.services, key=lambda each: self.services[each][0])
            return name, *self.services[name]

    def hold(self, name: str, safe_point: int, ttl_s: int) -> int:
        """Set a service's safe point as PD does; the smallest of all."""
        with self.lock:
            if ttl_s <= 0:
                self.services.pop(name, None)
            smallest = self.smallest_service()[1]
            if ttl_s > 0 and safe_point >= smallest:
                self.services[name] = (safe_point, time.time() + ttl_s)
                smallest = self.smallest_service()[1]
            return smallest

    def collect(self, wanted: int) -> int:
        """TiDB's GC worker wants to go to ``wanted``: where it may go. It destroys ranges before PD hears of it."""
        with self.lock:
            self.smallest_service()
            current = self.services[GC_WORKER][0]
            if wanted > current:
                self.services[GC_WORKER] = (wanted, float("inf"))
            return self.smallest_service()[1]


class _Member(PDServicer):
    def __init__(self, pd: StandInPd, number: int) -> None:
        self._pd = pd
        self._number = number

    def _header(self) -> pdpb.ResponseHeader:
        return pdpb.ResponseHeader(cluster_id=self._pd.state.cluster_id)

    def _leads(self, request: Any, context: grpc.ServicerContext) -> None:
        state = self._pd.state
        if request.header.cluster_id != state.cluster_id:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"mismatch cluster id, need {state.cluster_id} but got {request.header.cluster_id}",
            )
        if state.leader != self._number:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not leader")

    def GetMembers(self, request: Any, context: grpc.ServicerContext) -> pdpb.GetMembersResponse:
        state = self._pd.state
        members = [self._pd.member(number) for number in range(len(self._pd.ports))]
        leader = members[state.leader] if state.leader is not None else None
        return pdpb.GetMembersResponse(header=self._header(), members=members, leader=leader, etcd_leader=leader)

    def Tso(self, requests: Iterator[pdpb.TsoRequest], context: grpc.ServicerContext) -> Iterator[pdpb.TsoResponse]:
        state = self._pd.state
        state.tso_streams += 1
        for request in requests:
            self._leads(request, context)
            state.tso_requests.append(request.count)
            if state.mute:
                continue
            last = state.allocate(request.count)
            response = pdpb.TsoResponse(
                header=self._header(),
                count=request.count,
                timestamp=pdpb.Timestamp(physical=last >> 18, logical=last & 0x3FFFF, suffix_bits=state.suffix_bits),
            )
            if state.spoil is not None:
                state.spoil(response)
            yield response

    def GetRegion(self, request: pdpb.GetRegionRequest, context: grpc.ServicerContext) -> pdpb.GetRegionResponse:
        self._leads(request, context)
        state = self._pd.state
        state.region_questions += 1
        for region, leader in state.regions:
            if region.start_key <= request.region_key and (not region.end_key or request.region_key < region.end_key):
                return pdpb.GetRegionResponse(header=self._header(), region=region, leader=leader)
        return pdpb.GetRegionResponse(header=self._header())

    def GetStore(self, request: pdpb.GetStoreRequest, context: grpc.ServicerContext) -> pdpb.GetStoreResponse:
        self._leads(request, context)
        return pdpb.GetStoreResponse(header=self._header(), store=self._pd.state.stores.get(request.store_id))

    def GetGCSafePoint(
        self, request: pdpb.GetGCSafePointRequest, context: grpc.ServicerContext
    ) -> pdpb.GetGCSafePointResponse:
        self._leads(request, context)
        return pdpb.GetGCSafePointResponse(header=self._header(), safe_point=self._pd.state.gc_safe_point)

    def UpdateServiceGCSafePoint(
        self, request: pdpb.UpdateServiceGCSafePointRequest, context: grpc.ServicerContext
    ) -> pdpb.UpdateServiceGCSafePointResponse:
        self._leads(request, context)
        if not self._pd.state.bootstrapped:
            error = pdpb.Error(type=pdpb.NOT_BOOTSTRAPPED, message="cluster is not bootstrapped")
            return pdpb.UpdateServiceGCSafePointResponse(header=pdpb.ResponseHeader(error=error))
        smallest = self._pd.state.hold(request.service_id.decode(), request.safe_point, request.TTL)
        return pdpb.UpdateServiceGCSafePointResponse(header=self._header(), min_safe_point=smallest)


class _Proxy(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Passes etcd's services on, bytes as they are."""

    def __init__(self, etcd: str) -> None:
        self._channel = grpc.insecure_channel(etcd)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method
        if not method.startswith("/etcdserverpb."):
            return None

        def forward(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            call: Any = self._channel.stream_stream(method, _as_is, _as_is)(requests)
            context.add_callback(call.cancel)
            try:
                yield from call
            except grpc.RpcError:
                context.abort(call.code(), call.details() or "")

        return grpc.stream_stream_rpc_method_handler(forward)

    def close(self) -> None:
        self._channel.close()


def _as_is(message: bytes) -> bytes:
    return message


class StandInPd:
    """Some members on ports of their own; a context manager."""

    def __init__(self, members: int = 1, *, etcd: str = "", tls: TlsSettings | None = None) -> None:
        self.state = PdState()
        self.ports: list[int] = [0] * members
        self._servers: list[grpc.Server | None] = [None] * members
        self._etcd = etcd
        self._proxies: list[_Proxy] = []
        self._tls = tls or TlsSettings()
        for number in range(members):
            self.start(number)

    @property
    def url(self) -> str:
        """Cluster URL with every member."""
        return "pd://" + ",".join(self.addresses)

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of each member."""
        return [f"127.0.0.1:{port}" for port in self.ports]

    def member(self, number: int) -> pdpb.Member:
        """As `GetMembers` lists it."""
        scheme = "https" if self._tls.enabled else "http"
        return pdpb.Member(
            name=f"pd-{number}", member_id=number + 1, client_urls=[f"{scheme}://{self.addresses[number]}"]
        )

    def start(self, number: int) -> None:
        """Start, or start again on the same port."""
        server = grpc.server(futures.ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        add_PDServicer_to_server(_Member(self, number), server)
        if self._etcd:
            proxy = _Proxy(self._etcd)
            self._proxies.append(proxy)
            server.add_generic_rpc_handlers((proxy,))
        credentials, address = server_credentials(self._tls), f"127.0.0.1:{self.ports[number]}"
        self.ports[number] = (
            server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        )
        server.start()
        self._servers[number] = server

    def stop(self, number: int) -> None:
        """The member is gone; its streams break."""
        server, self._servers[number] = self._servers[number], None
        if server is not None:
            server.stop(0).wait()

    def __enter__(self) -> Self:
        """All members run."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        for number in range(len(self.ports)):
            self.stop(number)
        for proxy in self._proxies:
            with contextlib.suppress(Exception):
                proxy.close()
