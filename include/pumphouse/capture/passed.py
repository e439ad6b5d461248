"""Waiting until a capture has passed what its source has, and the source shows it: what a dump rests on (row Q4).

A row that is read now was committed before. Once the capture has passed the position that the source has then, the
transaction's commit ts lies below every timestamp that is taken afterwards. What has a commit ts was in the source's
binlog before: once the source shows all that its binlog has, no row is missing that has one below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from pumphouse.capture.primary import candidates, not_primary
from pumphouse.capture.source.gtid import GtidSet
from pumphouse.capture.source.model import Position
from pumphouse.capture.source.session import hides, position_now
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.dump.source import identity, is_tidb, session, where
from pumphouse.errors import SourceErrant, WindowHeld
from pumphouse.mysql import ServerConnection
from pumphouse.registry.base import CaptureRecord, CaptureState, Cluster
from pumphouse.registry.captures import is_live
from pumphouse.settings import CaptureSettings, ServerSettings, SourceSettings

log = structlog.get_logger()

_ASK_S = 0.2
# One that is being started again, or moved, is waited for.
_ABSENT_S = 60.0
# Nobody waits so long without a word of what for.
_TELL_S = 30.0
_EXECUTED_S = 10.0


def require_goes_on(source: ServerSettings, position: Position, server: str, clock: Clock = SYSTEM_CLOCK) -> str:
    """Look whether a server's binlog goes on from where it was read to; the identity of the server that is there now.

    The server itself compares GTIDs as it is asked for what comes behind them, but a MySQL its own alone. None knows of
    numbers that were given twice, after RESET MASTER or when it was restored from a backup: its binlog then ends before
    the place that was read.

    Raises:
        SourceErrant: it does not have all that was read, or it is the server that was read, and its binlog ends before
            that place; or it is another one, and nothing was read that says where to go on.
        SourceFailed: it does not answer.
    """
    with session(source) as connection:
        now, there = position_now(connection), identity(connection)
        # A MySQL sends a transaction before it counts as executed there; a new primary may have some to carry out.
        until = clock.monotonic() + _EXECUTED_S
        while position.gtids and now.gtids.lacking(position.gtids) and clock.monotonic() < until:
            clock.sleep(_ASK_S)
            now = position_now(connection)
    name, _, number = position.file.rpartition(".")
    name_now, _, number_now = now.file.rpartition(".")
    known = server == there and name == name_now and number.isdigit() and number_now.isdigit()
    if known and (int(number_now), now.offset) < (int(number), position.offset):
        raise SourceErrant(
            f"the binlog of the source {where(source)} ends at {now}, before {position}, up to where it was read: it "
            "was reset, or the server was restored from a backup",
            position=str(position),
        )
    if position.gtids and (lacking := now.gtids.lacking(position.gtids)):
        raise SourceErrant(
            f"{lacking} was read from {'it' if server == there else 'another server'} before, and is not in the binlog "
            f"of {where(source)}, which ends at {now.gtids}: the server is not its heir, or has lost transactions",
            position=str(position),
        )
    if now.gtids and not position.gtids and server not in ("", there):
        raise SourceErrant(
            f"{where(source)} has {now.gtids}, and nothing was read yet from the server that was captured: whether "
            "they are new is not known",
            position=str(position),
        )
    return there


def waiter(
    cluster: Cluster, source: SourceSettings, capture: CaptureSettings, clock: Clock = SYSTEM_CLOCK
) -> Callable[[float | None], None]:
    """What waits until the source shows what its binlog has now, and the capture has passed that.

    It waits for so many seconds, or as long as the capture runs.

    Where nobody captures anything, or the source is a TiDB, it returns at once: the binlogs come from elsewhere.
    ``wait`` raises WindowHeld where captures are registered and none is of this source, where another of
    ``capture.hosts`` may have taken its place, or where it takes longer.
    """
    return _Waiter(cluster, source, capture, clock)


class _Waiter:
    def __init__(self, cluster: Cluster, source: SourceSettings, capture: CaptureSettings, clock: Clock) -> None:
        self._cluster = cluster
        self._source = source
        self._heirs = {where(each) for each in candidates(source, capture)} if capture.hosts else set()
        self._clock = clock

    def __call__(self, within_s: float | None) -> None:
        if not self._cluster.captures():
            return
        until = None if within_s is None else self._clock.monotonic() + within_s
        with session(self._source) as connection:
            if is_tidb(connection):
                return
            self._require_primary(connection)
            server = identity(connection)
            mine = self._captures(server, until)
            hidden = hides(connection)

            def shown() -> GtidSet | None:
                return None if hidden() else position_now(connection).gtids

            for capture_id in mine:
                _wait(self._cluster, capture_id, shown, until, self._clock)
            self._require_primary(connection)  # nor what came while this waited
            if self._of(server) != mine:
                raise _not_captured(self._cluster.captures(), self._source, server)

    def _require_primary(self, connection: ServerConnection) -> None:
        """What its heir has taken since is not in it."""
        if self._heirs and (why := not_primary(connection, self._source)):
            raise WindowHeld(f"a dump reads the source, and {why}", hint="set [source] to the primary", holders=[])

    def _captures(self, server: str, until: float | None) -> list[str]:
        """Those of a server; one that follows a server whose place this one has taken is on its way."""
        absent = self._clock.monotonic() + _ABSENT_S
        while not (mine := self._of(server)):
            captures = self._cluster.captures()
            late = self._clock.monotonic() > (absent if until is None else min(absent, until))
            if late or self._heirs.isdisjoint(each.source for each in captures):
                raise _not_captured(captures, self._source, server)
            self._clock.sleep(_ASK_S)
        return mine

    def _of(self, server: str) -> list[str]:
        here = where(self._source)
        return [each.capture_id for each in self._cluster.captures() if server == each.server or here == each.source]


def _wait(
    cluster: Cluster,
    capture_id: str,
    shown: Callable[[], GtidSet | None],
    until: float | None,
    clock: Clock,
) -> None:
    """``shown``: what the source has, once it shows all that it had; None = not yet."""
    wanted = None
    began = seen = told = clock.monotonic()
    while True:
        record = next((each for each in cluster.captures() if each.capture_id == capture_id), None)
        if record is None:
            raise WindowHeld(
                f"the capture {capture_id} was forgotten before it had passed what the source has",
                hint="`pumphouse capture status` lists the captures",
                holders=[],
            )
        if wanted is None:
            wanted = shown()
        # What a failed one says may be of a binlog that the source has no more.
        if (
            wanted is not None
            and (record.gtid or record.start_ts)  # a source may have no GTID yet
            and record.state is not CaptureState.FAILED
            and GtidSet.parse(record.gtid, wanted.flavor).covers(wanted)
        ):
            return
        now = clock.monotonic()
        if is_live(record, clock.now()):
            seen = now
        if now - seen > _ABSENT_S or (until is not None and now > until):
            raise _held(record, wanted)
        if now - told > _TELL_S:
            told = now
            log.warning("waiting_for_capture", why=_held(record, wanted).message, for_s=round(now - began))
        clock.sleep(_ASK_S)


def _not_captured(captures: Sequence[CaptureRecord], source: ServerSettings, server: str) -> WindowHeld:
    known = ", ".join(f"{each.capture_id} of {each.source} ({each.server})" for each in captures)
    return WindowHeld(
        f"no capture is registered of the source {where(source)} ({server}), and there is {known}: whether its rows "
        "are in the binlogs already is not known",
        hint="set [source] to the server that is captured; `pumphouse capture forget ID` takes a capture that runs no "
        "more out of the cluster",
        holders=[],
    )


def _held(record: CaptureRecord, wanted: GtidSet | None) -> WindowHeld:
    how = "it ended with" if record.state is CaptureState.FAILED else "it is behind"
    why = f"; {how}: {record.reason}" if record.reason else "; it is paused" if record.paused else ""
    way = "`pumphouse capture run` starts it"
    if record.paused:
        way = f"`pumphouse capture resume {record.capture_id}` lets it go on"
    there = "has in its binlog what it does not show yet (semi-sync?)" if wanted is None else f"at {wanted}"
    return WindowHeld(
        f"the capture {record.capture_id} is at {record.gtid}, and the source {there}{why}",
        hint=f"`pumphouse capture status` shows whether it runs; {way}",
        holders=[],
    )
