"""The chosen changes of the archive, folded: of each key the first old image, the last new one, and who came later.

Segments are read twice: those of the range whole, the later ones for the keys that chosen changes have. What is decoded
lies on disk by table and bucket of the key (`pumphouse.proof.gather.Spill`); in memory are one batch, one bucket,
eight bytes for each key, and more for each key that moved.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pumphouse.archive.archive import Archive
from pumphouse.archive.view import ArchiveView
from pumphouse.codec.columnar import INSERT, UPDATE, Mutations, key_hash
from pumphouse.errors import UsageError
from pumphouse.flashback.links import Links
from pumphouse.flashback.plan import Subject
from pumphouse.loader.context import read_piece
from pumphouse.loader.decode import Layouts, groups_of, moved_of, walked
from pumphouse.loader.held import images_of
from pumphouse.loader.report import Progress
from pumphouse.loader.selection import has_key, key_of
from pumphouse.loader.work import SegmentPart, pieces_of
from pumphouse.model.tso import Tso, show
from pumphouse.proof.gather import Spill
from pumphouse.restore.find import Sought

# Of the archive's bytes, in one bucket.
BUCKET_BYTES = 16 << 20
_MOST_BUCKETS = 4096
_COLUMNS = ("commit_ts", "start_ts", "part", "payload")
_TS, _START, _POSITION, _CHOSEN, _HAS_OLD, _HAS_NEW = "ts", "start", "position", "chosen", "has old", "has new"
_ORDER = (pa.field(_TS, pa.int64()), pa.field(_START, pa.int64()), pa.field(_POSITION, pa.int64()))
_MARKS = tuple(pa.field(name, pa.bool_()) for name in (_CHOSEN, _HAS_OLD, _HAS_NEW))
# Columns of an entry: of the key, of the old image, of the new one.
_KEY, _OLD, _NEW = "k:", "o:", "n:"
_NEVER = 1 << 62
_AT_ONCE = 1000

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetChange:
    """What chosen transactions made of the row of one key.

    ``later``: commit ts of one that is not chosen; 0 = none. ``group``: keys under which the same row was; 0 = alone.
    """

    table_id: int
    old: Values | None
    new: Values | None
    later: int
    order: tuple[int, int, int]
    group: int = 0

    @property
    def turned(self) -> NetChange:
        """Its place among those that are made again."""
        return replace(self, order=(-self.order[0], -self.order[1], -self.order[2]))


class Changes:
    """Those of one flashback.

    Args:
        archive: where the segments are.
        view: of the archive from ``sought.after`` on.
        sought: range, tables and keys.
        txns: commit ts of the chosen transactions; () = all of the range.
        subjects: the tables, by id.
        moment: up to where later changes are looked for.
        spill: where entries lie meanwhile.
        tell: told of each segment.
    """

    def __init__(
        self,
        archive: Archive,
        view: ArchiveView,
        sought: Sought,
        txns: Collection[int],
        subjects: Mapping[int, Subject],
        moment: Tso,
        spill: Spill,
        tell: Progress,
    ) -> None:
        self._archive, self._view, self._sought, self._moment = archive, view, sought, moment
        self._txns = np.array(sorted(txns), np.int64)
        self._subjects, self._spill, self._tell = subjects, spill, tell
        self._layouts = Layouts(view.timeline)
        partitions = view.timeline.partitions
        self._of = {id_: id_ for id_ in subjects} | {part: of for part, of in partitions.items() if of in subjects}
        self._keys: dict[int, list[list[pa.Scalar]]] = {}
        self._hashes: dict[int, list[np.ndarray]] = defaultdict(list)
        self._known: dict[int, np.ndarray] = {}  # all of them, when the range is read
        self._links = Links()
        clustered = {
            id_
            for id_, each in subjects.items()
            if each.version.table.pk_is_handle or each.version.table.is_common_handle
        }
        self._clustered = np.array(sorted(id_ for id_, of in self._of.items() if of in clustered), np.int64)
        # Chosen row changes, by commit ts and by table.
        self.transactions: Counter[int] = Counter()
        self.tables: Counter[int] = Counter()

    def gather(self) -> None:
        """Read everything; UsageError where a chosen transaction has no change of these tables and keys."""
        after, upto, ids = self._sought.after, self._sought.upto, frozenset(self._of)
        for batch in self._read(after, upto, ids, "reading changes"):
            self._add(batch, whole=True)
        missing = [int(ts) for ts in self._txns if ts not in self.transactions]
        if missing:
            raise UsageError(
                f"no transaction with the commit ts {show(missing[0])} changed any of these rows",
                hint="`pumphouse archive find` lists transactions: what it prints first is the commit ts",
            )
        self._known = {table_id: np.unique(np.concatenate(found)) for table_id, found in self._hashes.items()}
        met = frozenset(id_ for id_, of in self._of.items() if of in self._known)
        if met:
            for batch in self._read(upto, self._moment, met, "reading later changes"):
                self._add(batch, whole=False)

    def too_many(self, table_id: int) -> bool:
        """Whether more of its rows moved than can wait for each other."""
        return self._links.too_many(table_id)

    def tie(self, table_id: int, pairs: Sequence[tuple[Values, Values]]) -> None:
        """Of a table, keys that are one to the server; one that no chosen change has is passed over."""
        for pair in pairs:
            hashes = self._hashed(table_id, pair)
            if np.isin(hashes, self._known[table_id]).all():
                self._links.add(table_id, np.full(2, self._links.new()), hashes)

    def folded(self, table_id: int, *, keep: bool = False) -> Iterator[list[NetChange]]:
        """The net changes of a table, some at a time, the newest of a bucket first. ``keep``: for another time."""
        groups = self._links.groups(table_id) if not keep else {}
        for bucket in self._spill.buckets(table_id):
            found = _folded(self._spill.take_entries(table_id, bucket, keep=keep))
            for at in range(0, found.num_rows, _AT_ONCE):
                some = found.slice(at, _AT_ONCE).to_pylist()
                changes = [each for each in (_net_change(table_id, row) for row in some) if each.old != each.new]
                if groups:
                    hashes = self._hashed(table_id, [each.old or each.new or {} for each in changes]).tolist()
                    changes = [
                        replace(each, group=groups.get(value, 0)) for each, value in zip(changes, hashes, strict=True)
                    ]
                yield changes

    def _hashed(self, table_id: int, images: Sequence[Values]) -> np.ndarray:
        """Hashes of their keys."""
        subject = self._subjects[table_id]
        schema = self._layouts.of(subject.wanted, subject.version).schema
        keys = pa.schema([schema.field(name) for name in subject.key])
        rows = [{name: image[name] for name in subject.key} for image in images]
        return key_hash(pa.RecordBatch.from_pylist(rows, schema=keys))

    def _read(self, after: Tso, upto: Tso, ids: frozenset[int], what: str) -> Iterator[pa.RecordBatch]:
        if after >= upto:
            return
        pieces: list[SegmentPart] = list(pieces_of(self._view.between(after, upto), after, upto, ids))
        for done, piece in enumerate(pieces):
            self._tell(what, done, len(pieces))
            yield from read_piece(self._archive.store, piece, _COLUMNS)
        self._tell(what, len(pieces), len(pieces))

    def _add(self, batch: pa.RecordBatch, *, whole: bool) -> None:
        """``whole``: of the range, in which changes may be chosen; else keys that are known already are looked for."""
        commit_ts, start_ts, parts = (batch.column(name).to_numpy() for name in _COLUMNS[:3])
        found = walked(batch)
        ids = self._of if whole else [id_ for id_, of in self._of.items() if of in self._known]
        found = found.take(np.isin(found.table_id, np.array(sorted(ids), np.int64)))
        of_txns = np.isin(commit_ts, self._txns) if len(self._txns) else np.ones(len(commit_ts), np.bool_)
        chosen = of_txns[found.txn] & whole
        links, paired = self._links.of(
            found, commit_ts[found.txn], start_ts[found.txn], np.isin(found.table_id, self._clustered)
        )
        for rows in groups_of(found.table_id, found.schema_version, found.op):
            part = found.take(rows)
            subject = self._subjects[self._of[int(part.table_id[0])]]
            mask = chosen[rows]
            if subject.problem:  # its images may not be decoded
                self._count(subject, commit_ts[part.txn[mask]])
                continue
            order = [commit_ts[part.txn], start_ts[part.txn], parts[part.txn].astype(np.int64) << 40 | part.seq << 1]
            self._decode(subject, part, mask, order, links[rows], paired[rows])

    def _decode(
        self,
        subject: Subject,
        part: Mutations,
        chosen: np.ndarray,
        order: list[np.ndarray],
        links: np.ndarray,
        paired: np.ndarray,
    ) -> None:
        op = int(part.op[0])
        only = None if chosen.any() else subject.key
        written = self._view.timeline.at_version(subject.version.table.id, int(part.schema_version[0]))
        layout = self._layouts.of(subject.wanted, written, only)
        images = images_of(part.data, part.row_start, part.row_len, op, subject.wanted, layout, None)
        old, new = images if op == UPDATE else (None, images) if op == INSERT else (images, None)
        if self._sought.keys and chosen.any():
            chosen = chosen & self._with_key(subject, old, new)
        self._count(subject, order[0][chosen])
        moved = moved_of(old, new, subject.key) if op == UPDATE else None
        if moved is None:
            self._put(subject, old, new, chosen, order, links, paired)
            return
        rows = moved.to_numpy(zero_copy_only=False)
        for which, (was, now), behind in ((~rows, (old, new), 0), (rows, (old, None), 0), (rows, (None, new), 1)):
            kept = pa.array(which)
            self._put(
                subject,
                None if was is None else was.filter(kept),
                None if now is None else now.filter(kept),
                chosen[which],
                [*(each[which] for each in order[:2]), order[2][which] + behind],
                links[which],
                rows[which],
            )

    def _count(self, subject: Subject, commit_ts: np.ndarray) -> None:
        for ts, count in zip(*np.unique(commit_ts, return_counts=True), strict=True):
            self.transactions[int(ts)] += int(count)
        if len(commit_ts):
            self.tables[subject.version.table.id] += len(commit_ts)

    def _with_key(self, subject: Subject, old: pa.RecordBatch | None, new: pa.RecordBatch | None) -> np.ndarray:
        at = subject.version.table.id
        if at not in self._keys:
            self._keys[at] = [key_of(subject.keyed, text) for text in self._sought.keys]
        masks = [has_key(rows, subject.key, key) for rows in (old, new) if rows is not None for key in self._keys[at]]
        found: np.ndarray = np.logical_or.reduce(masks)
        return found

    def _put(
        self,
        subject: Subject,
        old: pa.RecordBatch | None,
        new: pa.RecordBatch | None,
        chosen: np.ndarray,
        order: list[np.ndarray],
        links: np.ndarray,
        paired: np.ndarray,
    ) -> None:
        """Entries to the spill, whole ones or of keys alone."""
        table_id, some = subject.version.table.id, new if new is not None else old
        if some is None or not some.num_rows:
            return
        keys = some.select(list(subject.key))
        hashes = key_hash(keys)
        if chosen.any():
            self._hashes[table_id].append(np.unique(hashes[chosen]))
            tied = chosen & paired
            if tied.any():
                self._links.add(table_id, links[tied], hashes[tied])
        entries = _entries(keys, old, new, self._layouts.of(subject.wanted, subject.version).schema, chosen, order)
        buckets = (hashes % np.uint64(_buckets(subject))).astype(np.int64)
        if self._known:
            near = np.isin(hashes, self._known[table_id])
            entries, buckets = entries.filter(pa.array(near)), buckets[near]
        for bucket in np.unique(buckets):
            self._spill.add(table_id, int(bucket), _stream(entries.filter(pa.array(buckets == bucket))))


def _buckets(subject: Subject) -> int:
    return min(subject.bytes // BUCKET_BYTES + 1, _MOST_BUCKETS)


def _stream(entries: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, entries.schema) as writer:
        writer.write_batch(entries)
    return bytes(sink.getvalue().to_pybytes())


def _entries(
    keys: pa.RecordBatch,
    old: pa.RecordBatch | None,
    new: pa.RecordBatch | None,
    image: pa.Schema,
    chosen: np.ndarray,
    order: list[np.ndarray],
) -> pa.RecordBatch:
    """Images only of chosen changes; of the others the key and its place are enough."""
    count, columns, fields = (
        keys.num_rows,
        list(keys.columns),
        [each.with_name(_KEY + each.name) for each in keys.schema],
    )
    whole = bool(chosen.any())
    for mark, rows in ((_OLD, old), (_NEW, new)):
        columns += [
            pa.nulls(count, each.type) if rows is None or not whole else rows.column(each.name) for each in image
        ]
        fields += [each.with_name(mark + each.name) for each in image]
    columns += [pa.array(each) for each in (*order, chosen, *(np.full(count, rows is not None) for rows in (old, new)))]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*fields, *_ORDER, *_MARKS]))


def _folded(entries: pa.Table) -> pa.Table:
    """One row for each key that has a chosen change."""
    ts, start, position = (entries.column(field.name).to_numpy() for field in _ORDER)
    order = np.lexsort((position, start, ts))
    entries = entries.take(pa.array(order))
    chosen, at = entries.column(_CHOSEN).to_numpy(zero_copy_only=False), np.arange(entries.num_rows)
    names = [name for name in entries.schema.names if name.startswith(_KEY)]
    keys = entries.select(names)
    for name, values in (
        ("first", np.where(chosen, at, _NEVER)),
        ("last", np.where(chosen, at, -1)),
        ("other", np.where(chosen, -1, at)),
    ):
        keys = keys.append_column(name, pa.array(values))
    found = keys.group_by(names, use_threads=False).aggregate([("first", "min"), ("last", "max"), ("other", "max")])
    first, last, other = (found.column(name).to_numpy() for name in ("first_min", "last_max", "other_max"))
    met = last >= 0
    first, last, other = first[met], last[met], other[met]
    newest = np.argsort(-last, kind="stable")
    first, last, other = first[newest], last[newest], other[newest]
    here = entries.schema.names
    olds = entries.select([name for name in here if name.startswith(_OLD) or name == _HAS_OLD]).take(pa.array(first))
    news = entries.select([name for name in here if name.startswith(_NEW) or name == _HAS_NEW]).take(pa.array(last))
    later = np.where(other > first, entries.column(_TS).to_numpy()[other], 0)
    table = (
        entries.select([field.name for field in _ORDER]).take(pa.array(last)).append_column("later", pa.array(later))
    )
    for each in (olds, news):
        for field in each.schema:
            table = table.append_column(field, each.column(field.name))
    return table


def _net_change(table_id: int, row: dict[str, Any]) -> NetChange:
    def image(mark: str, there: str) -> Values | None:
        return {name[len(mark) :]: row[name] for name in row if name.startswith(mark)} if row[there] else None

    return NetChange(
        table_id=table_id,
        old=image(_OLD, _HAS_OLD),
        new=image(_NEW, _HAS_NEW),
        later=row["later"],
        order=(row[_TS], row[_START], row[_POSITION]),
    )
