"""These tests sync thousands of times; memory is enough for what they show."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_SHM = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory on a file system whose fsync costs nothing, where there is one."""
    with tempfile.TemporaryDirectory(dir=_SHM if _SHM.is_dir() else None) as name:
        yield Path(name)
