"""Rounds on the target: the groups of one over several connections, round after round, each told when it is committed.

Groups of rows that come once (`Shape.once`) go last, in the transaction that also moves the position: a transaction
that is given again after a crash is either known by it or found nothing of them.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

from pumphouse.clock import SYSTEM_CLOCK, Clock, Throttle
from pumphouse.errors import LoadError
from pumphouse.loader.fence import hold_shared
from pumphouse.loader.looks import Looks, require_server
from pumphouse.loader.target import RetryUnit, TargetConnection
from pumphouse.replay.change import Change, Round
from pumphouse.replay.statements import run_step
from pumphouse.replay.steps import Safety, steps_of
from pumphouse.schema.dialect import Dialect
from pumphouse.settings import TargetSettings

_ATTEMPTS = 20
# The server ends a session that was idle for 300 s (`pumphouse.loader.target.IDLE`).
_IDLE_S = 240.0
Job = list[list[Change]]


class Rounds:
    """Runs one round at a time, in a thread of its own, while the caller makes the next.

    Args:
        settings: the target.
        owner: the connection that owns it; nobody else uses it while rounds are under way.
        fence: number that each transaction must find.
        connections: transactions at once.
        job_rows: row changes of one transaction on the target, more or less; whole groups.
        bytes_per_s: of rows, over all connections, a round at a time; 0 = no limit.
        safety: how a round runs, asked when it begins.
        close_round: called in the transaction that ends a round.
        committed: called with a round behind its commit.
        failed: called once with what went wrong; nothing runs after that.
    """

    def __init__(
        self,
        settings: TargetSettings,
        owner: TargetConnection,
        fence: int,
        *,
        connections: int,
        job_rows: int,
        bytes_per_s: int = 0,
        safety: Callable[[], Safety],
        close_round: Callable[[TargetConnection, Round], None],
        committed: Callable[[Round], None],
        failed: Callable[[BaseException], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        require_loadable(owner)
        self._settings, self._owner, self._fence, self._server = settings, owner, fence, Looks(owner).server
        self._job_rows, self._clock = job_rows, clock
        self._throttle = Throttle(bytes_per_s, clock) if bytes_per_s else None
        self._safety, self._close_round, self._committed, self._failed = safety, close_round, committed, failed
        self._pool = ThreadPoolExecutor(connections, "replay")
        self._sessions: queue.SimpleQueue[tuple[TargetConnection, float]] = queue.SimpleQueue()
        # One round runs while one waits and the caller makes the next: more would only take memory.
        self._rounds: queue.Queue[Round | None] = queue.Queue(1)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="replay-rounds", daemon=True)
        self._thread.start()

    def submit(self, round_: Round) -> None:
        """Hand a round over; waits while one is under way and another one waits. Raises what an earlier one raised."""
        self._raise()
        self._rounds.put(round_)

    def drain(self) -> None:
        """Wait until every round is committed; raises what one raised."""
        self._rounds.join()
        self._raise()

    def stop(self) -> None:
        """End the threads and the sessions, when what was submitted is through."""
        self._rounds.put(None)
        self._thread.join()
        self._pool.shutdown()
        with suppress(queue.Empty):
            while True:
                self._sessions.get_nowait()[0].close()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (round_ := self._rounds.get()) is not None:
            try:
                if self._error is None:
                    self._run(round_)
                    self._committed(round_)
                    if self._throttle is not None:
                        self._throttle.took(sum(len(c.new or c.old or b"") for group in round_.groups for c in group))
            except BaseException as error:  # noqa: BLE001 - the thread that runs the replay raises it
                self._error = error
                self._failed(error)
            finally:
                self._rounds.task_done()
        self._rounds.task_done()

    def _run(self, round_: Round) -> None:
        safety = self._safety()
        last = [group for group in round_.groups if any(change.shape.once for change in group)]
        others = [group for group in round_.groups if not any(change.shape.once for change in group)]
        running = [self._pool.submit(self._run_job, job, safety) for job in _jobs(others, self._job_rows)]
        wait(running)
        for each in running:
            each.result()
        self._retrying(lambda: self._transaction(self._owner, last, safety, round_))

    def _run_job(self, job: Job, safety: Safety) -> None:
        if self._error is not None:
            return
        session = self._session()
        try:
            self._retrying(lambda: self._transaction(session, job, safety))
        except BaseException:
            session.close()
            raise
        self._sessions.put((session, self._clock.monotonic()))

    def _session(self) -> TargetConnection:
        with suppress(queue.Empty):
            while True:
                session, used = self._sessions.get_nowait()
                if self._clock.monotonic() - used < _IDLE_S:
                    return session
                session.close()
        session = TargetConnection.open(self._settings)
        try:
            require_server(session, self._server)
        except BaseException:
            session.close()
            raise
        return session

    def _transaction(self, session: TargetConnection, job: Sequence[Sequence[Change]], safety: Safety,
                     round_: Round | None = None) -> None:  # fmt: skip
        with session.transaction():
            hold_shared(session, self._fence)
            for step in steps_of(job, safe=safety.replaces):
                run_step(session, step, safety)
            if round_ is not None:
                self._close_round(session, round_)

    def _retrying(self, run: Callable[[], None]) -> None:
        """A deadlock or lock time-out leaves nothing behind: once more from the start."""
        for attempt in range(_ATTEMPTS):
            try:
                run()
            except RetryUnit:
                if attempt == _ATTEMPTS - 1:
                    raise
                self._clock.sleep(random.uniform(0, 0.05 * 2 ** min(attempt, 6)))  # noqa: S311
            else:
                return


def require_loadable(connection: TargetConnection) -> None:
    """LoadError for a server whose LOAD DATA is no part of a transaction."""
    if connection.dialect is Dialect.TIDB:
        raise LoadError(
            f"target {connection.name} takes no replay: it is a TiDB, where LOAD DATA is no part of a transaction",
            hint='load it with load.mode = "merge"',
            target=connection.name,
        )


def _jobs(groups: Sequence[list[Change]], rows: int) -> Iterator[Job]:
    """Whole groups in order of their first change, so that keys which came together go together."""
    job: Job = []
    size = 0
    for group in groups:
        job.append(group)
        size += len(group)
        if size >= rows:
            yield job
            job, size = [], 0
    if job:
        yield job
