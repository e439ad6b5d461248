"""Rows of XA transactions that are prepared, and neither committed nor rolled back yet (rows Q1, Q2).

The source's binlog has them at XA PREPARE, and they count from XA COMMIT on: days later, perhaps. A P of theirs would
hold every window until then. So they lie in files beside the journal, on stable storage before its mark passes the
prepare, and the mark names them. What is not there is read from the source's binlog again: the directory was lost, or
the capture began behind the prepare. Until an XA transaction ends, the source lets nobody change its tables, also
after a restart: the bytes stay right.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import structlog

from pumphouse.capture.journal import Place
from pumphouse.capture.publish import Stopped
from pumphouse.capture.source.gtid import Flavor, GtidSet
from pumphouse.capture.source.model import Group, Position, Transaction, Xa, XaStep
from pumphouse.capture.source.stream import open_stream
from pumphouse.dump.source import execute, session, where
from pumphouse.durable import PRIVATE_DIR, PRIVATE_FILE, make_dirs, write_atomic
from pumphouse.errors import SourcePurged
from pumphouse.settings import SourceSettings

log = structlog.get_logger()

# As mysqlbinlog reads: a session with it is no replica, and takes no other one's place.
_NO_REPLICA = 0


class Prepared:
    """The rows of those that are open. Files that none of ``places`` names are removed.

    Attributes:
        places: by xid, of what is in files.
    """

    def __init__(self, directory: Path, places: Mapping[str, Place]) -> None:
        self.places = dict(places)
        self._folder = directory / "prepared"
        make_dirs(self._folder, PRIVATE_DIR)
        self._fresh: dict[str, tuple[str, bytes]] = {}  # GTID and rows of what is in no file yet
        self._files = {each.name for each in self._folder.iterdir()}
        self.tidy()

    def add(self, xid: str, gtid: str, value: bytes) -> None:
        """It was prepared. One of that name which is open never ended on the source, and is gone there."""
        self.places.pop(xid, None)
        self._fresh[xid] = gtid, value

    def take(self, xid: str) -> bytes | None:
        """It has ended: its rows, None = they are not here. The file stays until `tidy`."""
        place, fresh = self.places.pop(xid, None), self._fresh.pop(xid, None)
        if fresh is not None:
            return fresh[1]
        if place is None:
            return None
        try:
            with (self._folder / place.file).open("rb") as file:
                file.seek(place.at)
                value = file.read(place.size)
        except OSError as error:
            log.warning("prepared_rows_not_read", xid=xid, error=str(error))
            return None
        return value if len(value) == place.size and zlib.crc32(value) == place.crc else None

    def save(self) -> bool:
        """Bring what is new to stable storage, in one file; whether anything was."""
        if not self._fresh:
            return False
        name, at = next(iter(self._fresh.values()))[0], 0
        write_atomic(self._folder / name, b"".join(value for _, value in self._fresh.values()), mode=PRIVATE_FILE)
        self._files.add(name)
        for xid, (_, value) in self._fresh.items():
            self.places[xid] = Place(name, at, len(value), zlib.crc32(value))
            at += len(value)
        self._fresh.clear()
        return True

    def tidy(self) -> None:
        """Remove files of which all have ended, once the journal says so."""
        for name in self._files - {each.file for each in self.places.values()}:
            (self._folder / name).unlink(missing_ok=True)
            self._files.discard(name)


def read_again(
    source: SourceSettings,
    xid: str,
    commit: Transaction,
    rows: Callable[[Group, Transaction], bytes],
    stop: threading.Event,
) -> bytes:
    """The rows of an XA transaction from the binlogs that the source has: of its last prepare before its commit.

    Args:
        source: the server on which the commit was read.
        xid: its name.
        commit: the commit.
        rows: encodes those of a transaction, or of a part of it.
        stop: ends it early.

    Raises:
        Stopped: it was.
        SourcePurged: no binlog has its prepare any more.
        SourceFailed: the source is lost.
    """
    with session(source) as connection:
        names = [str(name) for name, *_ in execute(connection, "SHOW BINARY LOGS")]
    value, wanted = None, Xa(XaStep.PREPARE, xid)
    for name in reversed(names[: names.index(commit.file) + 1] if commit.file in names else ()):
        log.warning("prepared_rows_looked_for", xid=xid, gtid=commit.gtid, source=where(source), file=name)
        steps = [each for _, each in _transactions(source, name, commit, stop) if each.xa and each.xa.xid == xid]
        if steps and steps[-1].xa == wanted:
            parts = (each for each in _transactions(source, name, commit, stop) if each[1].gtid == steps[-1].gtid)
            value = b"".join(rows(*each) for each in parts)
        if steps or stop.is_set():  # where it has ended before, this commit is of another one of that name
            break
    if stop.is_set():  # reading ended in the middle
        raise Stopped
    if value is None:
        raise SourcePurged(
            f"{commit.gtid} commits the XA transaction {xid}, and no binlog that the source {where(source)} has says "
            "which rows it prepared",
            hint="its prepare was in a binlog that is purged by now, or in none",
            position=commit.gtid,
        )
    return value


def _transactions(
    source: SourceSettings, file: str, before: Transaction, stop: threading.Event
) -> Iterator[tuple[Group, Transaction]]:
    """Those of a file, and parts of them, up to one that is there or behind it."""
    start = Position(gtids=GtidSet.parse("", Flavor.MARIADB), file=file, offset=4)
    with open_stream(source, start, section="source", server_id=_NO_REPLICA, stop=stop) as stream:
        for group in stream:
            if not isinstance(group, Group):
                continue
            for each in group.transactions:
                if each.file != file or each.gtid == before.gtid:
                    return
                yield group, each
