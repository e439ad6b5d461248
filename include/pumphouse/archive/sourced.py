"""Moments of a captured source in an archive, by its GTIDs and by its own clock: the keys of the binlogs say both.

A capture publishes in the source's order, so GTIDs of one domain (MariaDB) or UUID (MySQL) ascend with the commit ts
until a capture begins anew, and its clock, as the keys have it, never goes back. Windows are halved by the first keys
of each, which are read without a digest and only say where to look; what is answered stands in rows that were verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from pumphouse.archive.archive import Archive
from pumphouse.archive.ddl import read_jobs
from pumphouse.archive.manifest import SegmentEntry
from pumphouse.archive.segment import peek_segment, read_columns, read_segment
from pumphouse.archive.windows import Placed, Windows
from pumphouse.errors import BinlogError, UsageError
from pumphouse.model.captured import OF_A_START, place_of
from pumphouse.model.tso import MAX_TSO, Tso, show

log = structlog.get_logger()

_COLUMNS = ("commit_ts", "payload")
# Of a payload this much has the key; of a segment this much is read to see its first keys.
_HEAD, _PEEK = 512, 64 << 10
# So many windows, from all over the archive, are looked into for the first word of a capture, or of a domain.
_SPREAD = (16, 64, 256)
# The outer fields of a Binlog in order: type, start ts, commit ts, then the key, which some lack.
_NUMBER = r"[\x80-\xff]*[\x00-\x7f]"
_FIELDS = rf"(?s)^\x08.\x10{_NUMBER}\x18{_NUMBER}"
# With a fifth group RE2 takes twice as long.
_KEYED = (
    rf"{_FIELDS}\x22{_NUMBER}capture/(?P<capture>[!-.0-~]+)/(?P<transaction>[!\x22$-.0-?A-~]+)"
    r"(?:[#/](?P<piece>[0-9]+(?:/[0-9]+)?))?"
    r"@[0-9a-f]+\.[0-9a-f]+\.[0-9a-f]+(?:\.(?P<micros>[0-9a-f]{14}))?"
)
_KEYLESS = rf"{_FIELDS}(?:[^\x22]|\x22\x00)"
# Whether a transaction comes before what is looked for, or is it; None = it says nothing of that.
Below = Callable[["Captured"], bool | None]
_SNAPSHOT = "`pumphouse snapshot` takes in what was committed since"


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured transaction, or a piece of one: its GTID, and the source's clock in microseconds since 1970.

    ``micros``: 0 = the key has none. ``pieces``: how many binlogs the transaction has; 0 = the key does not say.
    """

    commit_ts: Tso
    capture: str
    transaction: str
    micros: int
    piece: int = 0
    pieces: int = 1

    @property
    def time(self) -> str | None:
        """ISO time of the source's clock."""
        return _clock(self.micros, "T") if self.micros else None

    def __str__(self) -> str:
        clock = f", the source's clock {_clock(self.micros)}" if self.micros else ""
        return f"{self.transaction} (commit ts {show(self.commit_ts)}{clock})"


def captured_in(batch: pa.RecordBatch) -> list[Captured | None]:
    """What the keys say; None of a binlog that no capture of a source wrote. Columns ``commit_ts`` and ``payload``."""
    return [
        None if key is None or key["transaction"].startswith(OF_A_START.encode()) else _captured(Tso(ts), **key)
        for ts, key in zip(batch["commit_ts"].to_pylist(), _keys(_heads(batch["payload"])).to_pylist(), strict=True)
    ]


def _captured(ts: Tso, *, capture: bytes, transaction: bytes, piece: bytes, micros: bytes) -> Captured:
    number, _, pieces = piece.partition(b"/")
    return Captured(
        commit_ts=ts,
        capture=capture.decode(),
        transaction=transaction.decode(),
        micros=int(micros or b"0", 16),
        piece=int(number or b"0"),
        pieces=int(pieces or b"0") if piece else 1,
    )


