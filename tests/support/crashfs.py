"""File systems for the store's crash tests: one that remembers what was durable at each sync, one that fails on demand.

`CrashFs` runs on a real directory. Whenever something is about to become durable it keeps an image of that moment: what
had been synced before, what was only written, LevelDB's files, and whatever the test says was answered. An image can be
laid out as a directory in several ways that a power loss allows, and opened by the real store.
"""

from __future__ import annotations

import errno
import json
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pump_service.store.fs import FileSystem, LogHandle

SECTOR = 512
PAGE = 4096


@dataclass(frozen=True)
class Image:
    """One moment, just before a sync took effect."""

    number: int
    what: str
    durable: dict[str, bytes]
    written: dict[str, bytes]
    kv: dict[str, bytes]
    noted: Any

    def lay_out(self, directory: Path, *, tail: str, index: str, seed: int = 0) -> None:
        """Make the directory that is found after the crash.

        tail: what is left of writes that were not synced: nothing, half, all, holes (sectors left out at random).
        index: kept, lost, behind (LevelDB's log lost its end), holes (pages of LevelDB's log were not written, and the
        machine was booted again).
        """
        names = set(self.durable) | (set(self.written) if tail != "nothing" else set())
        for name in names:
            data = _tail(
                self.durable.get(name, b""), self.written.get(name), tail, random.Random(f"{seed}{self.number}{name}"),
                overwrites=name.endswith(".vlog"),
            )  # fmt: skip
            if data is None:
                continue
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if index == "lost":
            return
        for name, data in self.kv.items():
            path = directory / "kv" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if index == "behind" and name.endswith(".log"):
                data = data[: len(data) // 2]
            if index == "holes" and name.endswith(".log"):
                data = with_hole(data)
            path.write_bytes(data)
        if index == "holes":
            machine_went_down(directory)


def with_hole(data: bytes) -> bytes:
    """LevelDB's log of which one page in the middle was never written."""
    at = len(data) // 2 // PAGE * PAGE
    return data[:at] + bytes(min(PAGE, len(data) - at)) + data[at + PAGE :]


def machine_went_down(directory: Path) -> None:
    """Whoever ran here last ran before the machine's last boot."""
    path = directory / "pumphouse" / "incarnation.json"
    if path.exists():
        path.write_text(json.dumps(json.loads(path.read_bytes()) | {"boot_id": "the boot before"}))


def _tail(durable: bytes, written: bytes | None, tail: str, chance: random.Random, *, overwrites: bool) -> bytes | None:
    if written is None or tail == "nothing":
        return durable
    if not overwrites and not written.startswith(durable):
        # Renamed, removed or replaced since: such steps are synced one by one, so the durable side is what is found.
        return durable
    if tail == "all" or written == durable:
        return written
    # What lay there before, and zeros where the file grew.
    before = durable[: len(written)].ljust(len(written), b"\0")
    pairs = enumerate(zip(before, written, strict=True))
    same = next((at for at, (old, new) in pairs if old != new), len(written))
    if tail == "half":
        middle = same + (len(written) - same) // 2
        if middle < len(durable):
            middle = max(middle // SECTOR * SECTOR, same)  # what lay there before is replaced by whole sectors
        found = written[:middle] + before[middle : len(durable)]
        # A cut may have arrived or not: the size is written apart from the data.
        return found + durable[len(found) :] if chance.random() < 0.5 else found
    holes = bytearray(written)
    at = same
    while at < len(holes):
        upto = min((at // SECTOR + 1) * SECTOR, len(holes))
        if chance.random() < 0.5:
            holes[at:upto] = before[at:upto]
        at = upto
    return bytes(holes) + (durable[len(holes) :] if chance.random() < 0.5 else b"")


class CrashFs(FileSystem):
    """A real directory, and an image of each moment at which something became durable."""

    def __init__(self, root: Path, note: Callable[[], Any]) -> None:
        self._root = root
        self._note = note
        self._lock = threading.RLock()
        self._durable: dict[str, bytes] = {}
        self.images: list[Image] = []
        self.full: int | None = None  # bytes that the disk still takes, until a reserve is given back

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))

    def _files(self) -> dict[str, bytes]:
        return {
            self._name(path): path.read_bytes()
            for path in self._root.rglob("*")
            if path.is_file()
            and path.parent.name != "kv"
            and not path.name.startswith((".lock", "reserve"))
            and not path.name.endswith(".tmp")
        }

    def _kv(self) -> dict[str, bytes]:
        found = {}
        for path in (self._root / "kv").glob("*"):
            if path.name != "LOCK":
                found[path.name] = path.read_bytes()
        return found

    def _take(self, what: str) -> None:
        # What was answered first: it was durable before it was answered.
        noted = self._note()
        self.images.append(Image(len(self.images), what, dict(self._durable), self._files(), self._kv(), noted))

    def _becomes_durable(self, path: Path, what: str, action: Callable[[], Any]) -> Any:
        with self._lock:
            self._take(f"{what} {path.name}")
            result = action()
            for each in [path] if path.exists() else []:
                self._durable[self._name(each)] = each.read_bytes()
            if not path.exists():
                self._durable.pop(self._name(path), None)
            return result

    def open_log(self, path: Path, *, create: bool = False, read_only: bool = False) -> LogHandle:
        if create:
            handle = self._becomes_durable(path, "create", lambda: super(CrashFs, self).open_log(path, create=True))
        else:
            handle = super().open_log(path, read_only=read_only)
        return _CrashHandle(self, path, handle)

    def write_atomic(self, path: Path, data: bytes) -> None:
        self._becomes_durable(path, "replace", lambda: super(CrashFs, self).write_atomic(path, data))

    def append_line(self, path: Path, line: bytes) -> None:
        self._becomes_durable(path, "append", lambda: super(CrashFs, self).append_line(path, line))

    def copy(self, source: Path, target: Path, start: int) -> None:
        self._becomes_durable(target, "copy", lambda: super(CrashFs, self).copy(source, target, start))

    def remove(self, path: Path) -> None:
        if path.name.startswith("reserve"):
            self.full = None
        self._becomes_durable(path, "remove", lambda: super(CrashFs, self).remove(path))

    def free_bytes(self, path: Path) -> int:
        return 1 << 40


class _CrashHandle(LogHandle):
    def __init__(self, fs: CrashFs, path: Path, handle: LogHandle) -> None:
        super().__init__(os.dup(handle.fd))
        handle.close()
        self._fs = fs
        self._path = path

    def write_at(self, offset: int, chunks: Sequence[bytes | memoryview]) -> None:
        with self._fs._lock:
            left = self._fs.full
            if left is not None and sum(map(len, chunks)) > left:
                super().write_at(offset, [b"".join(chunks)[:left]])
                raise OSError(errno.ENOSPC, "no space left", str(self._path))
            super().write_at(offset, chunks)

    def sync(self) -> None:
        self._fs._becomes_durable(self._path, "sync", super().sync)

    def truncate(self, size: int) -> None:
        with self._fs._lock:
            super().truncate(size)


class FaultyFs(FileSystem):
    """Fails where the test says so: ``faults[operation]`` is called with the path and may raise.

    Operations: write, sync, truncate, create, replace, append, remove, preallocate. A write or an append may also be
    short: ``short_write`` bytes are really written before the fault.
    """

    def __init__(self) -> None:
        self.faults: dict[str, Callable[[Path], None]] = {}
        self.short_write = 0
        self.free = 1 << 40
        self.syncs = 0

    def check(self, operation: str, path: Path) -> None:
        fault = self.faults.get(operation)
        if fault is not None:
            fault(path)

    def open_log(self, path: Path, *, create: bool = False, read_only: bool = False) -> LogHandle:
        if create:
            self.check("create", path)
        return _FaultyHandle(self, path, super().open_log(path, create=create, read_only=read_only))

    def write_atomic(self, path: Path, data: bytes) -> None:
        self.check("replace", path)
        super().write_atomic(path, data)

    def write_line(self, fd: int, line: bytes, offset: int) -> None:
        try:
            self.check("append", Path(os.readlink(f"/proc/self/fd/{fd}")))
        except OSError:
            os.pwrite(fd, line[: self.short_write], offset)
            raise
        super().write_line(fd, line, offset)

    def remove(self, path: Path) -> None:
        self.check("remove", path)
        super().remove(path)

    def preallocate(self, path: Path, size: int) -> None:
        self.check("preallocate", path)
        super().preallocate(path, size)

    def free_bytes(self, path: Path) -> int:
        return self.free


class _FaultyHandle(LogHandle):
    def __init__(self, fs: FaultyFs, path: Path, handle: LogHandle) -> None:
        super().__init__(os.dup(handle.fd))
        handle.close()
        self._fs = fs
        self._path = path

    def write_at(self, offset: int, chunks: Sequence[bytes | memoryview]) -> None:
        try:
            self._fs.check("write", self._path)
        except OSError:
            super().write_at(offset, [b"".join(chunks)[: self._fs.short_write]])
            raise
        super().write_at(offset, chunks)

    def sync(self) -> None:
        self._fs.check("sync", self._path)
        self._fs.syncs += 1
        super().sync()

    def truncate(self, size: int) -> None:
        self._fs.check("truncate", self._path)
        super().truncate(size)


def failing(number: int, *, times: int | None = None) -> Callable[[Path], None]:
    """A fault that raises OSError with this errno, for ever or so many times."""
    left = [times]

    def fault(path: Path) -> None:
        if left[0] is not None:
            if left[0] == 0:
                return
            left[0] -= 1
        raise OSError(number, "injected", str(path))

    return fault
