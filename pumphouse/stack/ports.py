"""Free ports on the loopback."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that nobody listens on now. Another process may take it before us: who starts a server retries."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0
