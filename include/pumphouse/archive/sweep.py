"""What lies in the archive and nothing that is kept names: what has expired, and what killed tasks left (row A5).

It is decided by names, not by folders: a dump may name parts that lie in the folder of an older one. What is listed is
listed before the documents are read that name it, so that whatever is published meanwhile keeps its objects. What
nobody has named yet may still be named by a task that runs: it goes only when it is old. The range never goes back, so
what has expired stays so, for whoever deletes it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import Base, BaseBegun
from pumphouse.archive.packs import packs_of
from pumphouse.archive.range import Range
from pumphouse.archive.schema_parts import DOCUMENTS, FILES, REMEDY, SchemaParts
from pumphouse.archive.windows import Windows
from pumphouse.errors import BadManifest, CorruptionError, ObjectNotFound, StoreUnavailable
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectInfo, ObjectStore
from pumphouse.objectstore.probe import KEEP

EXPIRED, ORPHAN = "expired", "orphan"
_PREFIXES = (layout.WINDOWS, layout.SEGMENTS, layout.DDL, layout.BASE, layout.SCHEMA, layout.INDEX, layout.PACKS)
_DELETERS, _AT_ONCE = 8, 64
_PROBE, _PROBES = "probe/clock", 5


@dataclass(frozen=True, slots=True)
class Waste:
    """An object that may go. ``why``: `EXPIRED` or `ORPHAN`; ``what``: for people, what it is of."""

    info: ObjectInfo
    why: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept, as one look saw it. ``taken_from``: dumps that one under way takes tables of, kept or not."""

    range: Range
    windows: Windows
    bases: tuple[Base, ...]
    taken_from: tuple[Base, ...] = ()

    def named(self, archive: Archive) -> dict[str, int | None]:
        """Every object that is named, with its bytes where the name says them."""
        genesis = archive.genesis()
        found: dict[str, int | None] = {genesis.ddl.key: genesis.ddl.bytes}
        found |= {each.key: each.bytes for each in self.range.ddl}
        found |= dict.fromkeys(map(layout.window_key, self.windows.starts.tolist()))
        found |= dict(self.windows.names())
        found |= {each.key: each.bytes for each in self.windows.ddls()}
        for base in (*self.bases, *self.taken_from):
            found |= dict.fromkeys(base.keys)
            found |= {each.key: each.bytes for table in base.tables for each in table.segments}
        return found


def list_objects(archive: Archive) -> list[ObjectInfo]:
    """Everything that may ever go, or be named."""
    return list(chain.from_iterable(archive.store.list(prefix) for prefix in _PREFIXES))


def look_at_kept(archive: Archive, live: Callable[[], Iterable[BaseBegun]]) -> Kept:
    """What is kept now; after `list_objects`.

    A dump puts that it has begun, then reads the range; an expiry puts the range, then reads what has begun: one of
    the two sees the other. So what a dump takes tables of stays even where the range has just moved above it.

    Args:
        archive: where it lies.
        live: says which dumps are under way.
    """
    kept, genesis = archive.range(), archive.genesis()
    first = genesis.as_base
    if kept.base is not None and kept.base.begun != genesis.ts:
        first = None
    over, every = {each.over for each in live()}, archive.every_base()
    bases = (*([] if first is None else [first]), *(each for each in every if kept.has(each)))
    taken_from = tuple(each for each in every if each.begun in over)
    return Kept(range=kept, windows=archive.windows(), bases=bases, taken_from=taken_from)


def begun_and_live(archive: Archive, *, now_s: float, for_s: float) -> list[BaseBegun]:
    """Dumps and folds that are under way, or may be gone on with: begun, not ended, something put in ``for_s``."""
    listed = list(archive.store.list(layout.BASE))
    keys = {each.key for each in listed}
    newest: dict[Tso, float] = {}
    for each in listed:
        low = layout.base_low(each.key)
        newest[low] = max(newest.get(low, 0.0), each.put_s)
    found = []
    for each in listed:
        low = layout.base_low(each.key)
        dump = each.key == layout.base_begun(low) and layout.base_document(low) not in keys
        fold = layout.is_fold_note(each.key) and layout.folded_document(low) not in keys
        if (dump or fold) and now_s - newest[low] <= for_s:
            with suppress(ObjectNotFound):  # it was given up meanwhile
                found.append(BaseBegun.from_json(each.key, archive.store.get(each.key)))
    return found


def store_now(archive: Archive) -> float:
    """Unix time by the store's clock, which tells the age of objects: that of what is put just now."""
    for _ in range(_PROBES):
        archive.store.put(_PROBE, b"")
        now_s = next((each.put_s for each in archive.store.list(_PROBE) if each.key == _PROBE), None)
        archive.store.delete(_PROBE)
        if now_s is not None:  # else another run has just deleted it
            return now_s
    raise StoreUnavailable(f"{archive.url}/{_PROBE} is not listed after it was put", key=_PROBE)


