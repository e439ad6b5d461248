"""Prewrites wait for their outcome; the watermark is what no unresolved prewrite stands before (design: promises).

Records come in the order of the value log. The order of the stream is that of the Go Pump: a record counts as passed
when every prewrite before it is resolved, and the watermark is the largest commit ts among the passed. Because a writer
takes its commit ts after its prewrite was answered, no later commit can lie at or below it.

Only unresolved prewrites cost memory: each holds, in a linked list in order of arrival, the largest commit ts and the
last pointer among the records between itself and the next unresolved one. Resolving it folds both into its predecessor.

All of it runs in kernels over whole blocks. Unresolved prewrites are rows of an array, found by start ts through an
open-addressing table: some 70 bytes each. Beside them stands what was put into the index last (`Recent`), so that
hardly any commit has to be looked up in LevelDB. `advance` takes records as long as they are plain; one that is not
(late, orphan, met before, below the GC point) it leaves to the indexer, which judges it in Python, and goes on behind
it.
"""

# mypy: disable-error-code="arg-type, assignment, return-value, no-any-return"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pump_service.store.block import I64, Block
from pump_service.store.rows import Puts, put_row
from pumphouse.codec.jit import Bytes, Int32s, Ints, kernel, primitive
from pumphouse.model.position import ZERO_POINTER, Pointer
from pumphouse.model.tso import Tso

# A pointer in one number: file id, offset.
_OFFSET_BITS = 40
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1

# columns of a node; row 0 is the root, which stands before all prewrites
START, MAX_COMMIT, LAST, POINTER, PREV, NEXT, ARRIVED, _COLUMNS = range(8)
# state of the wait set
TAIL, FREE, USED, WAITING, PUTS, _STATES = range(6)
# state of `Recent`
CURRENT, FILLED, HIGHEST, HIGHEST_BEFORE, FLOOR, _RECENT_STATES = range(6)

SMALLEST = 1 << 10
RECENT_BITS = 17
_NOTHING = -1
_NANOSECONDS = 1_000_000_000


@primitive
def _home(ts: int, size: int) -> int:
    """Where the search for a timestamp begins in a table of ``size`` (a power of two) places."""
    mixed = np.uint64(ts) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(32)) & (size - 1)


# -- wait set --------------------------------------------------------------------------------------------------------


@primitive
def _place(ts: int, nodes: Ints, slots: Int32s) -> int:
    """Place of a start ts in the table, or the free place where it would go."""
    mask = len(slots) - 1
    at = _home(ts, len(slots))
    while slots[at] != 0 and nodes[slots[at], START] != ts:
        at = (at + 1) & mask
    return at


@primitive
def _wait(ts: int, pointer: int, arrived: int, nodes: Ints, slots: Int32s, state: Ints) -> None:
    """A prewrite arrived. One that waits already (a retry) changes nothing."""
    at = _place(ts, nodes, slots)
    if slots[at] != 0:
        nodes[state[TAIL], LAST] = pointer
        return
    node = state[FREE]
    if node != 0:
        state[FREE] = nodes[node, NEXT]
    else:
        node = state[USED]
        state[USED] += 1
    tail = state[TAIL]
    nodes[node, START] = ts
    nodes[node, MAX_COMMIT] = 0
    nodes[node, LAST] = nodes[node, POINTER] = pointer
    nodes[node, PREV] = tail
    nodes[node, NEXT] = 0
    nodes[node, ARRIVED] = arrived
    nodes[tail, NEXT] = node
    state[TAIL] = node
    state[WAITING] += 1
    slots[at] = node


@primitive
def _free_place(at: int, nodes: Ints, slots: Int32s) -> None:
    """Empty a place and close the gap, so that every search still ends at a free place only."""
    mask = len(slots) - 1
    gap = at
    at = (at + 1) & mask
    while slots[at] != 0:
        home = _home(nodes[slots[at], START], len(slots))
        if (at - home) & mask >= (at - gap) & mask:
            slots[gap] = slots[at]
            gap = at
        at = (at + 1) & mask
    slots[gap] = 0


