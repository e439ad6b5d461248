"""Atomic and durable writes of small files: the only such code in the repository."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TextIO


def fsync_dir(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# Of directories and files that hold rows, or what gives access to them: nobody but the user that wrote them reads them.
PRIVATE_DIR, PRIVATE_FILE = 0o700, 0o600


def make_dirs(path: Path, mode: int = 0o755) -> None:
    """Create a directory and its parents; each new name is durable on return."""
    missing = []
    at = path
    while not at.exists():
        missing.append(at)
        at = at.parent
    for each in reversed(missing):
        each.mkdir(mode=mode, exist_ok=True)
        fsync_dir(each.parent)


def _write_temporary(path: Path, data: bytes, mode: int) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    except BaseException:
        os.close(fd)
        temporary.unlink(missing_ok=True)
        raise
    os.close(fd)
    return temporary


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file: a reader sees the old bytes or the new ones, and the new ones survive power loss."""
    temporary = _write_temporary(path, data, mode)
    try:
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def new_private(path: Path) -> TextIO:
    """A new text file for its owner alone; FileExistsError where there is one."""
    return open(path, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, PRIVATE_FILE))


def create_exclusive(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Create a whole file or raise FileExistsError.

    O_EXCL alone would show an empty file after a kill, so the bytes go to a temporary file first and link(2) is the
    moment at which exactly one of several writers wins.
    """
    temporary = _write_temporary(path, data, mode)
    try:
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_dir(path.parent)
