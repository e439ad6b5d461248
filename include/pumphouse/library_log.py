"""The logger of what runs inside applications: structlog as they have configured it, else standard logging."""

from __future__ import annotations

import logging
from typing import Any, cast

import structlog
from structlog.typing import EventDict

_as_text = structlog.processors.KeyValueRenderer(key_order=["event"])


def _to_standard(logger: Any, method: str, event: EventDict) -> tuple[tuple[str], EventDict]:
    """Arguments of a method of `logging.Logger`, which writes tracebacks itself."""
    kept = {name: event.pop(name) for name in ("exc_info", "stack_info") if name in event}
    return (str(_as_text(logger, method, event)),), kept


class _LibraryLogger:
    """Which logger it is shows at each call: an application may configure structlog after it has imported us."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._standard = structlog.wrap_logger(
            logging.getLogger(name),
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.contextvars.merge_contextvars,
                _to_standard,
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
        )
        self._named, self._unnamed = structlog.get_logger(name), structlog.get_logger()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if not structlog.is_configured():
            return getattr(self._standard, name)
        try:
            return getattr(self._named, name)
        except TypeError:  # the application's factory takes no name
            return getattr(self._unnamed, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return library_logger, (self._name,)


def library_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger for a module that runs in an application's process.

    Structlog that nobody configured prints every line, debug too, on the application's standard output. Then the lines
    go to standard logging under ``name``: warnings on stderr, unless the application says otherwise.
    """
    return cast("structlog.stdlib.BoundLogger", _LibraryLogger(name))
