"""LevelDB index: timestamp -> pointer, and named positions (row P2). The only import of plyvel.

Keys and values are those of the Go Pump. The index is derived from the value log: it is written without sync, and may
be lost or behind at any time. Every LevelDB failure is raised as IndexFailed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plyvel
import structlog
from numpy.typing import NDArray

from pump_service.store.disk import is_full
from pump_service.store.users import Users
from pumphouse import durable
from pumphouse.errors import PumpError
from pumphouse.model.position import ZERO_POINTER, Pointer
from pumphouse.settings import PumpSettings

log = structlog.get_logger(__name__)

_TS = struct.Struct(">3sQ")
_PREFIX = b"ts:"
_POINTER = struct.Struct("<Iq")
_I64 = struct.Struct("<q")
# Key and value behind each other.
_ROW = np.dtype([("prefix", "S3"), ("ts", ">u8"), ("fid", "<u4"), ("offset", "<i8")])
_GC_TS = b"!binlog!gcts"
_MAX_COMMIT_TS = b"!binlog!maxCommitTS"
_HANDLE = b"!binlog!handlePointer"
_HEAD = b"!binlog!headPointer"


# How long a close waits for those who read; a reopen is tried again.
_REOPEN_WITHIN_S = 2.0
_CLOSE_WITHIN_S = 30.0

_IN_USE = "another process has it open: end that one first"
_BUILD_ANEW = "stop the Pump and remove its kv directory: the index is rebuilt from the value log"
DEFAULT_TUNING: dict[str, Any] = {"write_buffer_size": 4 << 20}


def tuning_of(settings: PumpSettings) -> dict[str, Any]:
    """Options of ``plyvel.DB`` from the settings."""
    return {
        "lru_cache_size": settings.index_cache_bytes,
        "block_size": settings.index_block_bytes,
        "block_restart_interval": settings.index_block_restart_interval,
        "max_file_size": settings.index_table_bytes,
        "max_open_files": settings.index_open_tables,
        "write_buffer_size": settings.index_write_buffer_bytes,
    }


class IndexFailed(PumpError):
    """LevelDB did not do what it was asked; the value log is not touched by that."""

    retryable = True


def ts_key(ts: int) -> bytes:
    """``ts:`` and the timestamp, big endian."""
    return _TS.pack(_PREFIX, ts)


class Positions(NamedTuple):
    """What the index says of itself, as it was saved last."""

    head: Pointer | None  # of the last record that was indexed; None = nothing ever was
    handle: Pointer  # of the last record that was passed in order
    watermark: int  # which belongs to `handle`
    gc_ts: int  # the GC point, as the Go Pump keeps it


class Index:
    """``<data_dir>/kv``."""

    def __init__(self, path: Path, db: Any, tuning: Mapping[str, Any]) -> None:
        self._path = path
        self._db = db
        self._tuning = tuning
        # LevelDB is used by the indexer, by pulls and by GC at once; a use behind its close ends the process.
        self._users = Users()
        self._changing = threading.Lock()  # the indexer's puts against GC's deletes

    @classmethod
    def open(cls, path: Path, tuning: Mapping[str, Any] | None = None) -> Index:
        """Open or create. A database that does not open, or whose positions do not read, is moved aside and begun anew.

        Args:
            path: its directory.
            tuning: options of ``plyvel.DB`` (`tuning_of`).

        Raises:
            IndexFailed: the disk is full, or somebody else has it open.
        """
        tuning = DEFAULT_TUNING | dict(tuning or {})
        shutil.rmtree(_dropped(path), ignore_errors=True)
        try:
            return cls(path, _open_whole(path, tuning), tuning)
        except plyvel.Error as error:
            hint = "free some space, then start again" if is_full(error) else _IN_USE if _is_locked(error) else ""
            if hint:
                raise IndexFailed(f"LevelDB in {path} cannot be opened: {error}", hint=hint, path=str(path)) from error
            aside = _aside(path)
            log.warning("index_unreadable", path=str(path), error=str(error), moved_to=str(aside))
            path.rename(aside)
            return cls(path, _open(path, tuning), tuning)

    def reset(self) -> None:
        """Throw everything away; the caller fills it again from the value log.

        Renamed first: a process that is killed in here must not leave a half of it, which opens and looks whole.
        """
        self._db.close()
        dropped = _dropped(self._path)
        shutil.rmtree(dropped, ignore_errors=True)
        self._path.rename(dropped)
        self._db = _open(self._path, self._tuning)
        shutil.rmtree(dropped, ignore_errors=True)

    def reopen(self) -> None:
        """Close and open after a failure: LevelDB refuses further writes once its log failed. Raises IndexFailed.

        Whoever reads finishes first; who begins meanwhile waits.
        """
        with self._changing:
            if not self._users.shut(_REOPEN_WITHIN_S):
                raise IndexFailed(f"LevelDB in {self._path} is in use and is opened again later", path=str(self._path))
            try:
                with self._errors():
                    self._db.close()
                    self._db = _open(self._path, self._tuning)
            finally:
                self._users.open()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (plyvel.Error, RuntimeError, OSError) as error:  # RuntimeError: it is closed, and could not be reopened
            raise self._failed(error) from error

    def _failed(self, error: BaseException) -> IndexFailed:
        hint = _BUILD_ANEW if isinstance(error, plyvel.CorruptionError) else ""
        return IndexFailed(f"LevelDB in {self._path}: {error}", hint=hint, path=str(self._path))

    # -- timestamps: each raises IndexFailed ---------------------------------------------------------------------------

    def get(self, ts: int) -> Pointer | None:
        """Where the binlog with this storage ts lies."""
        return self.get_all([ts])[0]

    def get_all(self, timestamps: Sequence[int]) -> list[Pointer | None]:
        """As `get`, of each."""
        with self._users, self._errors():
            get = self._db.get
            values = [get(ts_key(ts)) for ts in timestamps]
        return [None if value is None else unpack_pointer(value) for value in values]

    def write(self, entries: Iterable[tuple[bytes, bytes]], head: Pointer | None) -> None:
        """Write entries (`rows.Puts`), and with them that everything up to ``head`` (inclusive) is indexed.

        None leaves the head as it is. The head's key is below all timestamps: each table that has it overlaps with all
        others, and LevelDB merges them again and again, where tables of ascending timestamps alone are only moved.
        """
        with self._changing, self._users, self._errors():
            batch = self._db.write_batch()
            put = batch.put
            for key, value in entries:
                put(key, value)
            if head is not None:
                put(_HEAD, _POINTER.pack(*head))
            batch.write()

    def pointers(self, after: int, upto: int) -> Iterator[tuple[int, Pointer]]:
        """(ts, pointer) with after < ts <= upto, ascending, of one moment."""
        if upto > after:
            with self._users, self._errors(), self._range(after, upto) as iterator:
                for key, value in iterator:
                    yield key_ts(key), unpack_pointer(value)

    def columns(
        self, after: int, upto: int, most: int
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.int64]]:
        """As `pointers`, the first ``most`` of them: timestamps, file ids, offsets."""
        joined = b""
        if upto > after:
            # A range is read once; the cache is for single look-ups.
            with self._users, self._errors(), self._range(after, upto, fill_cache=False) as iterator:
                joined = b"".join(chain.from_iterable(islice(iterator, most)))
        rows = np.frombuffer(joined, _ROW)
        return rows["ts"].astype(np.int64), rows["fid"].astype(np.uint32), rows["offset"].astype(np.int64)

    def _range(self, after: int, upto: int, **options: Any) -> Any:
        return self._db.iterator(
            start=ts_key(after), include_start=False, stop=ts_key(upto), include_stop=True, **options
        )

    def last_ts(self) -> int:
        """Largest timestamp in the index, 0 when it is empty."""
        stop = _PREFIX + b"\xff" * 9
        with self._users, self._errors():
            with self._db.iterator(start=ts_key(0), stop=stop, reverse=True) as iterator:
                last = next((key_ts(key) for key, _value in iterator), 0)
            # A block that does not read is passed over; it is told of where an iteration comes to its end.
            with self._db.iterator(start=ts_key(last), stop=stop, include_value=False) as iterator:
                return max((key_ts(key) for key in iterator), default=0)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Callable[[int], Iterator[tuple[bytes, bytes]]]]:
        """The keys of this moment: called with a timestamp it gives raw (key, value) of all below that, ascending."""
        with self._users:
            with self._errors():
                keys = self._db.snapshot()

            def below(ts: int) -> Iterator[tuple[bytes, bytes]]:
                with self._errors(), keys.iterator(start=ts_key(0), stop=ts_key(ts)) as iterator:
                    yield from iterator

            with contextlib.closing(keys):
                yield below

    def delete_unchanged(self, pairs: Sequence[tuple[bytes, bytes]]) -> int:
        """Delete keys that still have these values; returns how many did."""
        deleted = 0
        with self._changing, self._users, self._errors(), self._db.write_batch() as batch:
            for key, value in pairs:
                if self._db.get(key) == value:
                    batch.delete(key)
                    deleted += 1
        return deleted

    # -- named positions: each raises IndexFailed ----------------------------------------------------------------------

    def positions(self) -> Positions:
        """As they were saved last."""
        with self._users, self._errors():
            return _positions(self._db)

    def save_position(self, watermark: int, handle: Pointer) -> None:
        """Persist watermark and handle together."""
        with self._changing, self._users, self._errors(), self._db.write_batch() as batch:
            batch.put(_MAX_COMMIT_TS, _I64.pack(watermark))
            batch.put(_HANDLE, _POINTER.pack(*handle))

    def save_gc_ts(self, ts: int) -> None:
        """Persist the GC point."""
        with self._users, self._errors():
            self._db.put(_GC_TS, _I64.pack(ts))

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close LevelDB; a second call does nothing. Where somebody reads for ever it stays open until the end."""
        if not self._users.shut(_CLOSE_WITHIN_S):
            log.error("index_left_open", path=str(self._path))
            return
        self._db.close()
        self._users.open()

    def close_durably(self) -> None:
        """Close LevelDB, with an empty log, and bring its files to the medium: they are written without sync.

        The log must be empty for a Go Pump. A flush or compaction notes the sequence number of its end;
        batches that came into the log while it ran are below that, and goleveldb skips them silently. Raises OSError.
        """
        # Nothing lies in that range; what is in memory is flushed in any case.
        with self._users:
            self._db.compact_range(start=b"\xff", stop=b"\xff\xff")
        self.close()
        if not self._db.closed:
            raise IndexFailed(f"LevelDB in {self._path} is in use and could not be closed", path=str(self._path))
        for path in self._path.iterdir():
            _fsync(path)
        durable.fsync_dir(self._path)


