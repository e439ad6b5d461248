"""Ports for servers that listen later."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.stack import ports


def test_ports_are_free_differ_and_are_none_that_the_kernel_gives_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = tmp_path / "range"
    spread.write_text("32768\t60999\n")
    monkeypatch.setattr(ports, "_EPHEMERAL", spread)
    given = [ports.free_port() for _ in range(200)]
    assert len(set(given)) == 200
    assert all(10_000 <= port < 32_768 for port in given)
    assert not any(map(ports.listening, given[:20]))


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        monkeypatch.setattr(ports, "_LOWEST", first)
        monkeypatch.setattr(ports, "_ephemeral_from", lambda: first + 2)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", first + 1))
            except OSError:
                pytest.skip("its neighbour is taken too")
        assert ports.free_port() == first + 1
        assert ports.free_port() not in (first, first + 1), "both are gone: one of the kernel's"


@pytest.mark.parametrize("content", [None, "", "words\n", "1024\t65535\n"])
def test_a_range_that_is_unknown_or_nearly_all_leaves_a_choice(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = tmp_path / "range"
    if content is not None:
        spread.write_text(content)
    monkeypatch.setattr(ports, "_EPHEMERAL", spread)
    assert 10_000 <= ports.free_port() < 1 << 16
