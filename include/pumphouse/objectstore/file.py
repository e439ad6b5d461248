"""``file:///dir`` archives: one machine, durable, exclusive create as the conditional put (rows A1, A4)."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pumphouse.durable import PRIVATE_DIR, PRIVATE_FILE, create_exclusive, fsync_dir, make_dirs, write_atomic
from pumphouse.errors import ObjectExists, ObjectNotFound, StoreError, StoreUnavailable
from pumphouse.objectstore.base import ObjectInfo, check_file, check_key

_COPY_BYTES = 1 << 20
# A disk, a server of files or a limit that may do it again.
_PASSING = (
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
)  # fmt: skip
_HINTS = {
    errno.EACCES: "what lies in a store of files is for the user who made it: run all commands as that user. Where "
    "another program made it, or the file system did (lost+found), give the store a folder of its own",
    errno.ENAMETOOLONG: "a file's name has at most 255 bytes, and the node id of a Pump is one, in which a character "
    "that is not ASCII takes three for each of its bytes",
}


class FileStore:
    """Objects as files under a directory, for their user alone. Names appear atomically and survive power loss."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    @property
    def url(self) -> str:
        """``file:///dir``."""
        return f"file://{self._root}"

    def get(self, key: str) -> bytes:
        """Whole object."""
        with self._errors(key):
            return self._path(key).read_bytes()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes [start, start+length), shorter at the end."""
        with self._errors(key), self._path(key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def size(self, key: str) -> int:
        """Bytes of an object."""
        with self._errors(key):
            return self._path(key).stat().st_size

    def put(self, key: str, data: bytes) -> None:
        """Create or replace."""
        path = self._path(key)
        with self._errors(key, writes=True):
            _make_parent(path)
            write_atomic(path, data, PRIVATE_FILE)

    def put_file(self, key: str, path: Path, *, move: bool = False, seldom: bool = False) -> None:  # noqa: ARG002
        """Copy a local file in, or move it where it lies on the same file system; the object appears whole."""
        target = self._path(key)
        check_file(path, f"{self.url}/{key}")
        with self._errors(key, writes=True):
            _make_parent(target)
            if move and path.stat().st_dev == target.parent.stat().st_dev:
                with path.open("rb") as source:
                    os.fchmod(source.fileno(), PRIVATE_FILE)
                    os.fsync(source.fileno())
                path.rename(target)
                fsync_dir(target.parent)
                return
            temporary = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
            try:
                with path.open("rb") as source, open(temporary, "xb", opener=_private) as sink:
                    shutil.copyfileobj(source, sink, _COPY_BYTES)
                    sink.flush()
                    os.fsync(sink.fileno())
                temporary.rename(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            fsync_dir(target.parent)

    def get_file(self, key: str, path: Path) -> None:
        """Copy an object out."""
        with self._errors(key), self._path(key).open("rb") as source, path.open("wb") as sink:
            shutil.copyfileobj(source, sink, _COPY_BYTES)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create or raise ObjectExists: link(2) lets exactly one of several writers win."""
        path = self._path(key)
        try:
            with self._errors(key, writes=True):
                _make_parent(path)
                create_exclusive(path, data, PRIVATE_FILE)
        except FileExistsError:
            # The winner may not have come to its fsync of the directory yet: nobody may build on a name that power
            # loss could take away again.
            fsync_dir(path.parent)
            raise ObjectExists(f"{self.url}/{key} exists", key=key) from None

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with prefix, sorted by key."""
        root, above = f"{self._root}/", len(f"{self._root}/")
        keys = []
        for at, folders, names in os.walk(root + prefix.rpartition("/")[0], onerror=self._pass_over):
            inside = at[above:].rstrip("/") + "/" if len(at) > above else ""
            # Another's folder beside what is asked for may be unreadable, as lost+found is.
            folders[:] = [each for each in folders if f"{inside}{each}/".startswith(prefix)]
            keys += [inside + each for each in names if not (each.startswith(".") and each.endswith(".tmp"))]
        for key in sorted(each for each in keys if each.startswith(prefix) and each > after):
            try:
                of = os.stat(root + key)  # noqa: PTH116 - a path object costs more than the call
            except OSError as error:
                self._pass_over(error)
                continue
            yield ObjectInfo(key, of.st_size, of.st_mtime)

    def _pass_over(self, error: OSError) -> None:
        """What was deleted while we looked. All else ends a listing: a short one would be taken for what there is."""
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            with self._errors(str(error.filename).removeprefix(f"{self._root}/")):
                raise error

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Directories directly below a prefix, by name."""
        with suppress(ObjectNotFound), self._errors(prefix), os.scandir(self._root / prefix) as found:
            return iter(sorted(each.name for each in found if each.is_dir()))
        return iter(())

    def delete(self, key: str) -> None:
        """Remove; a missing object is no error."""
        path = self._path(key)
        with self._errors(key):
            path.unlink(missing_ok=True)

    def losing(self, prefix: str = "") -> tuple[str, ...]:  # noqa: ARG002
        """A directory has no such rules."""
        return ()

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    @contextmanager
    def _errors(self, key: str, *, writes: bool = False) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            if writes:
                raise StoreError(
                    f"{self.url}/{key}: {error.strerror}",
                    hint="the root of a store, as archive.root, is a folder that can be written to, or can be made",
                    key=key,
                ) from error
            raise ObjectNotFound(f"there is no {self.url}/{key}", key=key) from error
        except OSError as error:
            kind = StoreUnavailable if error.errno in _PASSING else StoreError
            raise kind(f"{self.url}/{key}: {error.strerror}", hint=_HINTS.get(error.errno or 0, ""), key=key) from error


def _make_parent(path: Path) -> None:
    try:
        make_dirs(path.parent, PRIVATE_DIR)
    except FileExistsError as error:  # a link that leads nowhere, as to a disk that is not there
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE_FILE)