def key_ts(key: bytes) -> int:
    """Timestamp of a raw key."""
    return int.from_bytes(key[3:], "big")


def unpack_pointer(value: bytes) -> Pointer:
    """Pointer of a raw value."""
    return Pointer(*_POINTER.unpack(value))


def _positions(db: Any) -> Positions:
    head, handle, watermark, gc_ts = map(db.get, (_HEAD, _HANDLE, _MAX_COMMIT_TS, _GC_TS))
    return Positions(
        head=None if head is None else unpack_pointer(head),
        handle=ZERO_POINTER if handle is None else unpack_pointer(handle),
        watermark=0 if watermark is None else _I64.unpack(watermark)[0],
        gc_ts=0 if gc_ts is None else _I64.unpack(gc_ts)[0],
    )


def _open(path: Path, tuning: Mapping[str, Any]) -> Any:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return plyvel.DB(str(path), create_if_missing=True, bloom_filter_bits=10, compression=None, **tuning)


def _open_whole(path: Path, tuning: Mapping[str, Any]) -> Any:
    """Open; plyvel.Error also where a named position lies in a block that rotted."""
    db = _open(path, tuning)
    try:
        _positions(db)
    except plyvel.Error:
        db.close()
        raise
    return db


def _is_locked(error: BaseException) -> bool:
    """Whether LevelDB refused because the database is open already; it has no class of its own for that."""
    return isinstance(error, plyvel.IOError) and f"{error}".startswith(("b'IO error: lock ", "IO error: lock "))


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _dropped(path: Path) -> Path:
    return path.with_name(f"{path.name}.dropped")


def _aside(path: Path) -> Path:
    number = 0
    while (aside := path.with_name(f"{path.name}.broken.{number}")).exists():
        number += 1
    return aside
