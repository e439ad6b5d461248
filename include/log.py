"""Structured logging, configured once by entry points: JSON on stderr, readable lines on a terminal."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import structlog


def configure_logging(level: str = "info", path: str = "") -> None:
    """Set up structlog for a process. Libraries only call ``structlog.get_logger()``.

    Args:
        level: least level that is logged, by name.
        path: file to append to; '' = stderr.
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
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper(), logging.INFO)),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
