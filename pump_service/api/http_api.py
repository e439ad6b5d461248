"""The Pump's HTTP API (row P12): paths, bodies and texts of the Go Pump. Translates only.

Always 200, as there: wrong methods answer 405 and unknown paths 404, everything else is said in the body. With
``tls.cert_allowed_cn`` set a client certificate is checked exactly as on gRPC (row W6). Who may do what is the table's
(`rights`), and what a web page has made a browser send is refused (`browsers`): 403, or 421 for the name.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable

from aiohttp import web

from pump_service.api.browsers import Names
from pump_service.api.operations import Operations
from pump_service.api.rights import Caller, Rights
from pump_service.door.server import peer_of
from pump_service.metrics import PumpMetrics
from pumphouse.errors import BinlogError, PeerRefused
from pumphouse.model.node import NodeState
from pumphouse.model.tso import physical_ms
from pumphouse.rpc.tls import check_http_peer
from pumphouse.settings import TlsSettings

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_INDENTED = "application/json; charset=UTF-8"


class HttpApi:
    """Handlers over Operations."""

    def __init__(
        self, operations: Operations, metrics: PumpMetrics, tls: TlsSettings, rights: Rights, names: Names
    ) -> None:
        self._operations = operations
        self._metrics = metrics
        self._tls = tls
        self._rights = rights
        self._names = names

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[self._authenticate])
        app.router.add_get("/status", self.status)
        app.router.add_get("/drainers", self.drainers)
        app.router.add_put("/state/{node_id}/{action}", self.state)
        app.router.add_get("/debug/binlog/{ts}", self.binlog)
        app.router.add_post("/debug/gc/trigger", self.gc)
        app.router.add_get("/metrics", self.metrics)
        return app

    async def status(self, request: web.Request) -> web.Response:
        """Every registered Pump."""
        del request
        return _compact(await self._operations.http_status())

    async def drainers(self, request: web.Request) -> web.Response:
        """Every registered Drainer; null if there is none."""
        del request
        try:
            nodes = await self._operations.drainers()
        except BinlogError as error:
            return web.Response(text=f"{error}\n")
        return _compact([node.to_dict() for node in nodes] or None)

    async def state(self, request: web.Request) -> web.Response:
        """``pause`` or ``close`` this Pump; the answer comes at once, the change takes its time."""
        return _said(*self._operations.change_state(request.match_info["node_id"], request.match_info["action"]))

    async def binlog(self, request: web.Request) -> web.Response:
        """A dump of the binlog stored under a ts."""
        text = request.match_info["ts"]
        if not text.isdecimal() or int(text) >= 1 << 63:
            return web.Response(text=f"invalid parameter ts: {text}")
        try:
            return web.Response(text=await self._operations.dump(int(text)))
        except BinlogError as error:
            return web.Response(text=str(error))

    async def gc(self, request: web.Request) -> web.Response:
        """Start a GC run."""
        del request
        return web.Response(text="trigger gc success\n" if self._operations.start_gc() else "gc is working\n")

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text; without the consumers where the registry does not answer."""
        del request
        self._metrics.consumers.clear()
        with contextlib.suppress(BinlogError, OSError):
            for node in await self._operations.drainers():
                if node.state is not NodeState.OFFLINE:
                    self._metrics.consumers.labels(node.node_id).set(physical_ms(node.max_commit_ts))
        return web.Response(
            body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        certificate = None
        if request.transport is not None:
            ssl_object = request.transport.get_extra_info("ssl_object")
            certificate = ssl_object.getpeercert() if ssl_object is not None else None
        method = "GET" if request.method == "HEAD" else request.method
        resource = request.match_info.route.resource
        what = f"{method} {resource.canonical}" if resource is not None else ""  # none: 404 or 405 to everybody
        if (page := self._names.refusal(method, request.headers, acts=not self._rights.is_open(what))) is not None:
            return web.Response(status=page[0], text=page[1])
        try:
            check_http_peer(certificate, self._tls, peer=str(request.remote))
            peer = peer_of(request.transport) if request.transport is not None else "gone:"
            caller = Caller(peer, request.headers.get("Authorization", ""))
            if what and (refused := self._rights.refusal(what, caller)) is not None:
                raise refused
        except PeerRefused as error:
            # binlogctl reads the answer to PUT as it reads any other.
            return (
                _said(403, str(error), status=403) if method == "PUT" else web.Response(status=403, text=f"{error}\n")
            )
        return await handler(request)


def _said(code: int, message: str, *, status: int = 200) -> web.Response:
    body = json.dumps({"message": message, "code": code, "data": None}, indent=2, ensure_ascii=False)
    return web.Response(status=status, body=body.encode(), headers={"Content-Type": _INDENTED})


def _compact(data: object) -> web.Response:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False) + "\n"
    return web.Response(text=text, content_type="application/json")
