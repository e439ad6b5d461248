"""The rows of one table at a moment, from the newest base before it and the log behind that, in batches.

As in a proof, entries lie on disk by bucket of the key, and a bucket is folded at a time. A table whose rows the
archive alone does not tell (a DDL changed them without binlogs) is refused by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pumphouse.archive.losses import Losses
from pumphouse.archive.view import ArchiveView, has_rows
from pumphouse.errors import LoadError, UnknownTable, UsageError
from pumphouse.loader.changes import Form, RowChanges
from pumphouse.loader.context import LoadContext
from pumphouse.loader.decode import Decoder
from pumphouse.loader.engine import deal
from pumphouse.loader.fold import COUNT_FIELD, fold_multiset, order_of
from pumphouse.loader.keyless import COUNT
from pumphouse.loader.keys import ALL_ROWS, Predicate, key_columns
from pumphouse.loader.plan import Mode, bucket_counts
from pumphouse.loader.report import Progress, silent
from pumphouse.loader.rules import NO_RULES, Rules, unknown_ids
from pumphouse.loader.work import SegmentPart, base_work, ids_of, pieces_of
from pumphouse.model.tso import Tso, show
from pumphouse.proof.gather import Spill
from pumphouse.proof.plan import untold
from pumphouse.restore.plan import unreachable
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.versions import TableVersion
from pumphouse.settings import ArchiveSettings, LoadSettings

_TASK = "history"
_BATCH_ROWS = 1 << 16
_COPY = "`pumphouse restore --table` builds it on a server, DDL by DDL"


@dataclass(frozen=True, slots=True)
class Cut:
    """How the rows of a table are cut into parts, as in a plan. The same cut gives the same rows in the same order."""

    buckets: int
    ranges: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A table at a moment: what `rows_at` reads. Picklable.

    Args:
        context: of the work.
        pieces: of the base and of the log behind it.
        form: the table as it was.
        losses: what they lack.
    """

    context: LoadContext
    pieces: Sequence[SegmentPart]
    form: Form
    losses: Losses

    @property
    def cut(self) -> Cut:
        """Of its rows."""
        plan, table_id = self.context.plan, self.form.wanted.table_id
        return Cut(plan.bucket_count(table_id), plan.ranges.get(table_id, ()))


def moment_of(
    view: ArchiveView,
    table: str,
    at: Tso,
    *,
    archive: ArchiveSettings,
    load: LoadSettings,
    where: Predicate = ALL_ROWS,
    cut: Cut | None = None,
) -> Moment:
    """What is read for a table at a moment.

    Args:
        view: of the whole archive, up to the moment.
        table: ``database.table``, as it was called then, in any case.
        at: the moment, inclusive.
        archive: where it is.
        load: how the rows are cut into buckets. Of its rules those count that leave out a table which no DDL names.
        where: only these rows.
        cut: that of an earlier time, so that the rows come in the order of then; None = as fits what is read.

    Raises:
        UnknownTable: there was none of that name.
        UsageError: it was no table with rows, or has no key and one is asked for.
        RestoreError: no base leads to the moment.
        LoadError: the archive alone does not tell its rows.
    """
    version = table_at(view, table, at)
    name = ".".join(version.name)
    if where and not key_columns(version.table):
        raise UsageError(f"{name} has no key", hint="leave --key out")
    # By its id: it may have had another name when a dump left it out.
    without = {each.name for base in view.bases for each in base.without if each.table_id == version.table.id}
    base = view.base_for(at, lambda each: each not in without)
    if base is None:
        raise unreachable(at, view, lambda each: each not in without)
    if why := untold(version, view.timeline.ddls(base.low, at), NO_RULES, "a later base would tell"):
        raise LoadError(f"the archive alone does not tell the rows of {name}: {why}", hint=_COPY, table=name)
    only = frozenset({name.lower()})
    work = base_work(view, base, _TASK, load, Rules(only=only))
    windows, ids = view.between(base.ts, at), ids_of(view.timeline, only)
    work = replace(
        work,
        pieces=(*work.pieces, *pieces_of(windows, base.ts, at, ids)),
        # Segments that are read have other tables, too.
        tables=work.tables | ids | windows.table_ids(),
    )
    size = sum(work.sizes.values()) + sum(stat.bytes for table_id, stat in windows.stats().items() if table_id in ids)
    if cut is None:
        buckets = bucket_counts({version.table.id: size}, unit_bytes=load.unit_bytes, connections=1)
    else:
        buckets = {version.table.id: cut.buckets}
    # As the table is at the end, whatever it was when its rows were written.
    # A rule of a table that a DDL names is one of loads.
    known = view.timeline.versions.keys() | view.timeline.partitions.keys()
    skipped = {str(each): "skipped" for each in unknown_ids(load.rules) - known}
    plan = replace(
        work.plan, to_ts=at, mode=Mode.REPEAT, buckets=buckets, whole=frozenset(), where=where, skipped=skipped,
        without=(),
    )  # fmt: skip
    work = replace(work, plan=plan, sizes={version.table.id: size})
    context = LoadContext.of(work, view, archive, Dialect.TIDB)
    ranges = {version.table.id: cut.ranges} if cut is not None and cut.ranges else {}
    if cut is None and buckets and key_columns(version.table):
        ranges = Decoder(context).ranges(work)  # so that rows come in the order of the key's first column
    return Moment(
        context=replace(context, plan=replace(plan, ranges=ranges)),
        pieces=work.pieces,
        form=RowChanges(view.timeline).form(version),
        losses=view.losses(base.since, at),
    )