@primitive
def _resolve(ts: int, nodes: Ints, slots: Int32s, state: Ints) -> bool:
    """A prewrite got its outcome: fold it into the one before; False when none waits."""
    at = _place(ts, nodes, slots)
    node = np.int64(slots[at])
    if node == 0:
        return False
    _free_place(at, nodes, slots)
    before, behind = nodes[node, PREV], nodes[node, NEXT]
    nodes[before, MAX_COMMIT] = max(nodes[before, MAX_COMMIT], nodes[node, MAX_COMMIT])
    nodes[before, LAST] = nodes[node, LAST]
    nodes[before, NEXT] = behind
    if behind == 0:
        state[TAIL] = before
    else:
        nodes[behind, PREV] = before
    nodes[node, NEXT] = state[FREE]
    state[FREE] = node
    state[WAITING] -= 1
    return True


@primitive
def _pass(commit_ts: int, pointer: int, nodes: Ints, state: Ints) -> None:
    """A record that is no prewrite arrived; a pointer below 0 = it is in memory only."""
    tail = state[TAIL]
    nodes[tail, MAX_COMMIT] = max(nodes[tail, MAX_COMMIT], commit_ts)
    if pointer >= 0:
        nodes[tail, LAST] = pointer


# -- what was put into the index last --------------------------------------------------------------------------------


@primitive
def _recall_from(ts: int, generation: int, keys: Ints, pointers: Ints) -> int:
    mask = keys.shape[1] - 1
    at = _home(ts, keys.shape[1])
    while keys[generation, at] != _NOTHING:
        if keys[generation, at] == ts:
            return pointers[generation, at]
        at = (at + 1) & mask
    return _NOTHING


@primitive
def _recall(ts: int, keys: Ints, pointers: Ints, recent: Ints) -> int:
    """Pointer that a timestamp was put with, or -1."""
    found = _recall_from(ts, recent[CURRENT], keys, pointers)
    return found if found >= 0 else _recall_from(ts, 1 - recent[CURRENT], keys, pointers)


@primitive
def _remember(ts: int, pointer: int, keys: Ints, pointers: Ints, recent: Ints) -> None:
    current = recent[CURRENT]
    mask = keys.shape[1] - 1
    at = _home(ts, keys.shape[1])
    while keys[current, at] != _NOTHING:
        if keys[current, at] == ts:
            pointers[current, at] = pointer
            return
        at = (at + 1) & mask
    keys[current, at] = ts
    pointers[current, at] = pointer
    recent[HIGHEST] = max(recent[HIGHEST], ts)
    recent[FILLED] += 1
    if recent[FILLED] >= keys.shape[1] >> 1:
        # The older generation is forgotten: what lies above its highest timestamp is still all known.
        recent[FLOOR] = max(recent[FLOOR], recent[HIGHEST_BEFORE])
        recent[HIGHEST_BEFORE] = recent[HIGHEST]
        recent[HIGHEST] = 0
        recent[FILLED] = 0
        recent[CURRENT] = 1 - current
        for place in range(keys.shape[1]):
            keys[1 - current, place] = _NOTHING


# -- kernels ---------------------------------------------------------------------------------------------------------


@kernel
def prewrite(ts: int, pointer: int, arrived: int, nodes: Ints, slots: Int32s, state: Ints) -> None:
    """`_wait`, for one."""
    _wait(ts, pointer, arrived, nodes, slots, state)


@kernel
def resolve(ts: int, nodes: Ints, slots: Int32s, state: Ints) -> bool:
    """`_resolve`, for one."""
    return _resolve(ts, nodes, slots, state)


@kernel
def passed(commit_ts: int, pointer: int, nodes: Ints, state: Ints) -> None:
    """`_pass`, for one."""
    _pass(commit_ts, pointer, nodes, state)