def require_whole(store: ObjectStore, listed: Iterable[ObjectInfo], named: dict[str, int | None]) -> None:
    """BadManifest unless everything that is named is there, with as many bytes: nothing expires from a torn archive.

    What was put since ``listed`` is asked for by name.
    """
    found = first_lacking(store, listed, named)
    if found is not None:
        key, what = found
        rules = store.losing()
        raise BadManifest(
            f"{key} {what}, and what is kept needs it: nothing expires{''.join(f'; {each}' for each in rules)}",
            hint=KEEP if rules else "put it back from a copy of the archive; pumphouse archive verify --quick",
            path=key,
            offset=0,
            reason="missing",
        )


def first_lacking(
    store: ObjectStore, listed: Iterable[ObjectInfo], named: dict[str, int | None]
) -> tuple[str, str] | None:
    """The first of what is named that is not there, or has another size, and what is wrong; None = all is there."""
    there = {each.key: each.size for each in listed}
    for key, size in named.items():
        if key not in there or size not in (None, there[key]):
            try:
                have = store.size(key)
            except ObjectNotFound:
                have = None
            if have is None or size not in (None, have):
                return key, "is not there" if have is None else f"has {have} bytes, and not {size}"
    return None


def find_waste(
    archive: Archive, listed: Sequence[ObjectInfo], kept: Kept, *, now_s: float, grace_s: float, resume_s: float
) -> list[Waste]:
    """What may go, the oldest first.

    Args:
        archive: where it lies.
        listed: of `list_objects`, before ``kept`` was looked at.
        kept: what is kept.
        now_s: Unix time.
        grace_s: what nobody names goes when it is older than this.
        resume_s: how long a dump may be gone on with that was killed.
    """
    named, start = kept.named(archive), kept.range.start
    published = {*kept.windows.starts.tolist()}
    found: list[Waste] = []

    def old(each: ObjectInfo) -> bool:
        return now_s - each.put_s > grace_s

    for each in listed:
        if each.key in named or each.key.startswith((layout.BASE, layout.SCHEMA, layout.PACKS)):
            continue
        if each.key.startswith(layout.INDEX):
            run = layout.index_range(each.key)
            if run is not None and run[1] <= start:
                found.append(Waste(each, EXPIRED, "windows"))
            continue
        begins = layout.window_start(each.key) if each.key.startswith(layout.WINDOWS) else layout.folder_start(each.key)
        if begins is not None and begins < start:
            found.append(Waste(each, EXPIRED, "windows"))
        # A window that has no manifest yet may be under way, whatever its age.
        elif not each.key.startswith(layout.WINDOWS) and (begins is None or begins in published) and old(each):
            found.append(Waste(each, ORPHAN, "a snapshot that was killed, or DDL jobs that were put together anew"))
    found += _of_dumps(archive, listed, kept, named, old, now_s - max(grace_s, resume_s))
    found += _of_schema(archive, listed, start, old)
    found += _of_packs(archive, listed, start, old)
    return sorted(found, key=lambda waste: _age(waste.info.key))


def _of_dumps(
    archive: Archive,
    listed: Sequence[ObjectInfo],
    kept: Kept,
    named: dict[str, int | None],
    old: Callable[[ObjectInfo], bool],
    given_up_s: float,
) -> Iterator[Waste]:
    """Of dumps that are not kept everything that no other names, and dumps that were begun and given up."""
    folders: dict[Tso, list[ObjectInfo]] = defaultdict(list)
    for each in listed:
        if each.key.startswith(layout.BASE):
            folders[layout.base_low(each.key)].append(each)
    there, genesis = {base.begun for base in kept.bases}, archive.genesis().ts
    for begun, objects in folders.items():
        keys = {each.key for each in objects}
        dumped, folded = layout.base_document(begun) in keys, layout.folded_document(begun) in keys
        expired = dumped or folded or (begun == genesis and kept.range.base is not None)
        given_up = max(each.put_s for each in objects) < given_up_s
        # Of a dump that was all but done, or a fold that took its note away, the document may be what is lost.
        ended_once = layout.base_objects(begun) in keys or not any(key.endswith(".json") for key in keys)
        if ended_once and not dumped and begun != genesis and begun >= kept.range.start:
            given_up = False
        # A dump that began where a fold is made shares its folder: what one has ended says nothing of the other.
        under_way = not dumped and layout.base_begun(begun) in keys
        under_way |= not folded and any(map(layout.is_fold_note, keys))
        if under_way and not given_up:
            continue
        for each in objects:
            if each.key in named:  # a later dump may name parts of one that expired
                continue
            if begun in there:
                # Notes and the begin stay with their dump.
                goes = each.key.endswith(".parquet") or layout.is_fold_note(each.key) or (folded and not dumped)
                if goes and old(each):
                    yield Waste(each, ORPHAN, "a dump that was killed")
            elif expired:
                yield Waste(each, EXPIRED, "dumps")
            elif given_up:
                yield Waste(each, ORPHAN, "a dump that was given up")


