"""A real file system of a few megabytes, for tests of a full disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(mount_point: Path, size: int) -> Iterator[Path]:
    """A tmpfs of that many bytes; the test is skipped where none can be mounted."""
    mount_point.mkdir()
    if os.geteuid() != 0:
        # A full disk can only be had by a file system of our own.
        pytest.skip("mounting a tmpfs takes root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount_point)], capture_output=True, check=False
    )
    if done.returncode:
        # Containers without CAP_SYS_ADMIN.
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", "-l", str(mount_point)], check=True)


@contextlib.contextmanager
def failing_disk(mount_point: Path, claims: int, holds: int) -> Iterator[Path]:
    """An ext4 that claims more bytes than its medium holds: a sync of what is too much ends with EIO."""
    with (
        small_disk(mount_point.with_name(f"{mount_point.name}.medium"), holds) as medium,
        contextlib.ExitStack() as undo,
    ):
        image = medium / "disk"
        with image.open("wb") as file:
            file.truncate(claims)
        _or_skip("mkfs.ext4", "-q", str(image))
        device = _or_skip("losetup", "--find", "--show", str(image))
        undo.callback(subprocess.run, ["losetup", "--detach", device], check=True)
        mount_point.mkdir()
        _or_skip("mount", "-t", "ext4", device, str(mount_point))
        undo.callback(subprocess.run, ["umount", "-l", str(mount_point)], check=True)
        yield mount_point


def _or_skip(*command: str) -> str:
    if shutil.which(command[0]) is None:
        # Debian's minimal images come without e2fsprogs.
        pytest.skip(f"there is no {command[0]}")
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} cannot be used here: {done.stderr.decode().strip()}")
    return done.stdout.decode().strip()


def fill(path: Path) -> None:
    """Take all space that is left, as another program on the same disk might."""
    with path.open("ab", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(65536))
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(512))