@kernel
def is_waiting(ts: int, nodes: Ints, slots: Int32s) -> bool:
    """Whether a prewrite waits."""
    return slots[_place(ts, nodes, slots)] != 0


@kernel
def lowest_start(nodes: Ints) -> int:
    """Smallest start ts that waits, or -1."""
    lowest = np.int64(_NOTHING)
    node = nodes[0, NEXT]
    while node != 0:
        if lowest < 0 or nodes[node, START] < lowest:
            lowest = nodes[node, START]
        node = nodes[node, NEXT]
    return lowest


@kernel
def fill_slots(nodes: Ints, slots: Int32s) -> None:
    """Enter all that waits into a new table."""
    node = nodes[0, NEXT]
    while node != 0:
        slots[_place(nodes[node, START], nodes, slots)] = node
        node = nodes[node, NEXT]


@kernel
def recall(ts: int, keys: Ints, pointers: Ints, recent: Ints) -> int:
    """`_recall`, for one."""
    return _recall(ts, keys, pointers, recent)


@kernel
def remember(ts: int, pointer: int, keys: Ints, pointers: Ints, recent: Ints) -> None:
    """`_remember`, for one."""
    _remember(ts, pointer, keys, pointers, recent)


@kernel
def advance(  # noqa: C901, PLR0911, PLR0912
    tp: Bytes, start_ts: Ints, commit_ts: Ints, fid: Int32s, offset: Ints, first: int,
    nodes: Ints, slots: Int32s, state: Ints, keys: Ints, pointers: Ints, recent: Ints,
    known_ts: Ints, known: Ints, known_above: int, known_upto: int, orphans: Ints,
    floor: int, running: bool, careful: bool, arrived: int, rows: Bytes,
) -> int:  # fmt: skip
    """Take records from ``first`` on; returns where it stopped: at one to be judged, or behind the last.

    ``known_ts`` and ``known``: timestamps and pointers of the index between ``known_above`` and ``known_upto``, of
    those at least that the records are indexed under.
    ``orphans``: start ts of commits whose prewrite is missed, and of those that came with several contents.
    ``floor``: commits at or below it are judged (watermark, GC point). ``running``: so are those at or below the
    watermark that the records before them come to, which may have been published before a crash. ``careful``: outcomes
    are in memory only. What goes into the index is added to ``rows``; ``state[PUTS]`` counts it.
    """
    for row in range(first, len(tp)):
        start, commit = start_ts[row], commit_ts[row]
        pointer = np.int64(fid[row]) << _OFFSET_BITS | offset[row]
        if start < 0 or commit < 0:
            return row
        if start == 0 and commit == 0:
            continue  # an empty binlog, as the Go Pump may have stored one
        if tp[row] == 0 or start == commit:
            key = start
            # What is in the index under its key is judged: nothing that was answered is replaced.
            prior = _recall(key, keys, pointers, recent)
            if prior < 0 and key <= recent[FLOOR]:
                if not known_above < key <= known_upto:
                    return row
                at = np.searchsorted(known_ts, key)
                if at < len(known_ts) and known_ts[at] == key:
                    prior = known[at]
            if prior >= 0 and prior != pointer:
                return row
            if tp[row] != 0:
                _pass(commit, pointer, nodes, state)
            elif len(orphans) and orphans[min(np.searchsorted(orphans, start), len(orphans) - 1)] == start:
                return row
            else:
                _wait(start, pointer, arrived, nodes, slots, state)
        elif careful:
            return row
        elif commit == 0:
            _resolve(start, nodes, slots, state)
            _pass(0, pointer, nodes, state)
            key = np.int64(0)
        else:
            if commit <= recent[FLOOR]:
                if not known_above < commit <= known_upto:
                    return row
                at = np.searchsorted(known_ts, commit)
                if at < len(known_ts) and known_ts[at] == commit:
                    if known[at] != pointer:
                        return row
                    # Met again after a restart: it was judged when it came first.
                    _resolve(start, nodes, slots, state)
                    _pass(commit, pointer, nodes, state)
                    continue
            if commit <= floor or (running and commit <= nodes[0, MAX_COMMIT]):
                return row
            if _recall(commit, keys, pointers, recent) >= 0:
                return row
            if not _resolve(start, nodes, slots, state):
                return row
            _pass(commit, pointer, nodes, state)
            key = commit
        if key != 0:
            _remember(key, pointer, keys, pointers, recent)
        put_row(rows, state[PUTS], key, np.int64(fid[row]), offset[row])
        state[PUTS] += 1
    return len(tp)


