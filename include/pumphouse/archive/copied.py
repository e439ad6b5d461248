"""What the copy of an archive has: nothing is believed that its own documents name and its store does not list."""

from __future__ import annotations

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.copyof import read_copy_of
from pumphouse.archive.range import OldestBase
from pumphouse.archive.retention import Hold
from pumphouse.archive.sweep import Kept, first_lacking, list_objects, look_at_kept
from pumphouse.errors import BadManifest, BinlogError, ConfigError
from pumphouse.model.tso import MAX_TSO, Tso, show

FULL = "pumphouse archive copy --full reads the copy and puts again what the archive still has"


def damaged(copy: Archive, error: BinlogError) -> BadManifest:
    """What is wrong with the copy, and what mends it."""
    path = str(error.facts.get("path") or copy.url)
    return BadManifest(
        f"the copy at {copy.url} is damaged: {error.message}", hint=FULL, path=path, offset=0, reason="copy"
    )


def require_copied(archive: Archive, copy: Archive) -> Kept:
    """What the copy has, by its own documents and a listing: names and sizes, no contents.

    Raises:
        ConfigError: it is no copy of the archive, or not begun.
        BadManifest: it lacks what it names.
    """
    of = read_copy_of(copy.store)
    if of is None or of.genesis_sha256 != archive.genesis().sha256:
        raise ConfigError(f"{copy.url} is no copy of the archive at {archive.url}", hint="is archive.copy_root right?")
    if of.range is None:
        raise ConfigError(f"the copy at {copy.url} is not begun yet", hint="pumphouse archive copy", missing=True)
    try:
        listed = list_objects(copy)
        kept = look_at_kept(copy, lambda: ())
        lacking = first_lacking(copy.store, listed, kept.named(copy))
    except BinlogError as error:
        raise damaged(copy, error) from error
    oldest = kept.range.base
    if oldest is not None and oldest not in (OldestBase.of(base) for base in kept.bases):
        lacking = oldest.key, f"is not there as {kept.range.key} names it"
    if lacking is not None:
        key, what = lacking
        raise damaged(copy, BadManifest(f"{key} {what}", path=key, offset=0, reason="missing"))
    return kept


def held_by_copy(archive: Archive, copy: Archive, who: str) -> list[Hold]:
    """What the archive must keep, because its copy does not have it yet; everything, where that cannot be told.

    Args:
        archive: which one.
        copy: of it.
        who: as people know it.
    """
    hint = "pumphouse archive copy"
    try:
        kept = require_copied(archive, copy)
        end = kept.windows.end if kept.windows else kept.range.start
        there = {base.key for base in kept.bases}
        lacking = [base for base in archive.bases(MAX_TSO) if base.key not in there]
    except BinlogError as error:
        return [Hold(who=who, ts=Tso(0), restorable=True, why=f"does not say what it has: {error.message}", hint=hint)]
    found = [Hold(who=who, ts=end, restorable=False, why=f"has windows up to {show(end)}", hint=hint)]
    if lacking:
        why = f"lacks the dump or base of {show(lacking[0].ts)}"
        found.append(Hold(who=who, ts=lacking[0].ts, restorable=True, why=why, hint=hint))
    return found


def behind(archive: Archive, copy: Archive, *, end: Tso) -> tuple[Tso | None, int]:
    """Where the copy ends, None = none was begun; and how many windows of the archive, which ends there, it lacks."""
    of = read_copy_of(copy.store)
    if of is None or of.range is None:
        return None, 0
    reached = copy.end()
    after = layout.before_window(reached)
    lacks = sum(1 for _ in archive.store.list(layout.WINDOWS, after=after)) if reached < end else 0
    return reached, lacks
