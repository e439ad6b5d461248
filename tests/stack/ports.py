"""Free ports on the loopback."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_TRIES = 1000
# Two of one process may be asked for before the first is listened on.
_given: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on now, and that no outgoing connection gets.

    A server may listen on it half a minute later (Airflow's does). Until then the kernel gives away, port by port,
    those that it has for connections and for listening on port 0. Chosen at random: others choose at the same time.
    """
    upto = _ephemeral_from()
    for _ in range(_TRIES):
        port = SystemRandom().randrange(_LOWEST, upto)
        if port in _given:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ephemeral_from() -> int:
    try:
        low = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        low = 32_768  # Linux's default
    # Where nearly all ports are the kernel's to give away, one of the few others is no better.
    return low if low >= _LOWEST + 1000 else 1 << 16


def listening(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0
