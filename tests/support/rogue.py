"""A server that speaks MySQL's protocol as far as it pays: it asks for passwords and files, and answers what it likes."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

OK = b"\x00\x00\x00\x02\x00\x00\x00"
_SSL = 0x0800


def text_rows(*rows: tuple[str, ...]) -> list[bytes]:
    """Packets of a result set of texts."""
    width = len(rows[0])
    column = b"\x03def\x00\x00\x00\x01c\x01c\x0c" + struct.pack("<HIBHBH", 45, 255, 253, 0, 0, 0)
    end = b"\xfe\x00\x00\x02\x00"
    lines = [b"".join(bytes([len(value)]) + value.encode() for value in row) for row in rows]
    return [bytes([width]), *([column] * width), end, *lines, end]


@dataclass
class Rogue:
    """``asks``: packets of its own before it lets a client in. ``answer``: a statement -> packets.

    ``received`` is every packet of every client, in the clear; with ``goes`` it hangs up after its next answer.
    """

    asks: list[bytes] = field(default_factory=list)
    answer: Callable[[bytes], list[bytes]] = lambda _: [OK]
    plugin: bytes = b"mysql_native_password"
    certificate: tuple[Path, Path] | None = None
    received: list[bytes] = field(default_factory=list)
    port: int = 0
    goes: bool = False

    @contextlib.contextmanager
    def serving(self) -> Iterator[int]:
        """Its port on the loopback, as long as the block lasts."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            yield self.port

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), contextlib.ExitStack() as hold:
            hold.enter_context(client)
            low = 0xF7FF & ~_SSL | (_SSL if self.certificate else 0)
            greeting = b"\x0a10.11.14-MariaDB\x00" + struct.pack("<I", 7) + b"12345678\x00" + struct.pack("<H", low)
            greeting += b"\x2d" + struct.pack("<HHB", 2, 0x00FF, 21) + b"\x00" * 10 + b"123456789012\x00"
            _send(client, 0, greeting + self.plugin + b"\x00")
            number = self._receive(client)
            if self.certificate:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*self.certificate)
                client = hold.enter_context(context.wrap_socket(client, server_side=True))
                number = self._receive(client)
            for packet in self.asks:
                _send(client, number + 1, packet)
                number = self._receive(client)
            _send(client, number + 1, OK)
            while True:
                self._receive(client)
                for number, packet in enumerate(self.answer(self.received[-1][1:]), 1):
                    _send(client, number, packet)
                if self.goes:
                    return

    def _receive(self, client: socket.socket) -> int:
        header = _exactly(client, 4)
        self.received.append(_exactly(client, int.from_bytes(header[:3], "little")))
        return header[3]


def _send(client: socket.socket, number: int, body: bytes) -> None:
    client.sendall(struct.pack("<I", len(body))[:3] + bytes([number % 256]) + body)


def _exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
