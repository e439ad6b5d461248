"""How far the archive was last proved: put by a verification that read everything and found nothing wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pumphouse.advice import Do, Hint
from pumphouse.archive.archive import Archive
from pumphouse.archive.document import dump, parse
from pumphouse.archive.layout import VERIFIED
from pumphouse.errors import ObjectNotFound
from pumphouse.model import strict
from pumphouse.model.tso import Tso

KIND = "verified"
AGAIN: Hint = ("delete it: the next ", Do.VERIFY, " writes it again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The archive was sound up to ``end``, that of the newest window then; ``window_sha256``: its manifest's digest."""

    end: Tso
    window_sha256: str


def write_verified(archive: Archive, end: Tso) -> None:
    """Note a sound verification up to a window's end; a shorter one than is noted is noted too: it is newer."""
    newest = next((each for each in archive.listed() if each.end == end), None)
    digest = archive.genesis().sha256 if newest is None else newest.sha256
    archive.store.put(VERIFIED, dump(KIND, {"end": int(end), "window_sha256": digest}))


def read_verified(archive: Archive) -> Verified | None:
    """The last note, None where there is none; BadManifest where it is not the one that was written."""

    def read(value: dict[str, Any]) -> Verified:
        return Verified(end=Tso(strict.integer(value["end"])), window_sha256=strict.text(value["window_sha256"]))

    try:
        data = archive.store.get(VERIFIED)
    except ObjectNotFound:
        return None
    return parse(VERIFIED, data, KIND, read, remedy=AGAIN)
