"""The stages of a load as pure functions over blobs: decode, fold, apply. Engines only move blobs between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import pyarrow as pa

from pumphouse import advice
from pumphouse.clock import Throttle
from pumphouse.errors import RowRejected
from pumphouse.loader.blob import ENTRIES, Blob, blobs_of
from pumphouse.loader.columns import shown
from pumphouse.loader.context import LoadContext
from pumphouse.loader.decode import Decoder
from pumphouse.loader.fold import LastOfKeys, check_keys, fold_multiset, net_of_keyed, net_of_multiset
from pumphouse.loader.keyless import COUNT
from pumphouse.loader.looks import require_server
from pumphouse.loader.plan import TIDB_UNIT_BYTES, Mode, Phase, Plan, UnitId
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.unit import Claim, UnitHead, apply_units
from pumphouse.loader.work import SegmentPart
from pumphouse.schema.dialect import Dialect
from pumphouse.settings import TargetSettings

# Of the units of one table without a key that are applied in one transaction.
_SCAN_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class UnitSummary:
    """A unit that there is something to do for."""

    unit: UnitId
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ApplyContext:
    """What applying needs; picklable. Holds the target's secret.

    ``server``: which one owns the target's lock. ``bytes_per_s``: of rows, over all connections; 0 = no limit.
    """

    target: TargetSettings
    claim: Claim
    server: str
    bytes_per_s: int = 0

    def shared(self, connections: int) -> ApplyContext:
        """For one of so many connections."""
        return replace(self, bytes_per_s=-(-self.bytes_per_s // connections))


def decode(context: LoadContext, pieces: Iterable[SegmentPart]) -> Iterator[Blob]:
    """Stage 1: entries of each epoch, table and bucket; of tables that nothing is laid over, units."""
    return Decoder(context).run(pieces)


def fold(plan: Plan, blobs: Iterable[Blob]) -> Iterator[Blob]:
    """Stage 2: blobs of entries, those of one group in a row, to the blobs of their two units; those of units stay."""
    for (_, _, bucket, phase), group in groupby(blobs, key=lambda blob: blob.group):
        if phase != ENTRIES:
            yield from group
            continue
        entries = pa.concat_tables([blob.table() for blob in group])
        yield from _fold_one(plan, entries, bucket)


def _fold_one(plan: Plan, entries: pa.Table, bucket: int) -> Iterator[Blob]:
    head, mode = UnitHead.of(entries.schema), plan.mode
    if head.key:
        folded = LastOfKeys.of(entries, head.key).changed()
        check_keys(folded, head.key, f"{head.db}.{head.table}")
        # What is left out may have left a row under any key, also in an epoch before.
        any_row = mode is Mode.REPEAT or (bool(plan.without) and not head.droppable)
        gone, come = net_of_keyed(folded, head.key, everything=any_row, passing=head.droppable and not any_row)
    else:
        gone, come = net_of_multiset(fold_multiset(entries))
    for phase, table in ((Phase.DELETE, gone), (Phase.INSERT, come)):
        if phase is Phase.DELETE and mode is Mode.BASE:
            # The tables of a base were made empty. A row without a key that goes must have come before.
            if not head.key and table.num_rows:
                raise _no_such_rows(head, table)
            continue
        unit = replace(head.unit, phase=int(phase), bucket=bucket)
        metadata = replace(head, unit=unit).to_metadata()
        yield from blobs_of(table.replace_schema_metadata(metadata), bucket=bucket, phase=int(phase))


def _no_such_rows(head: UnitHead, gone: pa.Table) -> RowRejected:
    """The log above a dump deletes rows that neither it nor the dump has."""
    columns = [name for name in gone.schema.names if name != COUNT]
    row = {name: shown(value) for name, value in gone.select(columns).slice(0, 1).to_pylist()[0].items()}
    return RowRejected(
        f"{head.db}.{head.table} has no key, and the log deletes {gone.num_rows} rows that the dump lacks, as {row}",
        hint=("take a new dump: ", advice.dump(), "; give the table a primary key if it happens again"),
        table=f"{head.db}.{head.table}",
        rows=[row],
        reason="no such row",
    )


def summarize(groups: Iterable[tuple[int, int, int, int, int, int]]) -> list[UnitSummary]:
    """(epoch, table, bucket, phase, rows, bytes) of blobs, to units in the order of their ids."""
    found: dict[UnitId, UnitSummary] = {}
    for epoch, table_id, bucket, phase, rows, size in groups:
        unit = UnitId(epoch, phase, table_id, bucket)
        known = found.get(unit, UnitSummary(unit, 0, 0))
        found[unit] = UnitSummary(unit, known.rows + rows, known.bytes + size)
    return [found[unit] for unit in sorted(found)]


def apply(context: ApplyContext, blobs: Iterable[Blob], throttle: Throttle) -> Iterator[tuple[UnitId, int, bool]]:
    """Stage 3: apply units, the blobs of one in a row; yields (unit, rows, whether it was applied now)."""
    with TargetConnection.open(context.target) as connection:
        require_server(connection, context.server)
        most = TIDB_UNIT_BYTES if connection.dialect is Dialect.TIDB else _SCAN_BYTES
        for some in _in_one_scan(([*group] for _, group in groupby(blobs, key=lambda blob: blob.group)), most):
            units = [(unit[0].head, _batches(unit)) for unit in some]
            done = apply_units(connection, context.claim, units)
            for (head, batches), now in zip(units, done, strict=True):
                yield head.unit, sum(batch.num_rows for batch in batches), now
                if now:
                    size = sum(batch.nbytes for batch in batches)
                    throttle.took(size, meanwhile=lambda: connection.execute("DO 0"))


def scan_of(unit: Sequence[Blob]) -> tuple[int, int] | None:
    """What units have alike for which a table has to be read only once; None = it need not be read."""
    blob = unit[0]
    return (blob.epoch, blob.table_id) if blob.phase == Phase.DELETE and blob.head.scans else None


def _in_one_scan(units: Iterable[list[Blob]], most: int) -> Iterator[list[list[Blob]]]:
    """Units one by one; of those in a row for which the same table is read whole, so many bytes at once."""
    held: list[list[Blob]] = []
    last: tuple[int, int] | None = None
    size = 0
    for unit in units:
        scan, own = scan_of(unit), sum(blob.size for blob in unit)
        if held and (scan is None or scan != last or size + own > most):
            yield held
            held, size = [], 0
        held.append(unit)
        last, size = scan, size + own
    if held:
        yield held


def _batches(unit: Sequence[Blob]) -> list[pa.RecordBatch]:
    return [batch for blob in unit for batch in blob.batches()]
