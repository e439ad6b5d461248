"""SQL that does a flashback, or undoes one, for people to read and any client of the server to run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path

from pumphouse.durable import fsync_dir
from pumphouse.errors import UsageError
from pumphouse.flashback.statements import Row, steps
from pumphouse.mysql import SQL_MODE

_SESSION = f"""SET NAMES utf8mb4, time_zone = '+00:00', sql_mode = '{SQL_MODE}';
SET SESSION foreign_key_checks = 1, unique_checks = 1, sql_safe_updates = 0;
SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ;
"""
# Lines of their own: there is no line break in a literal.
_BEGIN, _COMMIT = "BEGIN;\n", "COMMIT;\n"


class SqlFile:
    """A file that grows by a transaction at a time, and is on the disk before that is told.

    Args:
        path: where. Only its owner reads it: it has rows.
        about: what it does, in a comment at its head.
        new: there must be none; else it goes on.
    """

    def __init__(self, path: Path, about: Sequence[str], *, new: bool) -> None:
        self.path = path
        self._head = "".join(f"-- {' '.join(line.split())}\n" for line in about) + _SESSION
        if new and path.exists():
            raise UsageError(f"there is a file {path} already", hint="name another one")
        if path.exists() and path.stat().st_size:
            self._cut()

    def add(self, rows: Sequence[Row], rank: Mapping[tuple[str, str], int]) -> None:
        """A transaction that puts these rows back."""
        begun = not self.path.exists() or not self.path.stat().st_size
        text = "".join(f"{step.sql};\n" for step in steps(rows, rank))
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with os.fdopen(os.open(self.path, flags, 0o600), "ab") as file:
            file.write(f"{self._head if begun else ''}{_BEGIN}{text}{_COMMIT}".encode())
            file.flush()
            os.fsync(file.fileno())
        if begun:
            fsync_dir(self.path.absolute().parent)

    def _cut(self) -> None:
        """Take away what a run that was killed had written of a transaction, which was not committed then."""
        with self.path.open("r+b") as file:
            with mmap(file.fileno(), 0, access=ACCESS_READ) as text:
                head, end = self._head.encode(), text.rfind(f"\n{_COMMIT}".encode())
                if text[: len(head)] != head[: len(text)]:
                    raise UsageError(f"{self.path} is no file of this flashback", hint="--redo FILE names another one")
            file.truncate(0 if end < 0 else end + len(_COMMIT) + 1)
