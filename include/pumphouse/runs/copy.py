"""Bring a copy of the archive up to date: what `archive copy` and the DAG `binlog_maintenance` do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pumphouse.archive.archive import Archive
from pumphouse.archive.copying import CopyReport, Tick, copy_archive
from pumphouse.errors import UsageError
from pumphouse.parts import Parts
from pumphouse.settings import Settings


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
    with Parts(settings) as parts:
        archive = parts.readable_archive
        archive.genesis()  # says what to do where there is none
        return copy_archive(archive, copy_at(settings, place, archive), full=full, dry_run=dry_run, tick=tick)


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
