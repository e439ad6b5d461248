"""What takes seconds to make and is always the same, such as a server's first data directory: made once in a checkout, then copied."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.stack.supervisor import StackError

_MADE = Path(__file__).resolve().parents[2] / "build" / "made"


def copy_once_made(name: str, to: Path, make: Callable[[Path], None], *, of: tuple[object, ...]) -> None:
    """Put at ``to``, which is not there, a copy of what ``make`` puts at the path that it gets.

    What is killed meanwhile leaves nothing at ``to``. ``of`` is all that it depends on, programs by `stamp`.
    """
    kept = once_made(name, make, of=of)
    _whole(to, lambda aside: _copy(kept, aside))


def once_made(name: str, make: Callable[[Path], None], *, of: tuple[object, ...]) -> Path:
    """The same in its place, for those who only read it."""
    digest = hashlib.sha256(repr(of).encode()).hexdigest()[:16]
    kept = _MADE / f"{name}-{digest}"
    _MADE.mkdir(parents=True, exist_ok=True)
    with (_MADE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            _whole(kept, make)
    return kept


def _whole(path: Path, make: Callable[[Path], None]) -> None:
    aside = path.with_name(f"{path.name}.new")
    if aside.is_dir():
        shutil.rmtree(aside)
    make(aside)
    aside.rename(path)


def _copy(kept: Path, to: Path) -> None:
    # Logs of a server are mostly zeros; owners stay.
    command = ["cp", "-a", "--reflink=auto", "--sparse=always", str(kept), str(to)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise StackError(f"{kept} cannot be copied: {done.stderr[-600:]}")


def stamp(program: str) -> tuple[str, int, int]:
    """What tells a program from a later version of it."""
    found = os.stat(program)
    return os.path.realpath(program), found.st_size, found.st_mtime_ns