def _of_schema(
    archive: Archive, listed: Sequence[ObjectInfo], start: Tso, old: Callable[[ObjectInfo], bool]
) -> Iterator[Waste]:
    """Stored schemas from before the range, and files that none names.

    A rebuild may have begun from such a document: it goes when a later one is so old that none has. Documents are
    listed after the files: one that came meanwhile keeps its own.
    """
    documents = [(each, _end_of(each.key)) for each in archive.store.list(DOCUMENTS)]
    later = max((end for each, end in documents if end >= start and old(each)), default=0)
    named: set[str] = set()
    for each, end in documents:
        if end < min(start, later):
            yield Waste(each, EXPIRED, "stored schemas")
            continue
        try:
            parts = SchemaParts.from_json(each.key, archive.store.get(each.key)).parts
        except ObjectNotFound:  # another run has deleted it since it was listed
            continue
        named |= {file.key for part in parts for file in part.files}
    for each in listed:
        if each.key.startswith(FILES) and each.key not in named and old(each):
            yield Waste(each, ORPHAN, "a rebuild of the schema that was killed, or stored schemas")


def _of_packs(
    archive: Archive, listed: Sequence[ObjectInfo], start: Tso, old: Callable[[ObjectInfo], bool]
) -> Iterator[Waste]:
    """Packs of windows that are not kept, and data beside that which the document of its range names.

    A document is put once, so other data is named by none, ever. Where there is no document, one may come, whatever
    the age of the data; or it is what is lost, and the data is the only copy.
    """
    ranges: dict[tuple[Tso, Tso], list[ObjectInfo]] = defaultdict(list)
    for each in listed:
        if (covers := layout.pack_range(each.key)) is not None:
            ranges[covers].append(each)
    for (begin, end), objects in ranges.items():
        data = {each.key for each in objects if each.key.endswith(".bin")}
        if end <= start:
            yield from (Waste(each, EXPIRED, "windows") for each in objects)
        elif 1 < len(data) < len(objects):
            for pack in packs_of(archive.store, [layout.pack_key(begin, end)]):
                if pack.data in data:
                    left = (each for each in objects if each.key in data - {pack.data} and old(each))
                    yield from (Waste(each, ORPHAN, "a compaction that was killed") for each in left)


def _end_of(key: str) -> int:
    """Where the windows end that a stored schema was made from."""
    found = re.fullmatch(rf"{DOCUMENTS}(\d{{20}})\.json", key)
    if found is None:
        raise CorruptionError(f"{key} is no part of a stored schema", hint=REMEDY, path=key)
    return int(found.group(1))


def _age(key: str) -> tuple[str, str]:
    """What orders objects by what they are of: the first timestamp of their names; those without one are last."""
    found = re.search(r"/(\d{20})", key)
    return found.group(1) if found else "~", key


def _turn(key: str) -> int:
    """When it goes, so that who is killed leaves no document that says what is not so.

    A chunk's note goes before the chunk: a note says that it is there. What says of a dump's folder what it is goes
    after what else is there, the begin first: alone it would be that of a dump under way.
    """
    if not key.startswith(layout.BASE) or not key.endswith(".json"):
        return 1
    low = layout.base_low(key)
    if key in (layout.base_document(low), layout.folded_document(low)):
        return 3
    return 2 if key == layout.base_begun(low) or layout.is_fold_note(key) else 0


def remove(
    archive: Archive, waste: Sequence[Waste], tick: Callable[[int, int], None] = lambda _done, _total: None
) -> None:
    """Delete it: notes of chunks, then the oldest first, then the documents of dumps.

    An orphan that was put again meanwhile is somebody's.
    """
    done, turns = 0, defaultdict[int, list[Waste]](list)
    for each in waste:
        turns[_turn(each.info.key)].append(each)

    def delete(each: Waste) -> None:
        if each.why == ORPHAN:
            now = next((one for one in archive.store.list(each.info.key) if one.key == each.info.key), None)
            if now is None or now.put_s != each.info.put_s:
                return
        archive.store.delete(each.info.key)

    with ThreadPoolExecutor(_DELETERS) as pool:
        for _, some in sorted(turns.items()):
            for begin in range(0, len(some), _AT_ONCE):
                at_once = some[begin : begin + _AT_ONCE]
                done += len(list(pool.map(delete, at_once)))
                tick(done, len(waste))
