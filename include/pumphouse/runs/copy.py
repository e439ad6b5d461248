"""Bring a copy of the archive up to date: what `archive copy` and the DAG `binlog_maintenance` do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pumphouse.archive.archive import Archive
from pumphouse.archive.copying import CopyReport, Tick, copy_archive
from pumphouse.errors import ConfigError, UsageError
from pumphouse.parts import Parts
from pumphouse.settings import ArchiveSettings, Settings


def run(
    settings: Settings,
    root: str = "",
    *,
    full: bool = False,
    dry_run: bool = False,
    tick: Tick = lambda _what, _done, _total: None,
) -> CopyReport:
    """Copy the archive; it needs no cluster.

    Args:
        settings: all of them.
        root: where to; '' = as ``archive.copy_root`` says.
        full: also read back everything that the copy has, and mend it.
        dry_run: only say what would be copied.
        tick: called with (what, done, total).

    Raises:
        UsageError: no place is named.
        ConfigError, BadManifest, BadSegment, UnsafeStore: as `copy_archive`.
    """
    place = root or settings.archive.copy_root
    if not place:
        raise UsageError(
            "it is not said where the copy is to lie",
            hint="pumphouse archive copy s3://bucket/prefix, or the setting archive.copy_root",
        )
    require_two_places(settings.archive, place)
    with Parts(settings) as parts:
        archive = parts.readable_archive
        archive.genesis()  # says what to do where there is none
        return copy_archive(archive, copy_at(settings, place, archive), full=full, dry_run=dry_run, tick=tick)


def require_two_places(archive: ArchiveSettings, place: str) -> None:
    """ConfigError for a copy of the archive's URL that has an access of its own.

    `ArchiveSettings.s3` tells the two apart by the URL alone: every command goes to the copy's server. That is right
    once the copy is the archive, so only what would make an archive or a copy there asks.
    """
    if archive.copy_s3_region and archive.root.rstrip("/") == place.rstrip("/"):
        raise ConfigError(
            "archive.copy_root is the same URL as archive.root: nothing else tells the two servers apart",
            hint="give the copy another bucket or prefix; or, where the copy became the archive, write its access "
            "as archive.s3_… and take archive.copy_… away",
        )


def copy_at(settings: Settings, root: str, archive: Archive) -> Archive:
    """The copy of an archive under another root, reached as the settings say of copies."""
    there = settings.archive.model_copy(update={"root": root, "copy_root": root})
    return Archive.open(there, archive.cluster_id)


def told(report: CopyReport) -> dict[str, Any]:
    """JSON object of a report (docs/formats.md, "Command output")."""
    found = asdict(report)
    for name in ("was", "start", "end", "of_start"):
        found[f"{name}_ts"] = found.pop(name)
    return found
