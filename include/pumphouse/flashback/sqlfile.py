"""SQL that does a flashback, or undoes one, for people to read and any client of the server to run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pumphouse.durable import fsync_dir
from pumphouse.errors import UsageError
from pumphouse.flashback.statements import Row, steps
from pumphouse.mysql import SQL_MODE

_SESSION = f"""SET NAMES utf8mb4, time_zone = '+00:00', sql_mode = '{SQL_MODE}';
SET SESSION foreign_key_checks = 1, unique_checks = 1, sql_safe_updates = 0;
SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ;
"""


class SqlFile:
    """A file that grows by a transaction at a time, and is on the disk before that is told.

    Args:
        path: where. Only its owner reads it: it has rows.
        about: what it does, in a comment at its head.
        new: there must be none; else it goes on.
    """

    def __init__(self, path: Path, about: Sequence[str], *, new: bool) -> None:
        self.path, self._about, self._new = path, about, new
        if new and path.exists():
            raise UsageError(f"there is a file {path} already", hint="name another one")

    def add(self, rows: Sequence[Row], rank: Mapping[tuple[str, str], int]) -> None:
        """A transaction that puts these rows back."""
        begun = not self.path.exists()
        text = "".join(f"{step.sql};\n" for step in steps(rows, rank))
        head = "".join(f"-- {' '.join(line.split())}\n" for line in self._about) + _SESSION if begun else ""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with os.fdopen(os.open(self.path, flags, 0o600), "ab") as file:
            file.write(f"{head}BEGIN;\n{text}COMMIT;\n".encode())
            file.flush()
            os.fsync(file.fileno())
        if begun:
            fsync_dir(self.path.absolute().parent)
