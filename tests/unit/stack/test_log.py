"""Logging never fails what is logged about."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import structlog

from include.log import Unfailing, configure_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_log_file_on_a_full_disk_costs_lines_and_raises_nothing() -> None:
    configure_logging(path="/dev/full")
    structlog.get_logger("x").error("said", value=1)


def test_what_could_not_be_written_is_counted_and_what_can_is_written() -> None:
    inner = io.StringIO()
    stream = Unfailing(inner)
    print("one", file=stream, flush=True)
    assert (inner.getvalue(), stream.lost) == ("one\n", 0)
    inner.close()
    print("two", file=stream, flush=True)
    assert stream.lost > 0
