"""Row changes of binlogs, decoded in columns as their table was when they were committed.

Loads project rows onto the table as a target has it (`loader.decode`). Who tells the history (`archive changes`,
`find`, the Spark source) reads here: each change with the columns that its table had then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pumphouse.codec.columnar import DELETE, INSERT, UPDATE, Mutations, blocks
from pumphouse.errors import UsageError
from pumphouse.loader.decode import Layouts, groups_of
from pumphouse.loader.held import images_of
from pumphouse.loader.keys import ALL_ROWS, Predicate, key_columns
from pumphouse.loader.selection import Selection
from pumphouse.loader.tables import Wanted
from pumphouse.model.table import ColumnInfo
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.generated import as_rows
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TableVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A table as its rows have it from one DDL to the next; ``wanted``: the same for the decoder."""

    version: TableVersion
    wanted: Wanted

    def columns(self, only: Sequence[str] | None = None) -> tuple[ColumnInfo, ...]:
        """Those that rows have; ``only``: of these names, in any case, in the table's order; None = all."""
        names = None if only is None else {each.lower() for each in only}
        found = self.wanted.table.public_columns
        return tuple(c for c in found if not c.generated and (names is None or c.name.lower() in names))

    def only(self, columns: Sequence[str]) -> tuple[str, ...] | None:
        """Names of these columns, of which it may lack some, and of the key; None = all, as where none is named."""
        if not columns:
            return None
        names = {*(c.name for c in self.columns(columns)), *self.wanted.key}
        return tuple(c.name for c in self.columns() if c.name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Changes of one form and kind: their places among all that were given, and their rows before and after."""

    form: Form
    op: int
    rows: np.ndarray
    old: pa.RecordBatch | None
    new: pa.RecordBatch | None


class RowChanges:
    """Decodes for one reader; what it needs of the schema's history it remembers, for all of its threads.

    Args:
        timeline: that covers the changes.
        where: which rows are wanted, before or after a change.
        columns: which are wanted, and the key with them; () = all. A version of the table may lack some.
        tables: ids of those whose changes are wanted, None = all. A partition's id was another table's before an
            EXCHANGE PARTITION, or is it since: each change counts to the table that it was made in.
    """

    def __init__(
        self,
        timeline: Timeline,
        where: Predicate = ALL_ROWS,
        columns: Sequence[str] = (),
        tables: frozenset[int] | None = None,
    ) -> None:
        self._timeline, self._where, self._columns, self._tables = timeline, where, tuple(columns), tables
        self._layouts = Layouts(timeline)
        self._forms: dict[tuple[int, int, int], Form] = {}
        self._selections: dict[tuple[int, int, int], Selection] = {}

    def form(self, version: TableVersion) -> Form:
        """How rows of a version of a table are told."""
        at = _place(version)
        if at not in self._forms:
            table, stored, computed = as_rows(version.table, Dialect.TIDB)
            wanted = Wanted(
                table_id=version.table.id, db=version.db, table=table, schema_version=version.schema_version,
                key=key_columns(version.table), epoch=0, stored=stored, computed=computed,
            )  # fmt: skip
            return self._forms.setdefault(at, Form(version=version, wanted=wanted))
        return self._forms[at]

    def having(self, found: Mutations, commit_ts: np.ndarray) -> np.ndarray:
        """Mask of the changes whose row is wanted, before or after; ``commit_ts``: of each change.

        Raises:
            UsageError: a table has no such key.
        """
        mask = np.ones(len(found), np.bool_)
        if self._where:
            for form, rows in self._groups(found, commit_ts):
                mask[rows] = self._chosen(found.take(rows), form)
        return mask

    def decoded(self, found: Mutations, commit_ts: np.ndarray) -> Iterator[Images]:
        """The wanted changes, in no order. Those of a table that is gone by their commit have no effect: left out.

        Raises:
            UsageError: a table has no such key.
            UnknownTable, MissingColumn, CodecError, ColumnMismatch: they cannot be told.
        """
        for form, all_rows in self._groups(found, commit_ts):
            if form.version.dropped or not (self._tables is None or form.wanted.table_id in self._tables):
                continue
            op = int(found.op[all_rows[0]])
            for block in blocks(found.row_len[all_rows]):
                rows = all_rows[block]
                if self._where:
                    rows = rows[self._chosen(found.take(rows), form)]
                if len(rows):
                    old, new = self._images(found.take(rows), form, form.only(self._columns))
                    yield Images(form=form, op=op, rows=rows, old=old, new=new)

    def _groups(self, found: Mutations, commit_ts: np.ndarray) -> Iterator[tuple[Form, np.ndarray]]:
        """Changes of one form, one version of their writer and one kind."""
        place = np.zeros(len(found), np.int64)
        for table_id in np.unique(found.table_id):
            rows = found.table_id == table_id
            logical = int(table_id)
            if logical not in self._timeline.versions:
                logical = self._timeline.partitions.get(logical, logical)
            begins = [each.commit_ts for each in self._timeline.versions.get(logical, ())]
            place[rows] = np.searchsorted(np.array(begins, np.int64), commit_ts[rows], "right")
        for rows in groups_of(found.table_id, place, found.schema_version, found.op):
            yield self.form(self._timeline.at_ts(int(found.table_id[rows[0]]), int(commit_ts[rows[0]]))), rows

    def _chosen(self, part: Mutations, form: Form) -> np.ndarray:
        wanted = form.wanted
        if not wanted.key:
            raise UsageError(f"{'.'.join(form.version.name)} has no key", hint="leave --key out")
        at = _place(form.version)
        if at not in self._selections:
            self._selections[at] = Selection(self._where, wanted)
        selection = self._selections[at]
        masks = [selection.mask(each) for each in self._images(part, form, wanted.key) if each is not None]
        found: np.ndarray = np.logical_or.reduce(masks)
        return found

    def _images(
        self, part: Mutations, form: Form, only: tuple[str, ...] | None
    ) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None]:
        """Rows before and after of changes of one form and kind."""
        op, wanted = int(part.op[0]), form.wanted
        written = self._timeline.at_version(wanted.table_id, int(part.schema_version[0]))
        layout = self._layouts.of(wanted, written, only)
        images = images_of(part.data, part.row_start, part.row_len, op, wanted, layout, None)
        if op == UPDATE:
            return images[0], images[1]
        return (None, images) if op == INSERT else (images, None)


def _place(version: TableVersion) -> tuple[int, int, int]:
    return version.table.id, version.schema_version, int(version.commit_ts)


OPS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
