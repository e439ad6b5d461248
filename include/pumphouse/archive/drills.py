"""Drills: restores that were tried, proved and thrown away; how long they took is what an estimate is made from.

One object for each drill (docs/formats.md, "Drills"), named by when it was begun. It is put when the drill begins and
says that it has not ended; the same name is put again at its end. So many are kept: older ones go, with their proofs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import ceil
from statistics import median
from typing import Annotated, Any

import structlog

from pumphouse.archive.archive import Archive
from pumphouse.archive.document import dump, parse
from pumphouse.archive.layout import DRILLS, drill_key
from pumphouse.errors import BadManifest, BinlogError
from pumphouse.model.record import UNSAID, Record, Uint64
from pumphouse.model.tso import Tso

log = structlog.get_logger()
KIND = "drill"
# What a drill found; the other words are those of its proof.
NOT_ENDED, FAILED, EQUAL = "not ended", "failed", "equal"
VERDICTS = (NOT_ENDED, FAILED, EQUAL, "DIFFERENT", "nothing proven")
_REMEDY = "delete it: nothing depends on it"
# An estimate is made from so many of the last ones.
_RECENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill(Record):
    """One drill.

    Args:
        cluster_id: of the archive.
        attempt: tells drills that were begun at one time apart.
        begun_ms: Unix time.
        ended_ms: the same; None = it has not ended.
        seed: what the moment was drawn by; None = somebody named the moment.
        at: the moment; 0 = it failed before one was drawn.
        into: section of the settings, or NAME of [targets.NAME], that names the server.
        target: address of the server, without secrets.
        verdict: one of `VERDICTS`.
        why: of one that failed, the error; else ''.
        hint: what that says to do; or ''.
        proof: key of the proof; '' = it did not come to one.
        tables: that were restored.
        unproven: those of them whose rows the archive alone does not tell.
        rows: rows of the dump and changes of the log that were read.
        payload_bytes: of both.
        restore_ms: duration of the restore; 0 = it did not end.
        proof_ms: that of the proof.
        whole: a restore of everything onto a server of drills alone; else of tables.
    """

    cluster_id: Uint64
    attempt: str
    begun_ms: int
    seed: int | None
    into: str
    target: str
    at: Tso = Tso(0)
    ended_ms: int | None = None
    verdict: str = NOT_ENDED
    why: str = ""
    hint: str = ""
    proof: str = ""
    tables: int = 0
    unproven: int = 0
    rows: int = 0
    payload_bytes: int = 0
    restore_ms: int = 0
    proof_ms: int = 0
    whole: Annotated[bool, UNSAID] = False

    @property
    def key(self) -> str:
        """Its name in the archive."""
        return drill_key(self.begun_ms, self.attempt)

    @property
    def green(self) -> bool:
        """Whether the rows were those of the archive."""
        return self.verdict == EQUAL

    @property
    def rate(self) -> float | None:
        """Rows that the restore read a second; None where it did not end."""
        return self.rows / self.restore_ms * 1000 if self.restore_ms else None

    @property
    def proof_rate(self) -> float | None:
        """Those of them that the proof read a second; None where it did not end."""
        return self.rows / self.proof_ms * 1000 if self.proof_ms else None

    @property
    def again(self) -> str:
        """The command that tries the same moment."""
        what = f"pumphouse drill --into {self.into}{' --whole' * self.whole}"
        return what + (f" --at {int(self.at)}" if self.at else "")

    def to_json(self) -> bytes:
        """Bytes as stored."""
        return dump(KIND, self.to_dict())

    @classmethod
    def from_json(cls, key: str, data: bytes) -> Drill:
        """Read the stored object; BadManifest."""

        def read(value: dict[str, Any]) -> Drill:
            drill = cls.from_dict(value)
            if drill.verdict not in VERDICTS:
                raise ValueError(f"{drill.verdict!r:.40} is no verdict")
            return drill

        found = parse(key, data, KIND, read, remedy=_REMEDY)
        if key != found.key:
            raise BadManifest(f"{key} is {found.key}", hint=_REMEDY, path=key, offset=0, reason="name")
        return found


def write_drill(archive: Archive, drill: Drill, *, keep: int) -> None:
    """Put it, in the place of what it was before; of the older ones, ``keep`` in all stay."""
    archive.store.put(drill.key, drill.to_json())
    try:
        keys = [each.key for each in archive.store.list(DRILLS)]
        for key in keys[: max(0, len(keys) - keep)]:
            old = _read(archive, key)
            if old is not None and old.proof:
                archive.store.delete(old.proof)
            archive.store.delete(key)
    except BinlogError as error:  # our keys may have no right to delete
        log.warning("old_drills_not_deleted", why=error.message)


def read_drills(archive: Archive) -> tuple[Drill, ...]:
    """Every drill, the oldest first; one that cannot be read is none, and `archive verify` names it."""
    return tuple(reversed([*_newest_first(archive)]))


def latest_drills(archive: Archive, count: int) -> tuple[Drill, ...]:
    """So many of the last ones, the newest first."""
    return tuple(islice(_newest_first(archive), count))


def last_drill(archive: Archive) -> Drill | None:
    """The last one that has ended."""
    return next((each for each in _newest_first(archive) if each.ended_ms is not None), None)


def estimate_s(archive: Archive, rows: int, *, proof: bool = False) -> float | None:
    """Seconds of a restore of so many rows and changes, or of its proof; None where there are no drills.

    By the rate of the last ones, in tenths rounded up.
    """
    found = (each.proof_rate if proof else each.rate for each in _newest_first(archive))
    rates = list(islice((each for each in found if each), _RECENT))
    return ceil(rows / median(rates) * 10) / 10 if rates else None


def _newest_first(archive: Archive) -> Iterator[Drill]:
    for key in reversed([each.key for each in archive.store.list(DRILLS)]):
        found = _read(archive, key)
        if found is not None:
            yield found


def _read(archive: Archive, key: str) -> Drill | None:
    try:
        return Drill.from_json(key, archive.store.get(key))
    except BinlogError as error:
        log.warning("drill_not_read", key=key, why=error.message)
        return None
