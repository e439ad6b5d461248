"""Reading the stream one binlog after the other: the reference of `pump_service.store.reader`, and its closer look.

It takes whatever the kernels do not, and names what is wrong with what nobody can take. Any thread, no state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from pump_service.store import frame
from pump_service.store.batch import IN_ORDER, LATE, ORPHAN, Binlog
from pump_service.store.index import Index
from pump_service.store.pending import PendingCommit, PendingCommits
from pump_service.store.valuelog import ValueLog
from pumphouse.errors import BadRecord, OrphanCommit
from pumphouse.model.position import Pointer

_BLOCK = 256 << 10
_BLOCKS_KEPT = 32


class RecordCache:
    """Reads records through blocks: neighbours in the stream are neighbours in the log."""

    def __init__(self, valuelog: ValueLog) -> None:
        self._valuelog = valuelog
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def _block(self, fid: int, number: int) -> bytes:
        key = (fid, number)
        block = self._blocks.get(key)
        if block is None:
            block = self._valuelog.file(fid).handle.read_at(number * _BLOCK, _BLOCK)
            self._blocks[key] = block
            if len(self._blocks) > _BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        return block

    def is_prewrite(self, ts: int, pointer: Pointer) -> bool:
        """Whether a record certainly is the prewrite that is indexed under ``ts``; False = read the record, checked.

        Its checksum is looked at when its commit comes. Until then type and start ts must both fit: no flipped bit
        makes a commit look like that, since a commit is not indexed under its start ts.
        """
        number, at = divmod(pointer.offset, _BLOCK)
        begin = frame.PREWRITE_BEGIN + frame.varint(ts)
        return self._block(pointer.fid, number).startswith(begin, at + frame.HEADER_BYTES)

    def read(self, pointer: Pointer) -> bytes:
        """Payload of a record, checked. Raises BadRecord."""
        number, at = divmod(pointer.offset, _BLOCK)
        block = self._block(pointer.fid, number)
        begin = at + frame.HEADER_BYTES
        if begin <= len(block):
            magic, length, checksum = frame.decode_header(block, at)
            payload = block[begin : begin + length]
            if magic == frame.RECORD_MAGIC and len(payload) == length and frame.crc32c(payload) == checksum:
                return payload
        # Not within the block, or not good: the file's own reading decides and names what is wrong.
        return self._valuelog.read(pointer)


class PlainReader:
    """Ranges of the stream."""

    def __init__(self, index: Index, valuelog: ValueLog, pending: PendingCommits) -> None:
        self._index = index
        self._valuelog = valuelog
        self._pending = pending

    def binlogs(self, after: int, upto: int, memory: dict[int, tuple[int, bytes]]) -> Iterator[Binlog]:
        """Every committed binlog with after < commit ts <= upto, in order; flagged where it is late or an orphan."""
        # One look for all of it: an outcome moves from memory to the index at any time, into which is looked later.
        memory = dict(memory)
        held = self._pending.between(after, upto)
        extra = self._extra(after, upto, memory, held)
        cache = RecordCache(self._valuelog)
        at = 0
        for binlog in self._indexed(after, upto, memory, {item.pointer for item in held}, cache):
            while at < len(extra) and extra[at][:2] < (binlog.commit_ts, binlog.start_ts):
                yield from self._resolve(extra[at], cache)
                at += 1
            yield binlog
        for each in extra[at:]:
            yield from self._resolve(each, cache)

    def _indexed(
        self, after: int, upto: int, memory: dict[int, tuple[int, bytes]], held: set[Pointer], cache: RecordCache
    ) -> Iterator[Binlog]:
        prewrites: dict[int, Pointer] = {}
        for ts, pointer in self._index.pointers(after, upto):
            if pointer in held:
                continue
            if cache.is_prewrite(ts, pointer):
                prewrites[ts] = pointer
                continue
            commit = cache.read(pointer)
            tp, start, commit_ts, _ = frame.read_meta(commit)
            if tp == 0 and start == ts:
                prewrites[ts] = pointer
                continue
            if tp == 0 or commit_ts != ts:
                raise self._disagrees(ts, pointer)
            if ts in memory and memory[ts][0] == start:
                continue  # it was written since
            if start == ts:
                yield Binlog(ts, start, commit, IN_ORDER)
                continue
            found = prewrites.pop(start, None) or self._index.get(start)
            if found is None:
                # Orphans are noted before they are indexed, so this is a prewrite that was lost since.
                raise OrphanCommit(
                    f"the prewrite of commit {ts} with start ts {start} is on no file", start_ts=start, commit_ts=ts
                )
            yield Binlog(ts, start, frame.merge(self._prewrite(found, start, cache), commit), IN_ORDER)

    def _extra(
        self, after: int, upto: int, memory: dict[int, tuple[int, bytes]], held: list[PendingCommit]
    ) -> list[tuple[int, int, PendingCommit | bytes]]:
        found: dict[tuple[int, int], PendingCommit | bytes] = {
            (commit, start): payload for commit, (start, payload) in memory.items() if after < commit <= upto
        }
        # One that was written since it was looked for in memory is what it is now.
        found |= {(item.commit_ts, item.start_ts): item for item in held}
        return [(*key, found[key]) for key in sorted(found)]

    def _resolve(self, extra: tuple[int, int, PendingCommit | bytes], cache: RecordCache) -> Iterator[Binlog]:
        ts, start, what = extra
        if isinstance(what, PendingCommit) and what.is_prewrite:
            return
        commit = what if isinstance(what, bytes) else cache.read(what.pointer)
        orphan = start == 0 or (isinstance(what, PendingCommit) and what.orphan)
        found = None if orphan else self._index.get(start)
        if found is None:
            yield Binlog(ts, start, commit, ORPHAN)
            return
        flag = LATE if isinstance(what, PendingCommit) and what.holds_as_late else IN_ORDER
        yield Binlog(ts, start, frame.merge(self._prewrite(found, start, cache), commit), flag)

    def _prewrite(self, pointer: Pointer, start_ts: int, cache: RecordCache) -> bytes:
        payload = cache.read(pointer)
        meta = frame.read_meta(payload)
        if meta.tp != 0 or meta.start_ts != start_ts:
            raise self._disagrees(start_ts, pointer)
        return payload

    def _disagrees(self, ts: int, pointer: Pointer) -> BadRecord:
        path = str(self._valuelog.file(pointer.fid).path)
        return BadRecord(
            f"the index points {ts} at {path} offset {pointer.offset}, where another record lies",
            hint="stop the Pump and remove its kv directory: the index is rebuilt from the value log",
            path=path,
            offset=pointer.offset,
            reason="index and value log disagree",
        )
