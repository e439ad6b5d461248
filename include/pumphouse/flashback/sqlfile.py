"""SQL that does a flashback, or undoes one, for people to read and any client of the server to run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from pumphouse.durable import fsync_dir
from pumphouse.errors import UsageError
from pumphouse.flashback.statements import Row, steps
from pumphouse.loader.literals import SESSION

_BEGIN, _COMMIT = "BEGIN;\n", "COMMIT;\n"
_COPY_BYTES = 1 << 20


class SqlFile:
    """A file that grows by a transaction at a time, and is on the disk before that is told.

    Args:
        path: where. Only its owner reads it: it has rows.
        about: what it does, in a comment at its head.
        new: there must be none; else it goes on.
        undoes: what was added last comes first in it.
    """

    def __init__(self, path: Path, about: Sequence[str], *, new: bool, undoes: bool = False) -> None:
        self.path, self._undoes = path, undoes
        self._head = ("".join(f"-- {' '.join(line.split())}\n" for line in about) + SESSION).encode()
        if new and path.exists():
            raise UsageError(f"there is a file {path} already", hint="name another one")
        if path.exists() and path.stat().st_size:
            with path.open("rb") as file:
                if file.read(len(self._head)) != self._head:
                    raise UsageError(f"{path} is no file of this flashback", hint="--redo FILE names another one")

    def add(self, rows: Sequence[Row], rank: Mapping[tuple[str, str], int]) -> None:
        """A transaction that puts these rows back."""
        text = (_BEGIN + "".join(f"{step.sql};\n" for step in steps(rows, rank)) + _COMMIT).encode()
        begun = not self.path.exists() or not self.path.stat().st_size
        if begun or self._undoes:
            made = self.path.with_name(f"{self.path.name}.new")
            made.unlink(missing_ok=True)
            with _opened(made, os.O_EXCL) as file:
                file.write(self._head + text)
                if not begun:
                    with self.path.open("rb") as before:
                        before.seek(len(self._head))
                        shutil.copyfileobj(before, file, _COPY_BYTES)
                _flush(file)
            made.replace(self.path)
            fsync_dir(self.path.absolute().parent)
            return
        with _opened(self.path, os.O_APPEND) as file:
            file.write(text)
            _flush(file)


def _opened(path: Path, flag: int) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o600), "wb")


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