def table_at(view: ArchiveView, table: str, at: Tso) -> TableVersion:
    """The table that was called so at a moment, in any case; UnknownTable, and UsageError for what has no rows."""
    version = next((v for v in view.timeline.tables_at(at) if ".".join(v.name).lower() == table.lower()), None)
    if version is None:
        raise UnknownTable(
            f"there was no table {table} at {show(at)}", hint=f"`pumphouse schema show --at {at}` lists those of then"
        )
    if not has_rows(version):
        raise UsageError(f"{'.'.join(version.name)} is no table with rows")
    return version


def rows_at(moment: Moment, *, connections: int = 2, tell: Progress = silent) -> Generator[pa.RecordBatch, None, None]:
    """The rows, as `decode_images` makes columns; within a bucket by key, or by all columns where there is none.

    Args:
        moment: of `moment_of`.
        connections: threads that decode.
        tell: told of each segment and bucket.

    Who does not read to the end closes it: it has files on the local disk.

    Raises:
        BadSegment: an object is missing or damaged.
        LoadError: the archive does not tell the rows.
    """
    context, wanted = moment.context, moment.form.wanted
    done = itertools.count(1)

    def told(_: SegmentPart) -> None:
        tell("reading segments", next(done), len(moment.pieces))

    with Spill.made() as spill:
        with ThreadPoolExecutor(connections, thread_name_prefix="history") as pool:
            jobs = [pool.submit(spill.put, context, some, told) for some in deal(moment.pieces, connections)]
            for job in jobs:
                job.result()
        buckets = spill.buckets(wanted.table_id)
        for number, bucket in enumerate(buckets):
            rows, copies = spill.take(wanted.table_id, bucket)
            if rows is None:
                continue
            if copies is not None:
                rows = fold_multiset(rows.append_column(COUNT_FIELD, pa.array(copies)))
                copies, rows = rows.column(COUNT).to_numpy(), rows.drop_columns([COUNT]).combine_chunks()
                if (copies < 0).any():
                    name = ".".join(moment.form.version.name)
                    raise LoadError(
                        f"the archive alone does not tell the rows of {name}: its log takes rows away that neither it "
                        "nor the base has brought",
                        hint=_COPY,
                        table=name,
                    )
            order = order_of(rows.select(wanted.key or rows.column_names))
            # Up to which row of the bucket each stands: copies are made a batch at a time, however many there are.
            ends = np.cumsum(np.ones(len(order), np.int64) if copies is None else copies[order])
            for at in range(0, int(ends[-1]) if len(ends) else 0, _BATCH_ROWS):
                some = np.searchsorted(ends, np.arange(at, min(at + _BATCH_ROWS, ends[-1])), "right")
                yield from rows.take(pa.array(order[some])).combine_chunks().to_batches()
            tell("folding", number + 1, len(buckets))
