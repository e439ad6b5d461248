"""A real file system of a few megabytes, for tests of a full disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(mount_point: Path, size: int) -> Iterator[Path]:
    """A tmpfs of that many bytes; the test is skipped where none can be mounted."""
    mount_point.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs takes root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount_point)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", "-l", str(mount_point)], check=True)


def fill(path: Path) -> None:
    """Take all space that is left, as another program on the same disk might."""
    with path.open("ab", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(65536))
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(512))
