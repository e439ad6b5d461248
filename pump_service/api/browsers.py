"""What a web page makes a browser send is no caller of ours (row W8): DNS rebinding, forms, links.

A page may point its own name at our address, and its browser then takes us for the page's server: such requests name a
host that is not ours. A page may also send forms and plain requests to any address: those carry the page's origin.
gRPC needs neither check: a browser speaks HTTP/2 only over TLS, and may not send gRPC's content type unasked.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

ANY = "*"


class Names:
    """The names that this Pump goes by; any address is one, because nobody can point an address elsewhere."""

    def __init__(self, addresses: Iterable[str], more: Iterable[str] = ()) -> None:
        """``addresses``: ``host:port`` that are listened on or advertised; ``more``: host names, ``*`` for all."""
        hosts = (_host(each) for each in addresses)
        self._names = {"localhost", socket.gethostname().lower(), *hosts, *(each.lower() for each in more)}

    def refusal(self, method: str, headers: Mapping[str, str], *, acts: bool) -> tuple[int, str] | None:
        """Status and text for a request that a page may have made; None = it was not.

        ``acts``: it is more than a question that everybody may ask, so a page may not even link to it.
        """
        host = headers.get("Host")
        if host is not None and not self._are_ours(host):
            return 421, f"this Pump does not go by the name {_host(host)!r}; pump.http_hosts lists other names\n"
        origin = headers.get("Origin")
        if origin is not None and (host is None or not _same(origin, host)):
            return 403, f"a web page of {origin} sent this {method}; a Pump takes nothing from web pages\n"
        site = headers.get("Sec-Fetch-Site", "none")
        if acts and site not in ("none", "same-origin"):
            return 403, f"a web page of another site sent this {method}; a Pump takes nothing from web pages\n"
        return None

    def _are_ours(self, host: str) -> bool:
        name = _host(host)
        if ANY in self._names or name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _same(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.strip().lower()
    except ValueError:
        return False


def _host(address: str) -> str:
    """The host of ``host``, ``host:port`` or ``[v6]:port``."""
    text = address.strip().lower()
    host = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    return host.removesuffix(".")