# -- their owners ----------------------------------------------------------------------------------------------------


def packed(pointer: Pointer) -> int:
    """A pointer in one number."""
    return pointer.fid << _OFFSET_BITS | pointer.offset


def unpacked(number: int) -> Pointer:
    """The pointer of a number."""
    return Pointer(number >> _OFFSET_BITS, number & _OFFSET_MASK)


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A piece of the index: timestamps t with above < t <= upto, ascending, and their pointers in one number.

    All of them, or at least those under which the records of one block are indexed.
    """

    ts: I64
    pointers: I64
    above: int
    upto: int

    @classmethod
    def of(cls, columns: tuple[I64, NDArray[np.uint32], I64], above: int, upto: int) -> Known:
        """From `Index.columns`."""
        ts, fid, offset = columns
        return cls(ts, fid.astype(np.int64) << _OFFSET_BITS | offset, above, upto)

    def with_singles(self, asked: I64, pointers: Sequence[Pointer | None]) -> Known:
        """With what the index has under timestamps that lie outside, ascending: it is known of them all, then."""
        found = [(ts, packed(at)) for ts, at in zip(asked.tolist(), pointers, strict=True) if at is not None]
        ts = np.concatenate((self.ts, np.array([ts for ts, _ in found], np.int64)))
        order = np.argsort(ts)
        above, upto = (int(asked[0]) - 1, int(asked[-1])) if len(asked) else (self.above, self.upto)
        if self.upto:
            above, upto = min(above, self.above), max(upto, self.upto)
        joined = np.concatenate((self.pointers, np.array([at for _, at in found], np.int64)))
        return Known(ts[order], joined[order], above, upto)


NOBODY = np.zeros(0, np.int64)
NOTHING_KNOWN = Known(NOBODY, NOBODY, 0, 0)


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A prewrite without an outcome."""

    start_ts: int
    arrived: float  # monotonic seconds at which this process saw it
    pointer: Pointer
    prewrite_key: bytes = b""  # read back from the value log where it is asked for


class Recent:
    """What was put into the index last: every timestamp above a floor, and some below. Indexer thread only."""

    def __init__(self, floor: int, *, bits: int = RECENT_BITS) -> None:
        self.keys = np.full((2, 1 << bits), _NOTHING, np.int64)
        self.pointers = np.zeros((2, 1 << bits), np.int64)
        self.state = np.zeros(_RECENT_STATES, np.int64)
        self.state[FLOOR] = floor
        # Nothing may be forgotten before it is in the index.
        self.most_at_once = 1 << bits - 1

    def remember(self, ts: int, pointer: Pointer) -> None:
        """A timestamp was put into the index."""
        remember(ts, packed(pointer), self.keys, self.pointers, self.state)

    def recall(self, ts: int) -> Pointer | None:
        """What a timestamp was put with."""
        found = recall(ts, self.keys, self.pointers, self.state)
        return None if found < 0 else unpacked(found)

    @property
    def floor(self) -> int:
        """A timestamp above it that cannot be recalled is in no index."""
        return int(self.state[FLOOR])

    def knows_all_at(self, ts: int) -> bool:
        """Whether a timestamp that cannot be recalled is in no index."""
        return ts > self.floor


