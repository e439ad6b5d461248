"""Binlogs for tests of the store, and waiting for it."""

from __future__ import annotations

import contextlib
import errno
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import plyvel
import pytest

from pump_service.store import index as index_module
from pump_service.store import records
from pump_service.store.collected import MOST, CollectedCommits
from pump_service.store.fs import REAL_FS, FileSystem
from pump_service.store.index import Index, IndexFailed, Positions
from pump_service.store.parse import TAILS
from pump_service.store.records import Item, Records
from pump_service.store.rows import Puts
from pump_service.store.store import PullBatch, Store
from pump_service.store.valuelog import ValueLog
from pump_service.store.writelock import WriteLock
from pump_service.store.writer import Writer
from pumphouse.clock import Clock
from pumphouse.errors import BinlogError
from pumphouse.model.position import ZERO_POINTER, Pointer
from pumphouse.proto.binlog_pb2 import Binlog, BinlogType
from pumphouse.settings import PumpSettings
from tests.support import keeper
from tests.support.setclock import QuickClock


@contextmanager
def quick_directory() -> Iterator[Path]:
    """A directory on a file system whose fsync costs nothing, where there is one."""
    with tempfile.TemporaryDirectory(dir=keeper.memory()) as name:
        yield Path(name)


def prewrite(start_ts: int, value: bytes = b"value", key: bytes = b"k") -> Item:
    message = Binlog(
        tp=BinlogType.Prewrite, start_ts=start_ts, commit_ts=0, prewrite_key=key, prewrite_value=value,
        ddl_job_id=0, ddl_schema_state=0,
    )  # fmt: skip
    return Item(message.SerializeToString(), 0, start_ts, 0, key)


def commit(start_ts: int, commit_ts: int, key: bytes = b"k") -> Item:
    message = Binlog(
        tp=BinlogType.Commit, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=key, ddl_job_id=0, ddl_schema_state=0
    )
    return Item(message.SerializeToString(), 1, start_ts, commit_ts)


def rollback(start_ts: int) -> Item:
    message = Binlog(tp=BinlogType.Rollback, start_ts=start_ts, commit_ts=0, ddl_job_id=0, ddl_schema_state=0)
    return Item(message.SerializeToString(), 2, start_ts, 0)


def fake(ts: int) -> Item:
    return records.fake(ts)


def merged(start_ts: int, commit_ts: int, value: bytes = b"value", key: bytes = b"k") -> bytes:
    """What a puller gets for a transaction."""
    return Binlog(
        tp=BinlogType.Commit, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=key, prewrite_value=value,
        ddl_job_id=0, ddl_schema_state=0,
    ).SerializeToString()  # fmt: skip


def as_stored(made: Records, row: int) -> bytes:
    """The payload of a row with the bytes that are put behind it."""
    start = int(made.starts[row])
    payload: bytes = made.data[start : start + int(made.sizes[row])].tobytes()
    return payload + TAILS[int(made.columns.tail[row])]


def puts(timestamps: Iterable[int]) -> Puts:
    """Entries of an index; each timestamp points to the offset of its own number."""
    wanted = list(timestamps)
    made = Puts(len(wanted))
    for ts in wanted:
        made.add(ts, Pointer(0, ts))
    return made


def settings(data_dir: Path, **values: Any) -> PumpSettings:
    """Settings that do not look at the machine's free space."""
    defaults: dict[str, Any] = {
        "stop_write_at_available_bytes": 0, "reserve_bytes": 0, "value_log_file_bytes": 1 << 20, "check_rows": False,
    }  # fmt: skip
    return PumpSettings(data_dir=data_dir, **(defaults | values))


def open_store(data_dir: Path, fs: FileSystem = REAL_FS, clock: Clock | None = None, **values: Any) -> Store:
    """Opened; what fails for a while is tried again soon. `close_stores` closes it if nobody else does."""
    store = Store.open(settings(data_dir, **values), fs=fs, clock=clock or QuickClock())
    _opened.add(store)
    return store


_opened: weakref.WeakSet[Store] = weakref.WeakSet()


def close_stores() -> None:
    """Those that were opened and are not closed."""
    for store in list(_opened):
        store.close()
        _opened.discard(store)


@contextmanager
def gc_in_steps(keys: int, *, most: int = MOST, piece: int = 1 << 16) -> Iterator[None]:
    """GC deletes so many keys at once meanwhile; stores that are opened can note so many young commits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pump_service.store.gc._DELETE_KEYS_AT_ONCE", keys)
        patch.setattr("pump_service.store.opening.CollectedCommits", partial(CollectedCommits, most=most, piece=piece))
        yield


def submit(store: Store, items: Sequence[Item], done: Callable[[list[BinlogError | None]], object]) -> None:
    """Submit items; ``done`` gets a status for each."""
    store.submit(Records.of(items), lambda statuses: void(done([None] * len(items) if statuses is None else statuses)))


def void(_result: object) -> None:
    """For a callback whose result is of no interest."""


def write(store: Store, *items: Item) -> list[BinlogError | None]:
    """Submit and wait for the statuses."""
    answered = threading.Event()
    got: list[BinlogError | None] = []
    submit(store, items, lambda statuses: (got.extend(statuses), answered.set()))
    assert answered.wait(60), "no answer"
    return got


def store_all(store: Store, *items: Item) -> None:
    """Submit, and everything must be durable and indexed on return."""
    assert write(store, *items) == [None] * len(items)
    settle(store)


def settle(store: Store) -> None:
    """Wait until everything that was answered is indexed."""
    until(lambda: store._indexer.indexed_end == _end_of_records(store), "the index did not catch up")
    passed = threading.Event()
    store._indexer.queue.call(passed.set)
    assert passed.wait(60)


def find(store: Store, ts: int) -> bytes | None:
    """The payload that is stored under a ts."""
    found = store.stream.stored(ts)
    return found if found is None or isinstance(found, bytes) else found.read(0, found.size)


def writer_of(store: Store) -> Writer:
    """The stage that writes."""
    return store._writer


def write_lock(store: Store) -> WriteLock:
    """The lock of who writes: as long as it is held nothing is written by others."""
    return writer_of(store).lock


def value_log(store: Store) -> ValueLog:
    """The files of a store."""
    return store._valuelog


def in_index(store: Store, action: Callable[[], object]) -> None:
    """Run something in the indexer's thread, behind what is queued: it holds the index for so long."""
    store._indexer.queue.call(lambda: void(action()))


