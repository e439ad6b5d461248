"""``host:port`` as it is registered, dialed and shown: an IPv6 host stands in brackets."""

from __future__ import annotations

import ipaddress
import socket

_ALL = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound


def joined(host: str, port: int | str) -> str:
    """``127.0.0.1:8250``, ``[::1]:8250``."""
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def dialable(addr: str) -> str:
    """An address with its IPv6 host in brackets, whoever left them out; whatever else it is, unchanged."""
    host, _, port = addr.rpartition(":")
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return addr
    return joined(host, port)


def means_all(addr: str) -> bool:
    """Whether the host of an address means every address of its machine: nobody else can connect to it."""
    return addr.rpartition(":")[0].strip("[]") in _ALL


def reachable(addr: str) -> str:
    """What others connect to: where the host means every address, it is this machine's name."""
    return joined(socket.gethostname(), addr.rpartition(":")[2]) if means_all(addr) else dialable(addr)


def machine_of(addr: str) -> str:
    """What stands before the port of a host:port, in lower case, as names of hosts are compared."""
    return addr.rpartition(":")[0].lower()
