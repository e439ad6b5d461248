"""Carry a proof out: the server's checksums first, in one snapshot, then the archive's; what is known is kept at once.

A run that is killed goes on from its object in the archive: with the tables that were proven, and with the server's
checksums of the others, so the target may have gone on meanwhile. Tables are decoded some at a time, so that they fit
on the disk; a larger one by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa

from pumphouse.archive.archive import Archive
from pumphouse.archive.proofs import (
    MODULUS,
    NO_ROWS,
    DifferingRow,
    Outcome,
    Proof,
    ProvenRange,
    ProvenTable,
    Sums,
    write_proof,
)
from pumphouse.archive.view import ArchiveView, has_rows
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import ColumnMismatch, DuplicateKey, LoadError, MissingColumn
from pumphouse.loader.columns import shown
from pumphouse.loader.context import LoadContext
from pumphouse.loader.decode import Decoder
from pumphouse.loader.engine import deal
from pumphouse.loader.report import Counted, Progress, silent
from pumphouse.loader.tables import WantedTables
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.work import Work
from pumphouse.mysql import DUMP
from pumphouse.proof.alike import pair, value_of, values_of
from pumphouse.proof.archived import checksums, total
from pumphouse.proof.gather import Spill
from pumphouse.proof.plan import Subject, sizes_of, work_of
from pumphouse.proof.readable import of_archive
from pumphouse.proof.servers import Stand, columns_there, rows_of, snapshots, sums
from pumphouse.proof.sides import Side, folded, ranks_of, side_again, side_of, with_ranges
from pumphouse.restore.plan import RestorePlan
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.route import Routes
from pumphouse.settings import ArchiveSettings, LoadSettings, TargetSettings

# Of what is decoded at once, in the archive's bytes: about as much lies on the disk.
PASS_BYTES = 32 << 30
# A range with more rows is not searched for those that differ.
_SEARCHED_ROWS = 1_000_000
_SHOWN_ROWS = 5
_WRITE_S = 10.0
_BY_TEXT = "its JSON ({}) could only be compared as text, and may have the same values, as pumphouse diff tells"
_UNTOLD = "the archive alone does not tell its rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a proof is carried out with.

    Args:
        archive: where it is kept.
        view: what is proved against.
        plan: of a restore to the moment.
        subjects: the tables, unproven ones too.
        searched: databases there in which a table that the archive does not have is unexpected.
        target: the server.
        section: of the settings, which names it.
        stand: where it stands; None of tables that lie there by themselves.
        dialect: of the server.
        routes: what tables are called there.
        load: how many connections, and how tables are cut.
        archive_settings: for threads that open the archive themselves.
        kept: in the archive.
    """

    archive: Archive
    view: ArchiveView
    plan: RestorePlan
    subjects: Sequence[Subject]
    searched: Collection[str]
    target: TargetSettings
    section: str
    stand: Stand | None
    dialect: Dialect
    routes: Routes
    load: LoadSettings
    archive_settings: ArchiveSettings
    kept: bool = True


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A part of a table's rows, as the archive deals them out, and the range that it counts for."""

    table: str
    number: int
    range: int
    alone: bool  # the range has no other


