"""Structured logging, configured once by entry points: JSON on stderr, readable lines on a terminal."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TextIO, cast

import structlog

# Names of Python and of zap, whose Go programs take them in any case. Of what ends those, only its level is meant here.
_NUMBERS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "dpanic": logging.CRITICAL,
    "panic": logging.CRITICAL,
    "fatal": logging.CRITICAL,
    "critical": logging.CRITICAL,
}
LEVELS = tuple(_NUMBERS)


class Unfailing:
    """A stream for log lines that never raises: what is logged about must go on, also on a full disk."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0  # writes that failed

    def write(self, text: str) -> int:
        """Write, or count what is lost."""
        try:
            self._stream.write(text)
        except (OSError, ValueError):  # ValueError: closed, or a character that the encoding lacks
            self.lost += 1
        return len(text)

    def flush(self) -> None:
        """Flush, or count what is lost."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1

    def close(self) -> None:
        """Close the stream; what is written from then on is lost."""
        self._stream.close()


def configure_logging(level: str = "info", path: str = "") -> None:
    """Set up structlog for a process.

    Args:
        level: least level that is logged: one of `LEVELS`, in any case.
        path: file to append to; '' = stderr. A line that cannot be written is lost without an error (`Unfailing`).
    """
    # Line by line, so that whoever moved the file away and starts the process again finds whole lines. Never closed.
    stream = Path(path).open("a", buffering=1) if path else sys.stderr  # noqa: SIM115
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if stream.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_NUMBERS[level.lower()]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", Unfailing(stream))),
        cache_logger_on_first_use=False,
    )
