"""These tests sync thousands of times; memory is enough for what they show. What they open is closed behind them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.storekit import close_stores, quick_directory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with quick_directory() as directory:
        yield directory


@pytest.fixture(autouse=True)
def _stores_are_closed(tmp_path: Path) -> Iterator[None]:
    del tmp_path  # which goes behind them
    yield
    close_stores()
