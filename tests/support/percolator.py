"""A model of TiKV's transactions on single keys: locks, write records, rollbacks, GC.

As TiKV has them: a rollback of somebody who looked leaves a protected record, others may be collapsed by a newer one; a
rollback whose place a commit takes becomes a flag on it; GC drops what newer versions cover.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pumphouse.model.tso import physical_ms
from pumphouse.proto import kvrpcpb_pb2 as kvrpcpb


class Refused(Exception):
    """TiKV refuses: locked, conflict, rolled back."""


@dataclass
class Lock:
    """A lock on a key."""

    start_ts: int
    primary: bytes
    ttl_ms: int
    async_commit: bool = False
    secondaries: tuple[bytes, ...] = ()
    pessimistic: bool = False
    for_update_ts: int = 0


@dataclass
class Write:
    """A write record; kept under its commit ts."""

    type: int
    start_ts: int
    overlapped: bool = False
    protected: bool = False


@dataclass
class Key:
    """One key's lock, and write records by commit ts."""

    lock: Lock | None = None
    writes: dict[int, Write] = field(default_factory=dict)

    def record(self, start_ts: int) -> tuple[int, Write] | None:
        """The commit or rollback of a transaction; an overlapped rollback counts as one."""
        for commit_ts, write in self.writes.items():
            if write.start_ts == start_ts:
                return commit_ts, write
        at = self.writes.get(start_ts)
        return (start_ts, Write(kvrpcpb.Rollback, start_ts)) if at is not None and at.overlapped else None


class Percolator:
    """Keys of one store."""

    def __init__(self) -> None:
        self.keys: dict[bytes, Key] = {}
        self.committed: dict[int, int] = {}  # start ts -> commit ts, of primaries: the truth

    def key(self, key: bytes) -> Key:
        """A key, made on first use."""
        return self.keys.setdefault(key, Key())

    def prewrite(self, key: bytes, lock: Lock) -> None:
        """Lock a key for a transaction; Refused when locked, overtaken or rolled back."""
        state = self.key(key)
        if state.lock is not None:
            if state.lock.start_ts != lock.start_ts:
                raise Refused("locked")
            if not state.lock.pessimistic:
                return
        record = state.record(lock.start_ts)
        if record is not None:
            raise Refused("rolled back" if record[1].type == kvrpcpb.Rollback else "committed already")
        if any(commit_ts > max(lock.start_ts, lock.for_update_ts) for commit_ts in state.writes):
            raise Refused("write conflict")
        state.lock = lock

    def commit(self, key: bytes, start_ts: int, commit_ts: int, *, tp: int = kvrpcpb.Put) -> None:
        """Commit a key; Refused when there is no lock of the transaction."""
        state = self.key(key)
        if state.lock is None or state.lock.start_ts != start_ts or state.lock.pessimistic:
            record = state.record(start_ts)
            if record is not None and record[1].type != kvrpcpb.Rollback:
                return
            raise Refused("lock not found")
        if state.lock.primary == key:
            self.committed[start_ts] = commit_ts
        there = state.writes.get(commit_ts)
        overlapped = there is not None and there.type == kvrpcpb.Rollback
        state.writes[commit_ts] = Write(tp, start_ts, overlapped=overlapped)
        state.lock = None

    def roll_back(self, key: bytes, start_ts: int, *, protected: bool) -> None:
        """Leave a rollback record; the transaction's lock goes."""
        state = self.key(key)
        if state.lock is not None and state.lock.start_ts == start_ts:
            state.lock = None
        if not protected:
            older = [ts for ts, write in state.writes.items() if ts < start_ts]
            last = max(older, default=None)
            if last is not None:
                write = state.writes[last]
                if write.type == kvrpcpb.Rollback and not write.protected:
                    del state.writes[last]
        at = state.writes.get(start_ts)
        if at is not None:
            at.overlapped = True
        else:
            state.writes[start_ts] = Write(kvrpcpb.Rollback, start_ts, protected=protected)

    def check(self, request: kvrpcpb.CheckTxnStatusRequest) -> kvrpcpb.CheckTxnStatusResponse:
        """`KvCheckTxnStatus` as TiKV has it."""
        state, start_ts = self.key(request.primary_key), request.lock_ts
        lock = state.lock
        answer = kvrpcpb.CheckTxnStatusResponse()
        if lock is not None and lock.start_ts == start_ts:
            info = self.lock_info(request.primary_key, lock)
            if request.verify_is_primary and lock.primary != request.primary_key:
                answer.error.primary_mismatch.lock_info.CopyFrom(info)
                return answer
            expired = physical_ms(start_ts) + lock.ttl_ms < physical_ms(request.current_ts)
            if expired and not lock.async_commit:
                self.roll_back(request.primary_key, start_ts, protected=lock.for_update_ts > 0)
                answer.action = kvrpcpb.TTLExpireRollback
                return answer
            answer.lock_ttl = lock.ttl_ms
            answer.lock_info.CopyFrom(info)
            return answer
        record = state.record(start_ts)
        if record is not None:
            answer.commit_version = 0 if record[1].type == kvrpcpb.Rollback else record[0]
        elif request.rollback_if_not_exist:
            self.roll_back(request.primary_key, start_ts, protected=True)
            answer.action = kvrpcpb.LockNotExistRollback
        else:
            answer.error.txn_not_found.start_ts = start_ts
        return answer

    def look(self, key: bytes) -> kvrpcpb.MvccInfo:
        """`MvccGetByKey`."""
        state = self.key(key)
        info = kvrpcpb.MvccInfo()
        for commit_ts, write in sorted(state.writes.items(), reverse=True):
            info.writes.add(
                type=write.type,
                start_ts=write.start_ts,
                commit_ts=commit_ts,
                has_overlapped_rollback=write.overlapped,
            )
        if state.lock is not None:
            lock = state.lock
            info.lock.start_ts, info.lock.primary, info.lock.ttl = lock.start_ts, lock.primary, lock.ttl_ms
            info.lock.use_async_commit = lock.async_commit
            info.lock.secondaries.extend(lock.secondaries)
            info.lock.type = kvrpcpb.PessimisticLock if lock.pessimistic else kvrpcpb.Put
        return info

    def resolve_locks(self, safe_point: int) -> None:
        """What GC does first: locks that are older are rolled back; those of async commits their other keys decide."""
        for key, state in self.keys.items():
            if state.lock is not None and state.lock.start_ts <= safe_point and not state.lock.async_commit:
                self.roll_back(key, state.lock.start_ts, protected=False)

    def collect(self, safe_point: int) -> None:
        """GC: of what lies at or below the safe point only the newest version stays."""
        for state in self.keys.values():
            newest = max(
                (ts for ts, w in state.writes.items() if ts <= safe_point and w.type in (kvrpcpb.Put, kvrpcpb.Del)),
                default=0,
            )
            for ts, write in list(state.writes.items()):
                if ts <= safe_point and (ts != newest or write.type == kvrpcpb.Del):
                    del state.writes[ts]

    def destroy(self, key: bytes) -> None:
        """The table was dropped long ago: all versions go."""
        self.key(key).writes.clear()

    @staticmethod
    def lock_info(key: bytes, lock: Lock) -> kvrpcpb.LockInfo:
        """A lock as answers carry it."""
        return kvrpcpb.LockInfo(
            primary_lock=lock.primary, lock_version=lock.start_ts, key=key, lock_ttl=lock.ttl_ms,
            use_async_commit=lock.async_commit, secondaries=lock.secondaries,
        )  # fmt: skip