class Waiting:
    """Wait set and head-of-line order."""

    def __init__(self, watermark: int = 0, handle: Pointer = ZERO_POINTER) -> None:
        self._lock = threading.Lock()
        self._nodes = np.zeros((SMALLEST, _COLUMNS), np.int64)
        self._nodes[0, MAX_COMMIT], self._nodes[0, LAST] = watermark, packed(handle)
        self._slots = np.zeros(2 * SMALLEST, np.int32)
        self._state = np.zeros(_STATES, np.int64)
        self._state[USED] = 1

    # -- indexer thread ------------------------------------------------------------------------------------------------

    def advance(
        self, block: Block, first: int, recent: Recent, puts: Puts, *,
        floor: int, careful: bool, now: float, running: bool = False, orphans: I64 = NOBODY,
        known: Known = NOTHING_KNOWN,
    ) -> int:  # fmt: skip
        """`advance`: rows from ``first`` on that are plain; returns the first that is not, or the number of rows."""
        with self._lock:
            self._room(len(block) - first)
            self._state[PUTS] = puts.count
            stopped = advance(
                block.tp, block.start_ts, block.commit_ts, block.fid, block.offset, first,
                self._nodes, self._slots, self._state, recent.keys, recent.pointers, recent.state,
                known.ts, known.pointers, known.above, known.upto, orphans,
                floor, running, careful, int(now * _NANOSECONDS), puts.rows,
            )  # fmt: skip
            puts.count = int(self._state[PUTS])
        return int(stopped)

    def _room(self, more: int) -> None:
        """Make sure that so many more prewrites can wait."""
        used = int(self._state[USED])
        if used + more > len(self._nodes):
            grown = np.zeros((1 << (used + more - 1).bit_length(), _COLUMNS), np.int64)
            grown[:used] = self._nodes[:used]
            self._nodes = grown
            self._slots = np.zeros(2 * len(grown), np.int32)
            fill_slots(self._nodes, self._slots)

    def prewrite(self, start_ts: int, pointer: Pointer, arrived: float) -> None:
        """A prewrite arrived. One that waits already (a retry) changes nothing."""
        with self._lock:
            self._room(1)
            prewrite(start_ts, packed(pointer), int(arrived * _NANOSECONDS), self._nodes, self._slots, self._state)

    def resolve(self, start_ts: int) -> bool:
        """A prewrite got its outcome; False when none waits."""
        with self._lock:
            return bool(resolve(start_ts, self._nodes, self._slots, self._state))

    def passed(self, commit_ts: int, pointer: Pointer | None) -> None:
        """A record that is no prewrite arrived; ``pointer`` None = it is in memory only."""
        with self._lock:
            passed(commit_ts, _NOTHING if pointer is None else packed(pointer), self._nodes, self._state)

    # -- any thread ----------------------------------------------------------------------------------------------------

    def is_waiting(self, start_ts: int) -> bool:
        """Whether a prewrite waits for its outcome."""
        with self._lock:
            return bool(is_waiting(start_ts, self._nodes, self._slots))

    def position(self) -> tuple[Tso, Pointer]:
        """Watermark, and the pointer of the last record that was passed."""
        with self._lock:
            return Tso(int(self._nodes[0, MAX_COMMIT])), unpacked(int(self._nodes[0, LAST]))

    def __len__(self) -> int:
        return int(self._state[WAITING])

    def oldest(self, limit: int) -> list[Unresolved]:
        """Unresolved prewrites in order of arrival; the first holds the watermark."""
        found: list[Unresolved] = []
        with self._lock:
            node = int(self._nodes[0, NEXT])
            while node and len(found) < limit:
                row = self._nodes[node].tolist()
                found.append(Unresolved(row[START], row[ARRIVED] / _NANOSECONDS, unpacked(row[POINTER])))
                node = row[NEXT]
        return found

    def min_start(self) -> int | None:
        """Smallest unresolved start ts."""
        with self._lock:
            lowest = int(lowest_start(self._nodes))
        return None if lowest < 0 else lowest


class Order(NamedTuple):
    """What the records so far came to."""

    waiting: Waiting
    recent: Recent
