"""The clock of an ``etcd://`` cluster: one key, moved forward by compare-and-swap for each allocation.

The key holds the last timestamp given out, as decimal text. Threads of a process that wait together share one
allocation, which covers them and nobody else: a timestamp that is handed out later was taken later. What etcd has
answered is on the disks of its majority, so the clock survives everything that etcd survives. An allocation whose
outcome is unknown is given up: it can only have moved the key forward. The wall clock only ever pushes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import ClusterUnavailable, CorruptionError
from pumphouse.model.tso import Tso, compose
from pumphouse.registry.etcd_client import EtcdClient, get_op, put_op, value_is
from pumphouse.registry.etcd_nodes import PATIENCE_S

_RETRY_WAIT_S = 0.05
# So long those who wait look on before one of them sees whether there is still somebody who asks for them.
_TAKE_OVER_S = 0.1


@dataclass(slots=True)
class _Group:
    """Callers that wait for the same allocation; the first of them asks for it, whoever holds the ``turn`` may."""

    size: int = 0
    first: int = 0
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class _Local:
    """What belongs to one process: after a fork a lock may be held by a thread that the child does not have."""

    pid: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    turn: threading.Lock = field(default_factory=threading.Lock)
    waiting: _Group | None = None


class EtcdTso:
    """Gives out timestamps; safe across threads, forks, processes and machines."""

    def __init__(self, client: EtcdClient, key: bytes, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._key = key
        self._clock = clock
        self._last: bytes | None = None  # what the key held when last seen; only a guess
        self._given = 0  # the largest that this process has given out
        self._local = _Local(os.getpid())

    def next(self) -> Tso:
        """One timestamp above every one before.

        Raises:
            ClusterUnavailable: etcd did not answer.
            CorruptionError: the key is gone, holds no timestamp or an old one, so nothing can be promised.
        """
        return self.take(1)[0]

    def take(self, count: int) -> Sequence[Tso]:
        """So many at once, ascending; as `next`."""
        local = self._local
        if local.pid != os.getpid():
            local = self._local = _Local(os.getpid())
        with local.lock:
            group = local.waiting
            leads = group is None
            if group is None:
                group = local.waiting = _Group()
            at = group.size
            group.size += count
        # An exception of a signal handler can take the leader away at any place: then another one takes over.
        if leads or not group.done.wait(_TAKE_OVER_S):
            with local.turn:
                self._serve(local, group)
        if group.error is not None:
            raise group.error
        return [Tso(each) for each in range(group.first + at, group.first + at + count)]

    def _serve(self, local: _Local, group: _Group) -> None:
        """Allocate for a group, unless another did. Call it with ``turn`` held."""
        if group.done.is_set():
            return
        with local.lock:
            if local.waiting is group:
                local.waiting = None  # whoever comes from here on waits for the next allocation
        try:
            group.first = self._allocate(group.size)
        except Exception as error:  # noqa: BLE001 - raised by everyone who waits, the caller among them
            group.error = error
        group.done.set()

    def _allocate(self, count: int) -> int:
        until = self._clock.monotonic() + PATIENCE_S
        last = self._last
        while True:
            try:
                if last is not None:
                    # The clock is read after the last one has come: what is given out serves who waits already.
                    first = max(self._parse(last) + 1, compose(int(self._clock.now() * 1000)))
                    value = b"%d" % (first + count - 1)
                    done = self._client.txn(
                        [value_is(self._key, last)], [put_op(self._key, value)], [get_op(self._key)]
                    )
                    if done.succeeded:
                        self._last = value
                        self._given = first + count - 1
                        return first
                    found = done.ranges[0].kvs[0] if done.ranges[0].kvs else None
                else:
                    found = self._client.get(self._key)
                if found is None:
                    raise CorruptionError(
                        f"the clock's key {self._key.decode()} is gone from etcd",
                        hint="put it back with a timestamp above every one ever given out, in decimal",
                        path=self._key.decode(),
                    )
                last = found.value
                if self._parse(last) < self._given:
                    raise CorruptionError(
                        f"the clock's key {self._key.decode()} in etcd holds {last.decode()}, below {self._given},"
                        " which was given out: etcd lost what it had promised to keep, or was put back from a copy",
                        hint=f"stop all writers; put the key above {self._given} and above every ts in the archive",
                        path=self._key.decode(),
                    )
            except ClusterUnavailable:
                last = None
                if self._clock.monotonic() >= until:
                    raise
                self._clock.sleep(_RETRY_WAIT_S)

    def _parse(self, value: bytes) -> int:
        try:
            return int(value)
        except ValueError as error:
            raise CorruptionError(
                f"the clock's key {self._key.decode()} in etcd holds {value!r:.60}, which is no timestamp",
                hint="put it back with a timestamp above every one ever given out, in decimal",
                path=self._key.decode(),
            ) from error
