"""Logging never fails what is logged about."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from include.log import Unfailing, configure_logging, library_logger


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


_APPLICATION = """
import structlog
from include.log import library_logger
log = library_logger("include.client.x")
log.debug("quiet", pump="p1")
log.warning("loud", pump="p1")
"""


def test_a_library_writes_nothing_to_an_application_s_output_and_its_warnings_to_standard_logging() -> None:
    said = subprocess.run([sys.executable, "-c", _APPLICATION], capture_output=True, text=True, check=True)
    assert (said.stdout, said.stderr) == ("", "event='loud' pump='p1'\n")


def test_an_application_that_has_configured_structlog_before_or_later_gets_all_lines() -> None:
    log = library_logger("include.client.x")
    with structlog.testing.capture_logs() as lines:
        log.debug("quiet", pump="p1")
        log.error("loud")
    assert [(line["event"], line["log_level"]) for line in lines] == [("quiet", "debug"), ("loud", "error")]
