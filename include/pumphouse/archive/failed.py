"""What failed last on the archive, a snapshot or a dump, so that whoever looks later knows.

One object for each, replaced by the next failure, and never taken away: a success is newer, and says so itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from pumphouse.archive.archive import Archive
from pumphouse.archive.document import dump, parse
from pumphouse.archive.layout import FAILED
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BadManifest, BinlogError, UsageError, WindowHeld, said_of
from pumphouse.model.record import Record

log = structlog.get_logger()
KIND = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Record):
    """``what``: snapshot or dump; ``at_ms``: Unix time; ``message`` and ``hint`` as the error had them."""

    what: str
    at_ms: int
    error: str
    message: str
    hint: str


@contextmanager
def noting(
    archive: Archive, what: str, clock: Clock = SYSTEM_CLOCK, *, patience_s: float | None = None
) -> Iterator[None]:
    """An error of the block is written down; what was typed wrongly is nobody's failure.

    With ``patience_s``, as of `pull_node`, a held window is none yet: who comes again notes it when it gives up.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if patience_s is None or not isinstance(error, WindowHeld):
            note(archive, what, error, clock)
        raise


def note(archive: Archive, what: str, error: Exception, clock: Clock = SYSTEM_CLOCK) -> None:
    """Write it down, where there is an archive and the store takes it: a root that was typed wrongly stays empty."""
    message, hint = said_of(error)
    failed = Failed(what=what, at_ms=int(clock.now() * 1000), error=type(error).__name__, message=message, hint=hint)
    try:
        if archive.begun():
            archive.store.put(f"{FAILED}{what}.json", dump(KIND, failed.to_dict()))
    except Exception as refused:  # noqa: BLE001 - the failure itself is what is raised
        log.warning("failure_not_noted", what=what, why=str(refused))


def read_failed(archive: Archive) -> tuple[Failed, ...]:
    """The last failure of each; one that cannot be read is none, and `archive verify` names it."""
    found = []
    for each in archive.store.list(FAILED):
        try:
            found.append(of_json(each.key, archive.store.get(each.key)))
        except BinlogError as error:
            log.warning("failure_not_read", key=each.key, why=error.message)
    return tuple(found)


def of_json(key: str, data: bytes) -> Failed:
    """Read one; BadManifest."""
    found = parse(key, data, KIND, Failed.from_dict, remedy="delete it")
    if key != f"{FAILED}{found.what}.json":
        raise BadManifest(f"{key} is of {found.what}", hint="delete it", path=key, offset=0, reason="name")
    return found
