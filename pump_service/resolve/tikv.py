"""What became of a transaction of TiDB, from TiKV itself (docs/formats.md, "What TiKV says of a transaction").

The primary key alone decides, and a P carries it. A look at its versions changes nothing and is all that is done before
max-txn-timeout; after it TiKV is asked to roll back what has neither lock nor record. Answers that are not plain are
none: a P is dropped only when TiKV says that the transaction is rolled back *and* GC cannot have taken its commit away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from pump_service.resolve.base import Fate, NoAnswer, Outcome
from pump_service.resolve.tikv_calls import Calls
from pump_service.resolve.tikv_calls import show as text_of
from pumphouse.errors import BinlogError
from pumphouse.model.tso import show
from pumphouse.proto import kvrpcpb_pb2 as kvrpcpb

_AT_ONCE = 16
# Records that a commit leaves on the primary.
_COMMITS = frozenset({kvrpcpb.Put, kvrpcpb.Del, kvrpcpb.Lock, kvrpcpb.Insert})
# Ways in which a transaction was rolled back for good: by somebody before, for its lock's age, for want of a lock.
_FOR_GOOD = frozenset({kvrpcpb.NoAction, kvrpcpb.TTLExpireRollback, kvrpcpb.LockNotExistRollback})
_TABLE_KEY = b"t"
_META_KEY = b"m"
_SHORTEST_ROW_KEY = 19
_PENDING = Outcome(fate=Fate.PENDING)


class GcReach(Protocol):
    """How far GC can have come; `pump_service.resolve.gc_hold.GcHold` knows."""

    def reached(self, start_ts: int) -> int:
        """Largest ts up to which versions may be gone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the versions of a primary say about one transaction."""

    commit_ts: int = 0
    rolled_back: bool = False
    locked: bool = False
    async_commit: bool = False


def read_versions(info: kvrpcpb.MvccInfo, start_ts: int) -> Seen:
    """Find a transaction in the versions of its primary; NoAnswer when they contradict each other."""
    commits = set()
    rolled_back = False
    for write in info.writes:
        if write.start_ts == start_ts:
            if write.type == kvrpcpb.Rollback:
                rolled_back = True
            elif write.type in _COMMITS and write.commit_ts > start_ts:
                commits.add(write.commit_ts)
            else:
                raise NoAnswer(
                    f"TiKV has a record of start ts {start_ts} that is neither commit nor rollback: type {write.type},"
                    f" commit ts {write.commit_ts}"
                )
        elif write.commit_ts == start_ts and write.has_overlapped_rollback:
            # Another transaction's commit lies where the rollback record would be.
            rolled_back = True
    if len(commits) > 1 or (commits and rolled_back):
        raise NoAnswer(f"TiKV contradicts itself about start ts {start_ts}: commits {sorted(commits)} and a rollback")
    lock = info.lock if info.HasField("lock") and info.lock.start_ts == start_ts else None
    return Seen(
        commit_ts=commits.pop() if commits else 0,
        rolled_back=rolled_back,
        locked=lock is not None,
        async_commit=lock is not None and (lock.use_async_commit or bool(lock.secondaries)),
    )


def read_status(answer: kvrpcpb.CheckTxnStatusResponse, start_ts: int) -> Outcome:
    """What a `KvCheckTxnStatus` says; NoAnswer for everything that is not plain. ROLLED_BACK holds only before GC."""
    if answer.HasField("error"):
        raise NoAnswer(f"TiKV says of start ts {start_ts}: {text_of(answer.error, 500)}")
    if answer.commit_version:
        if answer.commit_version <= start_ts or answer.lock_ttl:
            raise NoAnswer(f"commit ts {answer.commit_version} of TiKV cannot be for start ts {start_ts}")
        return Outcome(fate=Fate.COMMITTED, commit_ts=answer.commit_version)
    # A lock that is there, however old, is no rollback: one of an async commit may be committed already.
    if answer.lock_ttl or answer.HasField("lock_info") or answer.action not in _FOR_GOOD:
        return _PENDING
    return Outcome(fate=Fate.ROLLED_BACK)


def is_tidb_key(key: bytes) -> bool:
    """Whether a key can be TiDB's: a row or index entry of a table, or its own meta data.

    ``t``, table id, ``_r`` or ``_i``, handle or index id and more. Ids are eight bytes with the sign bit turned over
    and never negative, so the second byte is no character of a readable key; a handle has eight bytes at least.
    """
    if key[:1] == _TABLE_KEY:
        return len(key) >= _SHORTEST_ROW_KEY and key[1] >= 0x80 and key[9:11] in (b"_r", b"_i")
    return key[:1] == _META_KEY and len(key) > 9 and key[9] >= 0xF7  # the first marker of the memcomparable form


class TikvResolver:
    """Resolver over TiKV; blocking work runs on threads of its own."""

    def __init__(self, calls: Calls, gc: GcReach, tso: Callable[[], int], *, close: Callable[[], None]) -> None:
        """Ask through ``calls``.

        Args:
            calls: to TiKV.
            gc: how far GC can have come.
            tso: a fresh timestamp, for the age of locks.
            close: ends questions that are under way.
        """
        self._calls = calls
        self._gc = gc
        self._tso = tso
        self._close = close
        # Not the loop's own threads: a store that does not answer would take them all.
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="tikv")

    async def ask(self, start_ts: int, prewrite_key: bytes, *, decide: bool) -> Outcome:
        """See `Resolver.ask`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: self.settle(start_ts, prewrite_key, decide=decide))

    async def evidence(self, start_ts: int, prewrite_key: bytes) -> str:
        """Lock and versions of the primary."""
        del start_ts
        if not is_tidb_key(prewrite_key):
            return ""
        loop = asyncio.get_running_loop()
        info = await loop.run_in_executor(self._threads, self._calls.look, prewrite_key)
        return f"mvcc of {prewrite_key.hex()}:\n{text_of(info)}"

    async def close(self) -> None:
        """End; what is asked now gets no answer."""
        self._close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def settle(self, start_ts: int, key: bytes, *, decide: bool) -> Outcome:
        """Blocking form of `ask`."""
        if not is_tidb_key(key):
            # TiKV would find nothing there, and call that rolled back.
            raise NoAnswer(
                f"{key.hex() or 'an empty key'} of start ts {start_ts} is no key of TiDB, and no application answers",
                hint="start the application's resolver, or: pumphouse pump settle",
                start_ts=start_ts,
            )
        try:
            return self._settle(start_ts, key, decide=decide)
        except NoAnswer:
            raise
        except BinlogError as error:
            raise NoAnswer(str(error), start_ts=start_ts) from error

    def _settle(self, start_ts: int, key: bytes, *, decide: bool) -> Outcome:
        try:
            seen = read_versions(self._calls.look(key), start_ts)
        except NoAnswer:
            if not decide:
                raise
            seen = Seen()  # the status call does without
        if seen.commit_ts:
            return Outcome(fate=Fate.COMMITTED, commit_ts=seen.commit_ts)
        if seen.rolled_back and not seen.locked:
            return self._rolled_back(start_ts, key)
        if not decide:
            return _PENDING
        if seen.async_commit:
            raise NoAnswer(
                f"start ts {start_ts} is an async commit: its other keys decide, whoever meets its locks settles it",
                start_ts=start_ts,
            )
        outcome = read_status(self._calls.check(key, start_ts, self._tso()), start_ts)
        return outcome if outcome.fate is not Fate.ROLLED_BACK else self._rolled_back(start_ts, key)

    def _rolled_back(self, start_ts: int, key: bytes) -> Outcome:
        """It looks rolled back. It is, if GC had not come to its start ts when that was seen."""
        reached = self._gc.reached(start_ts)
        if reached >= start_ts:
            raise NoAnswer(
                f"TiKV finds no commit of start ts {start_ts}; GC may have taken it, it has come to {show(reached)}",
                hint="see TiDB's own records, then: pumphouse pump settle",
                start_ts=start_ts,
            )
        self._contradicted(start_ts, key)
        return Outcome(fate=Fate.ROLLED_BACK)

    def _contradicted(self, start_ts: int, key: bytes) -> None:
        """NoAnswer if the versions, seen once more, speak against a rollback; if they cannot be seen, nothing does."""
        try:
            info = self._calls.look(key)
        except NoAnswer:
            return
        seen = read_versions(info, start_ts)
        if seen.commit_ts or seen.locked:
            raise NoAnswer(
                f"TiKV said that start ts {start_ts} is rolled back, and has a lock or commit of it", start_ts=start_ts
            )