@contextmanager
def index_stands_still(store: Store) -> Iterator[None]:
    """The indexer takes nothing from its queue meanwhile."""
    settle(store)
    busy, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        go_on.wait(60)

    in_index(store, hold)
    assert busy.wait(60)
    try:
        yield
    finally:
        go_on.set()


def remember(store: Store, start_ts: int, commit_ts: int = 0, payload: bytes = b"") -> None:
    """Keep an outcome in memory, as where nothing can be written."""
    in_index(store, lambda: store._indexer.remember(start_ts, commit_ts, payload))


def waits_for_index(store: Store) -> int:
    """Records between value log and index."""
    return store.status(keys=False).queued_records


def positions(store: Store) -> Positions:
    """What the index says of itself, as soon as it is open."""
    found: list[Positions] = []

    def read() -> bool:
        with contextlib.suppress(IndexFailed):
            found.append(store._index.positions())
        return bool(found)

    until(read)
    return found[0]


def pointer_of(store: Store, ts: int) -> Pointer:
    """Where the index has a record."""
    found = store._index.get(ts)
    assert found is not None
    return found


def _end_of_records(store: Store) -> Pointer:
    """Behind the last record. The newest file may have none: the disk was full when its first was written."""
    return max((file.pointer_end() for file in value_log(store).files() if file.synced_end), default=ZERO_POINTER)


def until(condition: Callable[[], Any], message: str = "it did not come", seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, message
        time.sleep(0.002)


def pull_all(store: Store, after: int = 0, max_bytes: int = 1 << 20, **how: Any) -> list[tuple[int, int, bytes, int]]:
    """(commit ts, start ts, payload, flag) up to the watermark, batch by batch."""
    found: list[tuple[int, int, bytes, int]] = []
    while True:
        batch: PullBatch = store.stream.pull(after, max_bytes=max_bytes, **how)
        found += zip(batch.commit_list, batch.start_list, batch.payloads, batch.flag_list, strict=True)
        if not batch.more:
            return found
        after = batch.last


def stream(store: Store, after: int = 0) -> list[tuple[int, int]]:
    """(start ts, commit ts) of real transactions in the stream."""
    return [(start, commit) for commit, start, _, _ in pull_all(store, after) if start != commit]


def payloads(items: Iterable[Item]) -> set[bytes]:
    return {item.payload for item in items}


def log_payloads(store: Store) -> list[bytes]:
    """Every payload in the value log, in file order."""
    return [
        value_log(store).read(Pointer(entry.fid, entry.offset))
        for entries in value_log(store).scan(ZERO_POINTER)
        for entry in entries
    ]


def value_files(data_dir: Path) -> Sequence[Path]:
    return sorted((data_dir / "value").glob("*.vlog"))


@contextmanager
def index_meets(**first: Callable[[], object]) -> Iterator[None]:
    """Done before each call of a method of an index, meanwhile, and before each ``opening`` of one: it may raise."""
    with pytest.MonkeyPatch.context() as patch:
        for name, action in first.items():
            owner, attribute = (index_module, "_open") if name == "opening" else (Index, name)
            patch.setattr(owner, attribute, _behind(action, getattr(owner, attribute)))
        yield


def _behind(first: Callable[[], object], real: Callable[..., Any]) -> Callable[..., Any]:
    def both(*given: Any, **named: Any) -> Any:
        first()
        return real(*given, **named)

    return both


def no_room_in_index() -> None:
    """What an index says on a full disk."""
    raise IndexFailed("IO error: 000007.log: No space left on device")


def no_room_to_open_index() -> None:
    """What LevelDB says where not even its first file fits."""
    raise plyvel.IOError("IO error: 000009.log: No space left on device")


def so_often(times: int, action: Callable[[], object]) -> Callable[[], None]:
    """Do something so often, then nothing."""
    left = iter(range(times))
    return lambda: void(action()) if next(left, None) is not None else None


def a_bug(*_given: object) -> None:
    """In place of something that does not fail."""
    raise ZeroDivisionError("a bug")


@contextmanager
def logs_cannot_be_written(*modules: str) -> Iterator[None]:
    """Every line of these modules raises; what ends a thread then is not told of."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(f"pump_service.store.{module}.log", BrokenLog())
        patch.setattr(threading, "excepthook", void)
        yield


class BrokenLog:
    """As a log file on a full disk is, or a pipe without a reader."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        def line(*_args: object, **_values: object) -> None:
            raise OSError(errno.EPIPE, "Broken pipe")

        return line
