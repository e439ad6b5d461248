"""These tests sync thousands of times; memory is enough for what they show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.storekit import quick_directory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with quick_directory() as directory:
        yield directory
