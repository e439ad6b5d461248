"""Logging never fails what is logged about."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from pumphouse.library_log import library_logger
from pumphouse.log import Unfailing, configure_logging


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
from pumphouse.library_log import library_logger
log = library_logger("pumphouse.client.x")
log.debug("quiet", pump="p1")
log.warning("loud", pump="p1")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("broke", pump="p1")
log.error("broken", exc_info=ValueError("seen"))
"""


def test_a_library_writes_nothing_to_an_application_s_output_and_its_warnings_to_standard_logging() -> None:
    said = subprocess.run([sys.executable, "-c", _APPLICATION], capture_output=True, text=True, check=True)
    assert said.stdout == ""
    lines = said.stderr.splitlines()
    assert lines[:3] == ["event='loud' pump='p1'", "event='broke' pump='p1'", "Traceback (most recent call last):"]
    assert lines[-2:] == ["event='broken'", "ValueError: seen"]
    assert said.stderr.count("ZeroDivisionError") == 1


def test_it_goes_to_the_logger_of_its_name(caplog: pytest.LogCaptureFixture) -> None:
    structlog.reset_defaults()
    with caplog.at_level("DEBUG", "pumphouse.client.x"):
        library_logger("pumphouse.client.x").debug("said", pump="p1")
        library_logger("pumphouse.client.y").debug("not said")
    assert [(each.name, each.message) for each in caplog.records] == [("pumphouse.client.x", "event='said' pump='p1'")]


def test_an_application_that_has_configured_structlog_before_or_later_gets_all_lines() -> None:
    log = copy.deepcopy(pickle.loads(pickle.dumps(library_logger("pumphouse.client.x"))))
    with structlog.testing.capture_logs() as lines:
        log.debug("quiet", pump="p1")
        log.error("loud")
    assert [(line["event"], line["log_level"]) for line in lines] == [("quiet", "debug"), ("loud", "error")]
    found: list[str] = []
    structlog.configure(processors=[structlog.processors.JSONRenderer()], logger_factory=lambda: _Printer(found))
    log.warning("to a factory that takes no name")
    assert len(found) == 1


def test_an_application_whose_structlog_goes_to_standard_logging_has_the_logger_of_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    library_logger("pumphouse.client.x").warning("said")
    assert [each.name for each in caplog.records] == ["pumphouse.client.x"]


class _Printer:
    def __init__(self, found: list[str]) -> None:
        self.found = found

    def warning(self, line: str) -> None:
        self.found.append(line)


def test_what_applications_import_logs_by_it() -> None:
    for room in ("client", "registry", "rpc"):
        for path in Path("include", "pumphouse", room).glob("*.py"):
            assert "structlog" not in path.read_text(), path
