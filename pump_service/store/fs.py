"""The file system as the store sees it: everything that the value log and the bookkeeping do to files goes through it.

What derives from it in tests/support/crashfs.py forgets what was not synced, or fails. LevelDB does its own I/O, which
is allowed to be lost: the index is derived from the value log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from pumphouse import durable

# writev takes at most this many buffers on Linux.
_IOV_MAX = 1024
# Small records are joined into one buffer, which costs less than many iovecs; large ones are not copied.
_JOIN_BYTES = 4 << 20


class LogHandle:
    """The descriptor of a value-log file."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def write_at(self, offset: int, chunks: Sequence[bytes | memoryview]) -> None:
        """Write all chunks from that offset on; a short write goes on until done. Raises OSError."""
        if len(chunks) == 1:
            _pwrite_all(self.fd, memoryview(chunks[0]), offset)
            return
        if sum(map(len, chunks)) <= _JOIN_BYTES:
            _pwrite_all(self.fd, memoryview(b"".join(chunks)), offset)
            return
        left = deque(memoryview(chunk) for chunk in chunks)
        while left:
            done = os.pwritev(self.fd, list(islice(left, _IOV_MAX)), offset)
            offset += done
            while left and done >= len(left[0]):
                done -= len(left.popleft())
            if done:
                left[0] = left[0][done:]

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to that many bytes; fewer only at the end of the file."""
        data = os.pread(self.fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        have = len(data)
        while have < size:
            data = os.pread(self.fd, size - have, offset + have)
            if not data:
                break
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def read_into(self, offset: int, into: memoryview) -> int:
        """Fill a buffer from that offset on; returns how many bytes, fewer only at the end of the file."""
        have = 0
        while have < len(into):
            done = os.preadv(self.fd, [into[have:]], offset + have)
            if not done:
                break
            have += done
        return have

    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self.fd).st_size

    def sync(self) -> None:
        """Return when data and size are on the medium. Raises OSError."""
        os.fdatasync(self.fd)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        os.ftruncate(self.fd, size)

    def close(self) -> None:
        """Release the descriptor; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # A reader may hold a file that GC removed; the descriptor goes with the last of them.
        self.close()


def _end_of_lines(fd: int) -> int:
    """Where the next line goes: half a line at the end, which was never synced, is cut."""
    size = os.fstat(fd).st_size
    if size == 0 or os.pread(fd, 1, size - 1) == b"\n":
        return size
    end = os.pread(fd, size, 0).rfind(b"\n") + 1
    os.ftruncate(fd, end)
    return end


def _pwrite_all(fd: int, view: memoryview, offset: int) -> None:
    while view:
        done = os.pwrite(fd, view, offset)
        view = view[done:]
        offset += done


class FileSystem:
    """The machine's file system."""

    def make_dirs(self, path: Path) -> None:
        """Create a directory with its parents, durably."""
        durable.make_dirs(path, 0o700)

    def list_dir(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""
        return sorted(entry.name for entry in os.scandir(path))

    def exists(self, path: Path) -> bool:
        """Whether there is such a file."""
        return path.exists()

    def open_log(self, path: Path, *, create: bool = False, read_only: bool = False) -> LogHandle:
        """Open a value-log file; ``create`` makes a new one, and its name durable."""
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        if create:
            try:
                durable.fsync_dir(path.parent)
            except BaseException:
                os.close(fd)
                # On a full disk it is tried again, and the name must be free; this one may not be durable ever.
                with contextlib.suppress(OSError):
                    path.unlink()
                raise
        return LogHandle(fd)

    def read(self, path: Path) -> bytes:
        """A whole small file."""
        return path.read_bytes()

    def write_atomic(self, path: Path, data: bytes) -> None:
        """Replace a small file, durably."""
        durable.write_atomic(path, data, 0o600)

    def write_cache(self, path: Path, data: bytes) -> None:
        """Replace a small file that can be rebuilt: atomic for readers, not durable."""
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_bytes(data)
        temporary.rename(path)

    def append_line(self, path: Path, line: bytes) -> None:
        """Append to a small file, durably."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # settlements come from several threads
            end = _end_of_lines(fd)
            try:
                self.write_line(fd, line, end)
            except BaseException:
                # The next line must not be joined to half of this one.
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, end)
                    os.fsync(fd)
                raise
        finally:
            os.close(fd)
        durable.fsync_dir(path.parent)

    def write_line(self, fd: int, line: bytes, offset: int) -> None:
        """Write a line and sync; what a failure leaves behind is cut by the caller."""
        _pwrite_all(fd, memoryview(line), offset)
        os.fsync(fd)

    def copy(self, source: Path, target: Path, start: int) -> None:
        """Copy the bytes from ``start`` on into a new durable file."""
        with source.open("rb") as reader, target.open("wb") as writer:
            reader.seek(start)
            while block := reader.read(1 << 20):
                writer.write(block)
            writer.flush()
            os.fsync(writer.fileno())
        durable.fsync_dir(target.parent)

    def remove(self, path: Path) -> None:
        """Remove a file, durably; a missing one is no error."""
        path.unlink(missing_ok=True)
        durable.fsync_dir(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within a directory, durably."""
        source.rename(target)
        durable.fsync_dir(target.parent)

    def free_bytes(self, path: Path) -> int:
        """Bytes that an unprivileged process may still write."""
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def preallocate(self, path: Path, size: int) -> None:
        """A file of that many really allocated bytes. Raises OSError where there is no room."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
            raise
        finally:
            os.close(fd)


REAL_FS = FileSystem()
