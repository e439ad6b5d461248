"""Which tables a flashback is of, and which of them the archive cannot take back. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from pumphouse.archive.view import ArchiveView, has_rows
from pumphouse.errors import UnknownTable
from pumphouse.loader.keys import key_columns
from pumphouse.loader.rules import NO_RULES
from pumphouse.loader.tables import Wanted
from pumphouse.model.tso import Tso, show
from pumphouse.proof.plan import untold
from pumphouse.restore.find import Sought, tables_called
from pumphouse.schema.actions import is_system
from pumphouse.schema.versions import TableVersion

_COPY = "`pumphouse restore --table` brings a copy beside it"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A table with changes in the range, as it is at the moment that the server is looked at.

    Args:
        version: the table.
        key: columns that tell its rows apart.
        bytes: of its changes in the range, in the archive.
        problem: why its changes cannot be taken back, or ''.
    """

    version: TableVersion
    key: tuple[str, ...]
    bytes: int
    problem: str = ""

    @property
    def name(self) -> str:
        """``database.table`` of the source."""
        return ".".join(self.version.name)

    @cached_property
    def wanted(self) -> Wanted:
        """What images are decoded to. Without a key there: so old images lack no column."""
        version = self.version
        return Wanted(
            table_id=version.table.id, db=version.db, table=version.table, schema_version=version.schema_version,
            key=(), epoch=0,
        )  # fmt: skip

    @cached_property
    def keyed(self) -> Wanted:
        """The same, with its key."""
        return replace(self.wanted, key=self.key)


def subjects(view: ArchiveView, sought: Sought, moment: Tso) -> dict[int, Subject]:
    """By id, the tables that are asked for and have changes in the range; one that nobody knows is passed over.

    Args:
        view: of the archive from ``sought.after`` on.
        sought: the range and the tables.
        moment: up to where the server has what the archive has.

    Raises:
        UnknownTable: no table in the range fits.
    """
    timeline = view.timeline
    chosen = tables_called(timeline, sought)
    sizes: dict[int, int] = {}
    for window in view.between(sought.after, sought.upto):
        for segment in window.segments:
            for table_id, stat in segment.tables.items():
                of = table_id if table_id in timeline.versions else timeline.partitions.get(table_id, table_id)
                sizes[of] = sizes.get(of, 0) + stat.bytes
    found = {}
    for table_id, size in sorted(sizes.items()):
        known = timeline.versions.get(table_id, ())
        version = _at(view, table_id, moment)
        if (chosen and table_id not in chosen) or not known or is_system(known[-1].db) or version is None:
            continue
        found[table_id] = _subject(view, table_id, version, sought.after, moment, size)
    return found


def _subject(view: ArchiveView, table_id: int, version: TableVersion, after: Tso, moment: Tso, size: int) -> Subject:
    key = key_columns(version.table)
    events = view.timeline.ddls(after, moment)
    problem = ""
    if version.dropped or version.table.id != table_id:
        gone = next(
            (each for each in events if table_id in each.table_ids and version.commit_ts == each.commit_ts), None
        )
        what = f"DDL job {gone.job.id} ({gone.action.name})" if gone is not None else "a DDL"
        problem = f"{what} dropped or truncated it at {show(version.commit_ts)}: {_COPY}"
    elif not has_rows(version):
        problem = "it has no rows"
    elif not key:
        problem = f"it has no key, so nothing tells its rows apart: {_COPY}"
    elif why := untold(version, events, NO_RULES, _COPY):
        problem = why
    elif (before := _at(view, table_id, after)) is not None and key_columns(before.table) != key:
        problem = f"a DDL since {show(after)} changed its key: {_COPY}"
    return Subject(version=version, key=key, bytes=size, problem=problem)


def _at(view: ArchiveView, table_id: int, ts: Tso) -> TableVersion | None:
    """The table at a moment; None where it came later."""
    try:
        return view.timeline.at_ts(table_id, ts)
    except UnknownTable:
        return None
