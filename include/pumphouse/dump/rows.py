"""A query's rows as Arrow columns of text, no Python object a row: PyMySQL's session, our reading of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pymysql.constants import COMMAND
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket

from pumphouse.codec import resultrows
from pumphouse.codec.columns import bitmap
from pumphouse.errors import SourceFailed
from pumphouse.mysql import ServerConnection

_READ_BYTES = 1 << 20
_BATCH_BYTES = 4 << 20
_WHOLE_PACKET = 0xFFFFFF


def text_columns(connection: ServerConnection, query: str) -> Iterator[pa.RecordBatch]:
    """Run a query; its rows as batches of large_binary columns ("0", "1", …) of about 4 MiB, NULL where NULL.

    Read to the end or close the connection: what is left of the result lies between it and the next command.

    Raises:
        pymysql.MySQLError: what the server says, also in the middle.
        SourceFailed: the rows make no sense, or the connection ended among them.
    """
    session: Any = connection
    with connection.making_sense():
        session._execute_command(COMMAND.COM_QUERY, query)  # noqa: SLF001
        count = session._read_packet().read_length_encoded_integer()  # noqa: SLF001
        for _ in range(count):
            session._read_packet(FieldDescriptorPacket)  # noqa: SLF001
        session._read_packet()  # noqa: SLF001 -- the end of the columns
        yield from _Rows(session, count).batches()


class _Rows:
    """Bytes that were read and not taken yet, from a packet's first byte on."""

    def __init__(self, session: Any, columns: int) -> None:
        self._file = session._rfile  # noqa: SLF001
        self._columns = columns
        self._names = [str(number) for number in range(columns)]
        self._data = np.empty(_BATCH_BYTES, np.uint8)
        self._used = 0
        self._encoding = session.encoding

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, then nothing: the end packet is read."""
        found = np.zeros(3, np.int64)
        why = resultrows.MORE
        while why != resultrows.END:
            rows, behind, sizes = 0, 0, np.zeros(self._columns, np.int64)
            while True:
                resultrows.scan(self._data, behind, self._used, sizes, found)
                rows, behind, why = rows + int(found[0]), int(found[1]), int(found[2])
                if why != resultrows.MORE or behind >= _BATCH_BYTES:
                    break
                self._read()
            if rows:
                yield self._copy(rows, sizes)
            self._drop(behind)
            if why == resultrows.ERROR:
                MysqlPacket(self._packet(), self._encoding).raise_for_error()
            elif why == resultrows.LARGE:
                yield self._large(self._packet())
            elif why == resultrows.DAMAGED:
                raise SourceFailed("the source's answer makes no sense")

    def _read(self) -> None:
        """Read what is there, at least one byte."""
        if len(self._data) - self._used < _READ_BYTES:
            self._data = np.concatenate([self._data, np.empty(len(self._data), np.uint8)])
        # Not readinto1: with something in its buffer it waits for more all the same.
        got = np.frombuffer(self._file.read1(_READ_BYTES), np.uint8)
        if not len(got):
            raise SourceFailed("the source's answer ended in the middle")
        self._data[self._used : self._used + len(got)] = got
        self._used += len(got)

    def _copy(self, rows: int, sizes: np.ndarray) -> pa.RecordBatch:
        places = np.zeros(self._columns, np.int64)
        np.cumsum(sizes[:-1], out=places[1:])
        out = np.empty(int(sizes.sum()), np.uint8)
        offsets = np.empty(self._columns * (rows + 1), np.int64)
        valid = np.empty(self._columns * rows, np.uint8)
        resultrows.copy(self._data, 0, rows, places, offsets, out, valid)
        arrays = []
        for column in range(self._columns):
            low = int(places[column])
            buffers = [
                bitmap(valid[column * rows : (column + 1) * rows]),
                pa.py_buffer(offsets[column * (rows + 1) : (column + 1) * (rows + 1)]),
                pa.py_buffer(out[low : low + int(sizes[column])]),
            ]
            arrays.append(pa.Array.from_buffers(pa.large_binary(), rows, buffers))
        return pa.RecordBatch.from_arrays(arrays, self._names)

    def _drop(self, upto: int) -> None:
        """Forget the first bytes."""
        left = self._used - upto
        self._data[:left] = self._data[upto : self._used].copy()
        self._used = left

    def _packet(self) -> bytes:
        """The next payload, of one packet or of several that belong together."""
        parts, size = [], _WHOLE_PACKET
        while size == _WHOLE_PACKET:
            header = self._take(4)
            size = int.from_bytes(header[:3], "little")
            parts.append(self._take(size))
        return b"".join(parts)

    def _take(self, size: int) -> bytes:
        have = min(size, self._used)
        data = self._data[:have].tobytes()
        self._drop(have)
        if have < size:
            rest = self._file.read(size - have)
            if len(rest) < size - have:
                raise SourceFailed("the source's answer ended in the middle")
            data += rest
        return data

    def _large(self, payload: bytes) -> pa.RecordBatch:
        """One row of 16 MiB or more."""
        packet: Any = MysqlPacket(payload, self._encoding)
        values = [packet.read_length_coded_string() for _ in range(self._columns)]
        return pa.RecordBatch.from_arrays([pa.array([value], pa.large_binary()) for value in values], self._names)
