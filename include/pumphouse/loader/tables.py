"""Where the rows of a table id go: which table of the target, which columns, by which key."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pumphouse.errors import LoadError
from pumphouse.loader.epochs import Epochs
from pumphouse.loader.keys import key_columns
from pumphouse.loader.plan import ORDERED, Mode, UnitId
from pumphouse.loader.unit import UnitHead
from pumphouse.model.table import TableInfo
from pumphouse.model.tso import Tso, show
from pumphouse.schema.actions import is_system
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.generated import as_rows, on_target
from pumphouse.schema.table_sql import checks
from pumphouse.schema.versions import TableVersion

if TYPE_CHECKING:
    from pumphouse.loader.context import LoadContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The table version that readers of the target see when the rows arrive; ``epoch``: the table's, when they do.

    ``table``: as its rows have it (`pumphouse.schema.generated`). ``stored``: columns of it that only a target gets
    which does not compute them; ``computed``: those of them that a target is to compute.
    ``doubles``: JSON tells doubles from integers (`json_text`).
    """

    table_id: int
    db: str
    table: TableInfo
    schema_version: int
    key: tuple[str, ...]
    epoch: int
    stored: frozenset[str] = frozenset()
    computed: frozenset[str] = frozenset()
    doubles: bool = False

    @property
    def droppable(self) -> bool:
        """Whether the source may drop the key while rows are written, so that two of them have it for a while."""
        return bool(self.key) and not (self.table.pk_is_handle or self.table.is_common_handle)

    def head(self, epoch: int) -> UnitHead:
        """Head of a unit of this table; phase and bucket are not known yet."""
        return UnitHead(
            unit=UnitId(epoch, 0, self.table_id, 0), db=self.db, table=self.table.name, key=self.key,
            droppable=self.droppable, stored=tuple(sorted(self.stored)),
        )  # fmt: skip


class WantedTables:
    """Answers for one plan, remembered."""

    def __init__(self, context: LoadContext) -> None:
        self._plan, self._routes = context.plan, context.routes
        self._dialect, self._doubles = context.dialect, context.doubles
        self._timeline = context.timeline
        self._epochs = Epochs(context.plan)
        self._found: dict[tuple[int, int], Wanted | None] = {}
        self._same: dict[tuple[int, int, int], Wanted] = {}

    def of(self, table_id: int, commit_ts: int) -> Wanted | None:
        """The table for rows of a transaction; None when they have no place to go (dropped, truncated, left out).

        One value for all rows of an epoch of the table.
        """
        at = (table_id, self._epochs.place(commit_ts))
        if at not in self._found:
            wanted = self._look(table_id, commit_ts if self._plan.mode in ORDERED else self._plan.to_ts)
            if wanted is not None:
                wanted = self._same.setdefault((wanted.table_id, wanted.epoch, wanted.schema_version), wanted)
            self._found[at] = wanted
        return self._found[at]

    def _look(self, table_id: int, moment: int) -> Wanted | None:
        timeline, plan = self._timeline, self._plan
        if str(table_id) in plan.skipped:
            return None
        version = timeline.at_ts(table_id, moment)
        if version.dropped or is_system(version.db) or f"{version.db}.{version.table.name}" in plan.skipped:
            return None
        if plan.only and f"{version.db}.{version.table.name}".lower() not in plan.only:
            return None
        if plan.mode is Mode.BASE and version.table.id != table_id:
            # The id is a partition's by now: its table was exchanged into another, whose dump has its rows.
            return None
        epoch = self._epochs.of(version.table.id, moment)
        if plan.mode in ORDERED:
            # A key or a column that a DDL takes away is out of force before that DDL is done: rows of the time between
            # may share the key, and images lack the column. Nothing is lost by loading them after the DDL, but where a
            # rule stands in for it: its statements may read the column, or leave it on the target.
            versions = timeline.versions[version.table.id]
            for after in versions[bisect_right(versions, version.commit_ts, key=lambda v: v.commit_ts) :]:
                if after.commit_ts > plan.to_ts or not comes_first(version, after, plan.ruled):
                    break
                version, epoch = after, self._epochs.after(version.table.id, after.commit_ts)
        there = self._routes.version(version)
        if all(column.generated for column in on_target(there.table, self._dialect).public_columns):
            name = f"{version.db}.{version.table.name}"
            raise LoadError(
                f"{name} has rows and no column but generated ones at {show(Tso(moment))}: nothing tells how many",
                table=name,
            )
        table, stored, computed = as_rows(there.table, self._dialect)
        key = key_columns(version.table)
        # Rows without a key are told apart by TiDB's spelling. A TiDB prints a double 1.0 as 1, in generated columns
        # too; on a MySQL only an integer is printed so.
        doubles = self._doubles and bool(key) and not (self._dialect is Dialect.MYSQL and version.table.of_tidb)
        return Wanted(
            table_id=version.table.id,
            db=there.db,
            table=table,
            schema_version=version.schema_version,
            key=key,
            epoch=epoch,
            stored=stored,
            computed=computed,
            doubles=doubles,
        )


def comes_first(before: TableVersion, after: TableVersion, ruled: Container[int]) -> bool:
    """Whether rows from before a DDL can be loaded after it; ``ruled``: commit ts of DDLs that a rule stands in for."""
    keeps = len(after.table.public_columns) == len(before.table.public_columns)
    return only_takes_away(before, after) and (keeps or after.commit_ts not in ruled)


def only_takes_away(before: TableVersion, after: TableVersion) -> bool:
    """Whether a DDL dropped columns or unique keys of a table, and did nothing else that rows could tell."""
    old, new = before.table, after.table
    if after.dropped or before.name != after.name or old.partition_ids != new.partition_ids:
        return False
    if checks(new).items() - checks(old).items() or old.pk_is_handle != new.pk_is_handle:
        return False
    columns = {c.id: (c.name, c.type, c.generated_expr) for c in old.public_columns}
    keys = {i.id: tuple(c.name.lower() for c in i.columns) for i in old.indexes if i.unique and i.public}
    left = {c.id: (c.name, c.type, c.generated_expr) for c in new.public_columns}
    keys_left = {i.id: tuple(c.name.lower() for c in i.columns) for i in new.indexes if i.unique and i.public}
    taken = len(left) < len(columns) or len(keys_left) < len(keys)
    return taken and left.items() <= columns.items() and keys_left.items() <= keys.items()
