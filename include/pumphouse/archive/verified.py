"""How far the archive was last proved: put by a verification that read everything and found nothing wrong."""

from __future__ import annotations

from dataclasses import dataclass

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.document import dump, parse
from pumphouse.errors import BadManifest, ObjectNotFound
from pumphouse.model.record import Record
from pumphouse.model.tso import Tso

KIND = "verified"
AGAIN = "delete it: the next `pumphouse archive verify` writes it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified(Record):
    """The archive was sound up to ``end``, that of the newest window then; ``window_sha256``: its manifest's digest."""

    end: Tso
    window_sha256: str


def write_verified(archive: Archive, end: Tso) -> None:
    """Note a sound verification up to a window's end; a shorter one than is noted is noted too: it is newer.

    BadManifest where the windows that are kept do not end there, nor begin.
    """
    kept = archive.range()
    digest = kept.window if end == kept.start else archive.listed().digest_at(end)
    if digest is None:
        raise BadManifest(f"no window ends at {end}", path=layout.WINDOWS, offset=0, reason="gap")
    archive.store.put(layout.VERIFIED, dump(KIND, Verified(end=end, window_sha256=digest).to_dict()))


def read_verified(archive: Archive) -> Verified | None:
    """The last note, None where there is none; BadManifest where it is not the one that was written."""
    try:
        data = archive.store.get(layout.VERIFIED)
    except ObjectNotFound:
        return None
    return parse(layout.VERIFIED, data, KIND, Verified.from_dict, remedy=AGAIN)