def gtids_of(payloads: pa.LargeBinaryArray, some: np.ndarray) -> pa.LargeStringArray:
    """The GTIDs of some binlogs of rows, by their places; null = no capture of a source wrote it."""
    # Cut before they are taken: what is taken is copied.
    keys = _keys(_heads(payloads).take(pa.array(some)))
    return pc.struct_field(keys, "transaction").cast(pa.large_string())


def _heads(payloads: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    return pc.binary_slice(payloads, 0, _HEAD)


def _keys(heads: pa.LargeBinaryArray) -> pa.StructArray:
    return pc.extract_regex(heads, _KEYED)


def of_gtid(archive: Archive, gtid: str) -> tuple[Tso, Tso]:
    """First and last commit ts of the binlogs of a source's transaction, which are several where it has a DDL.

    UsageError where it is not there, or is there twice.
    """
    place = place_of(gtid)
    if place is None:
        raise UsageError(f"{gtid!r} is no GTID", hint="a MariaDB's is as 0-1-1234, a MySQL's UUID:1234")
    look, name = _Look(archive), gtid.lower()

    def beyond(each: Captured) -> int | None:
        found = place_of(each.transaction)
        return None if found is None or found[0] != place[0] else found[1] - place[1]

    def below(each: Captured) -> bool | None:
        return None if (far := beyond(each)) is None else far <= 0

    def before(each: Captured) -> bool | None:
        return None if (far := beyond(each)) is None else far < 0

    hits, others = list[tuple[Tso, Tso]](), list[_Near]()
    for after, upto in look.eras():
        near, here = _Near(after, upto), _Pieces()
        for each in near.told(look.near(after, upto, below, begin=before), below):
            if each.transaction == name:
                here.add(each)
                if here.all_there:
                    break
        if here.at:
            hits.append(here.bounds(gtid, near.first))
        else:
            others.append(near)
    if not hits:
        both = (each for each in others if each.last and each.first)
        raise _not_there(look, gtid, next(both, None) or next((each for each in others if each.last), others[0]))
    return _only(look, gtid, hits, others)


def _only(look: _Look, gtid: str, hits: list[tuple[Tso, Tso]], others: list[_Near]) -> tuple[Tso, Tso]:
    if len(hits) > 1:
        raise UsageError(
            f"the source has given {gtid} {len(hits)} times, and the capture began anew in between: "
            f"{', '.join(show(last) for _, last in hits)}",
            hint="name one of these moments by its TSO",
        )
    for each in others:
        if each.last or each.first:
            look.require_named(f"the capture began anew, and {gtid} is at {show(hits[0][1])} or another time", each)
    return hits[0]


def _not_there(look: _Look, gtid: str, near: _Near) -> UsageError:
    last, first, lacks = near.last, near.first, f"no window of the archive has {gtid}"
    if last is None and first is None:
        return UsageError(
            f"{gtid} is not found: no window of the archive begins with another of its domain or its server",
            hint=f"{_SNAPSHOT}; `pumphouse archive find` lists transactions",
        )
    if last is None or first is None:
        seen = f"the last one there is {last}" if last else f"the first one there is {first}"
        return UsageError(
            f"{lacks}, or another of its domain or its server that comes {'before' if first else 'behind'} it; {seen}",
            hint=f"{_SNAPSHOT}; what is older than the archive is not in it",
        )
    if first.commit_ts < last.commit_ts:
        raise UsageError(
            f"{gtid} is not found, and the source's numbers do not ascend there: {first} came before {last}",
            hint="`pumphouse archive find` lists transactions: name the moment by its TSO",
        )
    where = f"{lacks}: it would stand between {last} and {first}"
    look.require_named(where, near)
    return UsageError(
        f"{where}; it changed no table that is captured, or the source never had it",
        hint=f"the same state: gtid {last.transaction}, if the source's numbers ascend",
    )


def at_source_time(archive: Archive, when: datetime) -> Tso:
    """Commit ts of the last transaction in the source's order before the first one that its clock puts behind ``when``.

    UsageError where the archive does not have both: what the source committed up to then may not be in it.
    """
    micros, look = _micros(when), _Look(archive)
    near = _Near(archive.range().start, archive.end())

    def below(each: Captured) -> bool | None:
        return each.micros <= micros  # one without a time is of an earlier version, and comes before

    for after, upto in look.eras():
        for _ in near.told(look.near(after, upto, below), below):
            pass
    last, first = near.last, near.first
    if last and first and first.commit_ts < last.commit_ts:
        raise UsageError(
            f"the source's clock went back, as a capture began anew, or an earlier version ran: {first} came before "
            f"{last}",
            hint="`pumphouse archive find` lists transactions: name the moment by its TSO",
        )
    if first is None and not (last and last.micros):
        raise UsageError("the capture of this archive is of a version that kept no clock of the source")
    if first is None:
        raise UsageError(
            f"the archive has nothing of the source from behind {_clock(micros)}: the last one is {last}. Whether "
            "something came in between is not known",
            hint=f"{_SNAPSHOT}; `--to latest` (in the form: latest) is the archive's end",
        )
    if last is None or not last.micros:
        raise UsageError(f"the first transaction of the archive that has a time of the source is {first}")
    where = f"{_clock(micros)} of the source lies between {last} and {first}"
    if cut := look.cut(last, first):
        raise UsageError(f"{where}, where the capture began anew", hint=f"--to {cut - 1} is what is known up to there")
    look.require_named(where, near)
    return last.commit_ts


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a captured source was at a moment: its last transaction, and the next one; None = none, or no capture's."""

    last: Captured
    following: Captured | None

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"of the source: up to {self.last}"
        if self.following is not None:
            yield f"its next one: {self.following}"


def standing_at(archive: Archive, windows: Windows, ts: Tso) -> Standing | None:
    """Where the source was; None where the last transaction of the archive then is none that a capture read.

    And where what says it cannot be read: who restores may need nothing of that segment. ``windows``: all there are.
    """
    try:
        found = _beside(archive, windows.between(Tso(0), ts), ts, back=True)
        if found is None:
            return None
        return Standing(found, _beside(archive, windows.between(ts, MAX_TSO), ts, back=False))
    except BinlogError as error:
        log.warning("source_not_told", moment=show(ts), error=error.message)
        return None


def is_captured(archive: Archive) -> bool:
    """Whether a capture has read what the archive has last: then it has what else is in that source's binlog."""
    return standing_at(archive, archive.windows(), archive.end()) is not None


def _beside(archive: Archive, windows: Windows, ts: Tso, *, back: bool) -> Captured | None:
    """The transaction at a moment or before it, or the one behind it, of these windows."""
    there, width = list[Placed](), 64
    while len(windows) and not there:
        some, windows = (windows[-width:], windows[:-width]) if back else (windows[:width], windows[width:])
        there = [
            each
            for each in some.placed()
            if each.segment.rows and (each.segment.min_commit_ts <= ts if back else each.segment.max_commit_ts > ts)
        ]
    if not there:
        return None
    window = there[-1 if back else 0].start
    segments, found = [each.segment for each in there if each.start == window], []
    # Of another writer no more is read than that.
    if not any(each for segment in segments for batch in _peek(archive, segment) for each in captured_in(batch)):
        return None
    for segment in segments:
        known = read_columns(archive.store, segment, ("commit_ts",))["commit_ts"].to_numpy()
        found.append((Tso(int(known[int(np.searchsorted(known, ts, side="right")) - back])), segment))
    at, segment = (max if back else min)(found, key=lambda each: each[0])
    rows = read_segment(archive.store, segment, after=Tso(at - 1), upto=at, columns=_COLUMNS)
    return next((each for batch in rows for each in captured_in(batch)), None)


def _peek(archive: Archive, segment: SegmentEntry) -> Iterator[pa.RecordBatch]:
    """Its first rows."""
    return peek_segment(archive.store, segment, columns=_COLUMNS, at=(0.0,), most=_PEEK)


class _Near:
    """The nearest transactions on both sides of what is looked for, in the source's order."""

    def __init__(self, after: Tso, upto: Tso) -> None:
        """Looked for with ``after < commit_ts <= upto``."""
        self.after, self.upto = after, upto
        self.last: Captured | None = None
        self.first: Captured | None = None

    def told(self, found: Iterator[Captured], below: Below) -> Iterator[Captured]:
        """The same, looked at one by one."""
        for each in found:
            says = below(each)
            if says and (self.last is None or each.commit_ts > self.last.commit_ts):
                self.last = each
            if says is False and (self.first is None or each.commit_ts < self.first.commit_ts):
                self.first = each
            yield each


class _Pieces:
    """The binlogs of one transaction, as they are met: several where it has a DDL."""

    def __init__(self) -> None:
        self.at: dict[int, Tso] = {}
        self._count = 0

    def add(self, piece: Captured) -> None:
        """Met; a large one lies in several rows."""
        self.at[piece.piece], self._count = piece.commit_ts, piece.pieces

    @property
    def all_there(self) -> bool:
        """Whether nothing of it is missing."""
        return len(self.at) == self._count

    def bounds(self, gtid: str, following: Captured | None) -> tuple[Tso, Tso]:
        """First and last commit ts; UsageError where something is missing, or where that is not known.

        Keys of an earlier version do not say how many there are: whatever follows comes behind all of them.
        """
        counted = not self._count and following is not None and len(self.at) == max(self.at) + 1
        first, last = min(self.at.values()), max(self.at.values())
        if not (self.all_there or counted):
            raise UsageError(
                f"{gtid} has {self._count or 'several'} binlogs, as it changes the schema, and the archive is known to "
                f"have {len(self.at)} of them, from {show(first)} to {show(last)}",
                hint=f"{_SNAPSHOT}; what was settled by hand has no GTID: name the moment by its TSO",
            )
        return first, last


class _Look:
    """The archive's windows, and the captures that were met in them; UsageError where they are two."""

    def __init__(self, archive: Archive) -> None:
        self._archive, self._windows = archive, archive.windows()
        self._captures: set[str] = set()
        self._require_captured()
        self.anew = [
            each.commit_ts
            for entry in self._windows.ddls()
            for each in read_jobs(archive.store, entry)
            # Few have the word: the others need not be parsed.
            if '"anew"' in (each.job or "") and (job := each.parsed()) is not None and job.raw.get("anew")
        ]

    def eras(self) -> Iterator[tuple[Tso, Tso]]:
        """From where to where numbers and the clock ascend."""
        return pairwise((self._archive.range().start, *self.anew, self._archive.end()))

    def near(self, after: Tso, upto: Tso, below: Below, *, begin: Below | None = None) -> Iterator[Captured]:
        """All of the windows between which it changes from below to not below.

        ``begin``: where the first of these windows is another one, it is by this.
        """
        windows = self._windows.between(after, upto)
        busy = np.flatnonzero(windows.read_of(after, upto).segments).tolist()
        low, high = self._halved(windows, busy, after, upto, below)
        if (low, high) == (-1, len(busy)) and len(busy) > _SPREAD[-1]:
            return  # nothing says where to look, and not everything is read for what may be a slip of the pen
        if begin is not None:
            low, _ = self._halved(windows, busy, after, upto, begin)
        some = windows[0 if low < 0 else busy[low] : len(windows) if high == len(busy) else busy[high] + 1]
        for batch in self._rows(some, after, upto):
            yield from filter(None, self._noted(captured_in(batch)))

    def require_named(self, where: str, near: _Near) -> None:
        """UsageError where something lies between both that has no key: of which side it is, is not known."""
        after = near.last.commit_ts if near.last else near.after
        upto = Tso(near.first.commit_ts - 1) if near.first else near.upto
        found = (
            show(ts)
            for batch in self._rows(self._windows.between(after, upto), after, upto)
            for ts in batch.filter(pc.match_substring_regex(_heads(batch["payload"]), _KEYLESS))[
                "commit_ts"
            ].to_pylist()
        )
        if nameless := sorted(islice(found, 3)):
            raise UsageError(
                f"{where}, and there are transactions whose GTID and time are not known: they were settled by hand, or "
                "by a Pump of an earlier version",
                hint=f"they were committed at {', '.join(nameless)}: name one of these moments by its TSO",
            )

    def cut(self, last: Captured, first: Captured) -> Tso:
        """Where the capture began anew between them; 0 = it did not."""
        return next((each for each in self.anew if last.commit_ts < each < first.commit_ts), Tso(0))

    def _require_captured(self) -> None:
        """UsageError where no transaction of a capture is met in windows from all over the archive, or of two."""
        start, end = self._archive.range().start, self._archive.end()
        busy = np.flatnonzero(self._windows.read_of(start, end).segments)
        for at in _spread(len(busy), _SPREAD[0]):
            list(self._peeked(self._windows, int(busy[at]), start, end))
        if not self._captures:
            raise UsageError(
                "no window of the archive begins with a transaction that `pumphouse capture` read",
                hint="give a TIME or a TSO; `pumphouse archive find` lists transactions",
            )

    def _halved(self, windows: Windows, busy: list[int], after: Tso, upto: Tso, below: Below) -> tuple[int, int]:
        """The last of these windows whose first transaction is below, -1 = none; the first where it is not.

        Where a window says nothing, both may lie further apart.
        """

        def says(at: int) -> bool | None:
            firsts = (below(each) for each in self._peeked(windows, busy[at], after, upto))
            return next((each for each in firsts if each is not None), None)

        low, high = -1, len(busy)
        for many in _SPREAD:  # a domain may have begun late, or have ended early
            known = {at: says(at) for at in _spread(len(busy), many)}
            low = max((at for at, each in known.items() if each), default=-1)
            high = min((at for at, each in known.items() if each is False), default=len(busy))
            if (low, high) != (-1, len(busy)):
                break
        top = high
        while low + 1 < top:
            middle = (low + 1 + top) // 2
            found = (
                (at, told) for at in range(middle, min(top, middle + _SPREAD[0])) if (told := says(at)) is not None
            )
            at, told = next(found, (high, False))
            if told:
                low = at
            else:
                top, high = middle, at
        return low, high

    def _peeked(self, windows: Windows, at: int, after: Tso, upto: Tso) -> Iterator[Captured]:
        for segment in windows[at].segments:
            if segment.rows:
                for batch in _peek(self._archive, segment):
                    found = self._noted(captured_in(batch))
                    yield from (each for each in found if each is not None and after < each.commit_ts <= upto)

    def _rows(self, windows: Windows, after: Tso, upto: Tso) -> Iterator[pa.RecordBatch]:
        for manifest in windows:
            for segment in manifest.segments:
                if segment.rows:
                    yield from self._archive.segment_batches(
                        manifest, segment, after=after, upto=upto, columns=_COLUMNS
                    )

    def _noted(self, found: list[Captured | None]) -> list[Captured | None]:
        self._captures |= {each.capture for each in found if each is not None}
        if len(self._captures) > 1:
            raise UsageError(
                f"the archive has transactions of the captures {', '.join(sorted(self._captures))}: a GTID or a time "
                "of one source says nothing of the other",
                hint="give a TIME or a TSO; `pumphouse archive find` lists transactions",
            )
        return found


def _spread(count: int, many: int) -> list[int]:
    """Numbers from 0 on below ``count``, both ends among them, at most so many."""
    return sorted(set(np.linspace(0, count - 1, min(many, count)).astype(int).tolist()))


def _micros(when: datetime) -> int:
    return round(when.timestamp() * 1e6)


def _clock(micros: int, between: str = " ") -> str:
    at = datetime.fromtimestamp(micros / 1e6, UTC)
    return at.isoformat(between, "microseconds" if micros % 10**6 else "seconds")
