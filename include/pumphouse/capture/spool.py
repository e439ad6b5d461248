"""A transaction that is larger than a group: its rows lie in a file until all of it was read and is sent.

The file has no name, so none is left behind by a process that is killed.
"""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pumphouse.codec.payload import around_prewrite
from pumphouse.errors import CaptureRefused
from pumphouse.model.binlog import MAX_TRANSACTION_BYTES
from pumphouse.model.tso import Tso


class Spool:
    """Parts of a prewrite value, one behind the other, below ``head``, its first bytes."""

    def __init__(self, directory: Path, gtid: str) -> None:
        self._directory = directory
        self._gtid = gtid
        self._size = 0
        self._turn = threading.Lock()  # a try that ran out of time may still read it
        with self._refused():
            self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - an entry holds it, and is tried again
        weakref.finalize(self, self._file.close)
        self.head = b""

    def add(self, part: bytes) -> None:
        """One more; CaptureRefused once it is more than a Pump takes, or the disk."""
        with self._refused():
            self._file.write(part)
            self._file.flush()
        self._size += len(part)
        if self._size > MAX_TRANSACTION_BYTES:
            raise CaptureRefused(
                f"the transaction {self._gtid} has more than {MAX_TRANSACTION_BYTES} bytes, the limit of one",
                hint="`pumphouse capture run --anew` goes on behind it (docs/capture.md)",
                place=self._gtid,
            )

    def __len__(self) -> int:
        return len(self.head) + self._size if self._size else 0

    def read(self) -> bytes:
        """All of it, without the head."""
        with self._turn:
            self._file.seek(0)
            return self._file.read()

    @contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CaptureRefused(
                f"the rows of the transaction {self._gtid} were not written to {self._directory}: {error}",
                hint="make room there (capture.directory), then start the capture again: it reads the transaction anew",
                place=self._gtid,
            ) from error


@dataclass(frozen=True, slots=True)
class SpooledPrewrite:
    """A P (`pumphouse.client.pump.Payload`) whose value is read when it is sent."""

    start_ts: Tso
    key: bytes
    value: Spool

    def __len__(self) -> int:
        return sum(map(len, self._around())) + len(self.value)

    def __bytes__(self) -> bytes:
        before, behind = self._around()
        return b"".join((before, self.value.head, self.value.read(), behind))

    def _around(self) -> tuple[bytes, bytes]:
        return around_prewrite(self.start_ts, self.key, len(self.value))