class Prover:
    """One proof."""

    def __init__(self, given: Given, proof: Proof, progress: Progress = silent, clock: Clock = SYSTEM_CLOCK) -> None:
        self._given = given
        self._proof = proof
        self._progress = progress
        self._clock = clock
        self._written = clock.monotonic()
        self._tables: dict[str, ProvenTable] = {each.name: each for each in proof.tables}
        self._sides: dict[str, Side] = {}
        self._unsearched: dict[str, str] = {}  # table -> why nobody looked for the rows that differ

    def run(self) -> Proof:
        """The proof, ended."""
        for each in self._given.subjects:
            self._tables.setdefault(each.name, _begun(each, self._given.routes))
        self._write()  # before anything is read: what is kept holds the dump
        passes = [self._cut(names) for names in _passes(self._given, self._open())]
        self._look(passes)
        for work, names in passes:
            self._gather(work, [name for name in names if self._tables[name].outcome is Outcome.OPEN])
        self._proof = replace(self._proof, ended_ms=int(self._clock.now() * 1000))
        self._write()
        return self._proof

    def _open(self) -> list[str]:
        return [name for name, table in self._tables.items() if table.outcome is Outcome.OPEN]

    def _cut(self, names: Sequence[str]) -> tuple[Work, Sequence[str]]:
        """What is read for some tables, dealt out by the ranges that were given to them, or by new ones."""
        given = self._given
        work = work_of(given.plan, given.view, given.load, names)
        wanted = WantedTables(self._context(work))
        buckets, known = dict(work.plan.buckets), {}
        for name in names:
            table = self._tables[name]
            if table.key and (found := wanted.of(table.table_id, self._proof.at)) is not None:
                known[table.table_id] = ranks_of(table, found)
                buckets[table.table_id] = len(table.ranges)
        work = replace(work, plan=replace(work.plan, buckets=buckets))
        ranges = Decoder(self._context(work)).ranges(work) if buckets.keys() - known.keys() else {}
        ranges = ranges | known
        # Without ranges more buckets than the memory needs are of no use.
        buckets = {
            table_id: count if table_id in ranges else work.sizes[table_id] // given.load.unit_bytes + 1
            for table_id, count in buckets.items()
        }
        return replace(work, plan=replace(work.plan, buckets=buckets, ranges=ranges)), names

    # -- the server's side ---------------------------------------------------------------------------------------

    def _look(self, passes: Sequence[tuple[Work, Sequence[str]]]) -> None:
        """Ask the server for the checksums that are not known yet."""
        given = self._given
        looked = any(table.ranges for table in self._tables.values())
        with TargetConnection.open(given.target, session=DUMP, section=given.section) as connection:
            there = columns_there(connection, self._databases())
        if given.searched and not looked:
            known = _expected(given) | _ruled(given)
            within = {each.lower() for each in given.searched}
            extra = sorted(".".join(name) for name in there if name[0].lower() in within and folded(name) not in known)
            self._proof = replace(self._proof, unexpected=tuple(extra))
        sources = {each.name: each.version.table for each in given.subjects}
        for work, names in passes:
            wanted = WantedTables(self._context(work))
            for name in names:
                table = self._tables[name]
                found = wanted.of(table.table_id, self._proof.at)
                if found is None:
                    raise AssertionError(name)
                if table.ranges and all(each.target is not None for each in table.ranges):
                    self._sides[name] = side_again(table, found, given.dialect)  # the server may have gone on
                    continue
                table, side = side_of(table, sources[name], found, there, given.dialect)
                if side is not None:
                    self._sides[name] = side
                    table = table if table.ranges else with_ranges(table, found, work)
                self._tables[name] = table
        asks = [
            (name, at)
            for name in self._open()
            for at, each in enumerate(self._tables[name].ranges)
            if each.target is None
        ]
        if not asks:
            return
        count = min(given.load.connections, len(asks))
        with snapshots(given.target, count, given.stand, given.section) as sessions:
            free: SimpleQueue[TargetConnection] = SimpleQueue()
            for session in sessions:
                free.put(session)

            def ask(one: tuple[str, int]) -> Sums:
                table, side, session = self._tables[one[0]], self._sides[one[0]], free.get()
                try:
                    return sums(session, side.there, side.columns, table.key, table.ranges[one[1]])
                finally:
                    free.put(session)

            with ThreadPoolExecutor(count, thread_name_prefix="prove") as pool:
                for done, (one, found_there) in enumerate(zip(asks, pool.map(ask, asks), strict=True)):
                    self._set(*one, target=found_there)
                    self._progress("reading the target", done + 1, len(asks))
        self._write()

    def _databases(self) -> list[str]:
        return [*self._given.searched, *(_parts(table.there)[0] for table in self._tables.values())]

    # -- the archive's side --------------------------------------------------------------------------------------

    def _gather(self, work: Work, names: Sequence[str]) -> None:
        """Decode some tables and hold them against the server; one that cannot be decoded is unproven."""
        while names:
            try:
                self._added_up(work, names)
            except (MissingColumn, ColumnMismatch) as error:
                lost = [name for name in names if self._tables[name].there == error.facts.get("table")]
                if not lost:
                    raise
                for name in lost:
                    self._tables[name] = replace(self._tables[name], why=f"{_UNTOLD}: {error.message}")
                names = [name for name in names if name not in lost]
                skipped = {**work.plan.skipped, **dict.fromkeys(lost, _UNTOLD)}
                work = replace(work, plan=replace(work.plan, skipped=skipped))
            else:
                break
        self._write()

    def _added_up(self, work: Work, names: Sequence[str]) -> None:
        connections, context = self._given.load.connections, self._context(work)
        counted = Counted(self._progress, "decoding the archive", len(work.pieces))
        with Spill.made() as spill, ThreadPoolExecutor(connections, thread_name_prefix="prove") as pool:
            jobs = [pool.submit(spill.put, context, some, counted.one) for some in deal(work.pieces, connections)]
            for job in jobs:
                job.result()
            buckets = [each for name in names for each in self._buckets(name, spill)]
            found: dict[tuple[str, int], Sums] = {}
            rows: dict[str, list[DifferingRow]] = {name: [] for name in names}
            added = pool.map(lambda each: self._add(spill, each), buckets)
            for done, (bucket, (here, differing)) in enumerate(zip(buckets, added, strict=True)):
                if isinstance(here, str):
                    self._tables[bucket.table] = replace(self._tables[bucket.table], why=here)
                    continue
                where = bucket.table, bucket.range
                found[where] = found.get(where, NO_ROWS).plus(here)
                rows[bucket.table] += differing
                self._progress("adding up the archive", done + 1, len(buckets))
            for name in names:
                for at in range(len(self._tables[name].ranges)):
                    self._set(name, at, archive=found.get((name, at), NO_ROWS))
                table = replace(self._tables[name], rows=tuple(rows[name][: 2 * _SHOWN_ROWS]))
                json, why = self._sides[name].json, self._unsearched.get(name)
                if json and why and table.outcome is Outcome.DIFFERENT:
                    table = replace(table, why=f"{_BY_TEXT.format(', '.join(json))}: {why}", differs=True)
                self._tables[name] = table

    def _buckets(self, name: str, spill: Spill) -> Iterator[_Bucket]:
        """Of a table with ranges each has a bucket, and may be empty here; else whatever there is."""
        table = self._tables[name]
        if table.key:
            yield from (_Bucket(name, at, at, alone=True) for at in range(len(table.ranges)))
            return
        numbers = spill.buckets(table.table_id) or [0]
        yield from (_Bucket(name, number, 0, alone=len(numbers) == 1) for number in numbers)

    def _add(self, spill: Spill, bucket: _Bucket) -> tuple[Sums | str, list[DifferingRow]]:
        """A bucket's sums, with some of the rows that differ; or why the archive does not tell them."""
        table, side = self._tables[bucket.table], self._sides[bucket.table]
        try:
            rows, copies = spill.take(table.table_id, bucket.number)
        except DuplicateKey as error:
            return f"{_UNTOLD}: {error.message}", []
        each = np.zeros(0, np.uint64) if rows is None else checksums(rows, side.rendered)
        counts = np.ones(len(each), np.int64) if copies is None else copies
        net = None if copies is None else _net(each, counts)
        if net and min(net.values()) < 0:
            return f"{_UNTOLD}: the log takes rows away that neither it nor the dump has brought", []
        here = Sums(int(counts.sum()), total(each, counts))
        known = table.ranges[bucket.range]
        if known.target in (None, here):
            return here, []
        if why := _unsearched(bucket, side, known, len(each)):
            self._unsearched[table.name] = why
            return here, []
        try:
            return self._search(table, side, known, here, rows, _net(each, counts) if net is None else net, each)
        except LoadError as error:
            self._unsearched[table.name] = error.message
            return here, []

    def _search(
        self,
        table: ProvenTable,
        side: Side,
        known: ProvenRange,
        here: Sums,
        rows: pa.Table | None,
        ours: dict[int, int],
        each: np.ndarray,
    ) -> tuple[Sums, list[DifferingRow]]:
        """Some of the rows that only one side has; and the sums, in which JSON of one value has the target's text."""
        given, there = self._given, [name for _, name in side.named]
        missing, extra = Counter(ours), Counter[int]()
        values: dict[int, bytes] = {}
        named: list[tuple[int, Mapping[str, Any]]] = []
        with snapshots(given.target, 1, given.stand, given.section) as (session,):
            for row in rows_of(session, side.there, side.columns, there, table.key, known):
                if missing[row.checksum] > 0:
                    missing[row.checksum] -= 1
                    continue
                extra[row.checksum] += 1
                named.append((row.checksum, row.named))
                if side.json:
                    values[row.checksum] = value_of(row.plain, row.json)
        missing = +missing
        at = np.zeros(0, np.int64)
        if rows is not None and missing:
            numbers, first = np.unique(each, return_index=True)
            at = np.sort(first[np.isin(numbers, np.array(list(missing), np.uint64))])
        if rows is not None and side.json and extra and len(at):
            ours_by = dict(zip(each[at].tolist(), values_of(rows, side.rendered, at), strict=True))
            more = pair(missing, extra, ours_by, values)
            here = Sums(here.rows, (here.sum + more) % MODULUS)
            at = at[[missing[number] > 0 for number in each[at].tolist()]]
        found = []
        if rows is not None:
            taken = rows.select([name for name, _ in side.named]).take(pa.array(at[:_SHOWN_ROWS])).to_pylist()
            types = {column.name: column.type for column in side.wanted.table.public_columns}
            found += [
                DifferingRow(side="archive", row=_row(row, lambda name, value: of_archive(value, types[name])))
                for row in taken
            ]
        for number, shown_by in named:
            if extra[number] > 0 and len(found) < 2 * _SHOWN_ROWS:
                extra[number] -= 1
                found.append(DifferingRow(side="target", row=_row(shown_by, lambda _, value: shown(value))))
        return here, found

    # -- what is known -------------------------------------------------------------------------------------------

    def _context(self, work: Work) -> LoadContext:
        given = self._given
        return LoadContext.of(work, given.view, given.archive_settings, given.dialect, given.routes)

    def _set(self, name: str, at: int, *, target: Sums | None = None, archive: Sums | None = None) -> None:
        table = self._tables[name]
        ranges = list(table.ranges)
        known = ranges[at]
        ranges[at] = replace(known, target=target or known.target, archive=archive or known.archive)
        self._tables[name] = replace(table, ranges=tuple(ranges))
        if self._clock.monotonic() - self._written > _WRITE_S:
            self._write()

    def _write(self) -> None:
        """Keep what is known."""
        self._written = self._clock.monotonic()
        self._proof = replace(self._proof, tables=tuple(self._tables[name] for name in sorted(self._tables)))
        if self._given.kept:
            write_proof(self._given.archive, self._proof)


