"""Who may do what at a Pump (row W8): one table for gRPC on both transports and for HTTP. docs/security.md is its page.

Whoever reaches a port may write, pull and look: TiDB, Drainers and Prometheus need no more and can show no more. What
an operator does needs a proof, and any of three is enough: a client certificate with an allowed name, an operator's
token, or a connection over the loopback or the unix socket. What the table does not list needs a proof as well.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

from pumphouse.errors import PeerRefused
from pumphouse.settings import TlsSettings

_BEARER = "Bearer "


class Right(StrEnum):
    """What a call needs; the operators' are what `pump.open_operations` names."""

    WRITE = "write"
    PULL = "pull"
    LOOK = "look"
    STATE = "state"  # pause or close the Pump
    GC = "gc"  # start a GC run
    ROWS = "rows"  # read any stored binlog by its ts
    SETTLE = "settle"  # say what became of a transaction
    ACCEPT = "accept"  # take a late or orphan commit


EVERYBODY = frozenset({Right.WRITE, Right.PULL, Right.LOOK})

# gRPC: the path. HTTP: the method, then the route as `pump_service.api.http_api` has it.
TABLE: dict[str, Right] = {
    "/binlog.Pump/WriteBinlog": Right.WRITE,
    "/binlog.Pump/PullBinlogs": Right.PULL,
    "/pumphouse.v1.PumpBatch/WriteBinlogs": Right.WRITE,
    "/pumphouse.v1.PumpBatch/PullBatches": Right.PULL,
    "/pumphouse.v1.PumpBatch/Transactions": Right.PULL,
    "/pumphouse.v1.PumpBatch/Status": Right.LOOK,
    "/pumphouse.v1.PumpBatch/Accept": Right.ACCEPT,
    "/pumphouse.v1.PumpBatch/Settle": Right.SETTLE,
    "/pumphouse.v1.PumpBatch/TriggerGc": Right.GC,
    "GET /status": Right.LOOK,
    "GET /drainers": Right.LOOK,
    "GET /metrics": Right.LOOK,
    "GET /debug/binlog/{ts}": Right.ROWS,
    "PUT /state/{node_id}/{action}": Right.STATE,
    "POST /debug/gc/trigger": Right.GC,
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: ``peer`` as gRPC names it (``ipv4:host:port``), ``authorization`` as the header has it."""

    peer: str
    authorization: str = ""

    @property
    def is_local(self) -> bool:
        """Whether the connection comes over the loopback or the unix socket."""
        kind, _, rest = unquote(self.peer).partition(":")
        if kind == "unix":
            return True
        if kind not in ("ipv4", "ipv6"):
            return False
        try:
            address = ipaddress.ip_address(rest.rpartition(":")[0].strip("[]").partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback


def caller_of(context: Any) -> Caller:
    """Who calls, of a gRPC call's context on either transport."""
    shown = dict(context.invocation_metadata() or ()).get("authorization", "")
    return Caller(context.peer(), str(shown))


class Rights:
    """The decision.

    Args:
        tls: with ``cert_allowed_cn`` both ports take no connection without an allowed certificate: that is the proof.
        tokens: of operators; none = nobody has one.
        open_to_all: operations that need no proof.
        trust_loopback: whether a local connection is a proof.
    """

    def __init__(
        self,
        tls: TlsSettings,
        *,
        tokens: Iterable[str] = (),
        open_to_all: Iterable[str] = (),
        trust_loopback: bool = True,
    ) -> None:
        self._certified = tls.enabled and bool(tls.cert_allowed_cn)
        self._tokens = [(_BEARER + token).encode() for token in tokens]
        self._open = EVERYBODY | {Right(name) for name in open_to_all}
        self._trust_loopback = trust_loopback

    def is_open(self, what: str) -> bool:
        """Whether a call of the table needs no proof."""
        return TABLE.get(what) in self._open

    def refusal(self, what: str, caller: Caller) -> PeerRefused | None:
        """Why a caller may not do what the table has under this name; None = it may."""
        if self.is_open(what) or self.proves(caller) or (self._trust_loopback and caller.is_local):
            return None
        right = TABLE.get(what)
        return PeerRefused(
            f"{what.rpartition('/')[2] if what.startswith('/') else what} is for operators, and {caller.peer} "
            f"shows {'a wrong token' if caller.authorization else 'no token'}",
            hint="any of: set cluster.operator_token to the Pump's; call over the loopback of the Pump's machine, if "
            "it listens there; use TLS with tls.cert_allowed_cn; pump.open_operations"
            f"{f' = {right}' if right else ''} on the Pump opens it to everybody (docs/security.md)",
            peer=caller.peer,
        )

    def proves(self, caller: Caller) -> bool:
        """Whether a caller shows a certificate or a token."""
        if self._certified:
            return True
        shown = caller.authorization.encode("utf-8", "surrogateescape")
        # Each is compared: how long it takes says nothing of which one is nearly right.
        return sum(hmac.compare_digest(shown, token) for token in self._tokens) > 0


def exposed(addresses: Iterable[str], tls: TlsSettings) -> tuple[str, ...]:
    """Which of the ``host:port`` that are listened on can be reached from elsewhere, in clear."""
    if tls.enabled:
        return ()
    return tuple(dict.fromkeys(each for each in addresses if not _is_loopback(each.rpartition(":")[0].strip("[]"))))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