def _unsearched(bucket: _Bucket, side: Side, known: ProvenRange, rows: int) -> str:
    """Why nobody looks for the rows of a bucket that differ, or ''."""
    if not side.there[1]:
        return "the target was asked by a run that was killed; prove again"
    if not bucket.alone:
        return "the table has no integer key, and more than one part of load.unit_bytes"
    if max(rows, 0 if known.target is None else known.target.rows) > _SEARCHED_ROWS:
        return f"one part of load.unit_bytes has more than {_SEARCHED_ROWS:,} rows"
    return ""


def _net(each: np.ndarray, counts: np.ndarray) -> dict[int, int]:
    """How often each checksum is there."""
    found, where = np.unique(each, return_inverse=True)
    net = np.zeros(len(found), np.int64)
    np.add.at(net, where, counts)
    return {int(number): int(count) for number, count in zip(found, net, strict=True) if count}


def _begun(subject: Subject, routes: Routes) -> ProvenTable:
    db, table = subject.version.name
    return ProvenTable(
        db=db, table=table, table_id=subject.version.table.id, there=".".join(routes.table(db, table)), why=subject.why
    )


def _expected(given: Given) -> set[tuple[str, str]]:
    """What the archive's tables are called there at the moment, those included that nobody asked for."""
    versions = given.view.timeline.tables_at(given.plan.to)
    return {folded(given.routes.table(*version.name)) for version in versions if has_rows(version)}


def _ruled(given: Given) -> set[tuple[str, str]]:
    """What tables are called there of which a rule says what becomes of them."""
    return {
        folded(given.routes.table(*side.name))
        for work in given.plan.works
        for event in work.events
        if event.commit_ts in work.rulings
        for change in event.changes
        for side in change.sides
    }


def _passes(given: Given, names: Sequence[str]) -> Iterator[list[str]]:
    """Tables that are decoded together."""
    sizes, ids = sizes_of(given.plan), {each.name: each.version.table.id for each in given.subjects}
    some: list[str] = []
    held = 0
    for name in names:
        size = sizes.get(ids[name], 0)
        if some and held + size > PASS_BYTES:
            yield some
            some, held = [], 0
        some.append(name)
        held += size
    if some:
        yield some


def _parts(name: str) -> tuple[str, str]:
    db, _, table = name.partition(".")
    return db, table


def _row(row: Mapping[str, Any], told: Callable[[str, Any], str]) -> dict[str, str]:
    return {str(name): "NULL" if value is None else told(name, value) for name, value in row.items()}
