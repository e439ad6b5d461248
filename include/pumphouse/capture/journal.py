"""What a capture has decided: groups of transactions, each durable before any of its Cs is sent (row Q2).

    <directory>/journal/<number>.log   records, one a group; the first of each file says what was so far

A record is u32le length, u32le CRC-32 of the body, u32le CRC-32 of these two, and the body: u32le length of the head,
the head as JSON, and of each transaction its start ts and commit ts (u64le columns), the lengths of the keys (u16le
column) and the keys. Start ts and commit ts ascend over the whole journal. One record at a time is under way, so only
the last one of the last file can be torn: its bytes end with the file, or are zeros to the end of it, which no record
has at its end. Anything else that does not read is damage. Files go, oldest first, once no Pump can ask about them.

One thread at a time appends; any thread may look.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import structlog

from pumphouse.durable import PRIVATE_DIR, PRIVATE_FILE, create_exclusive, fsync_dir, make_dirs, write_atomic
from pumphouse.errors import CaptureRefused, CorruptionError
from pumphouse.model.tso import Tso

log = structlog.get_logger()

FORMAT_VERSION = 1
SEGMENT_BYTES = 16 << 20
_FRAME = struct.Struct("<III")
_LENGTH = struct.Struct("<I")


class Place(NamedTuple):
    """Where rows of an XA transaction lie (`pumphouse.capture.prepared`): ``size`` bytes from ``at`` on."""

    file: str
    at: int
    size: int
    crc: int  # CRC-32, zlib's


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a capture is: everything of the source up to ``gtid`` is decided, or concerns no table of ours.

    Attributes:
        gtid: as the source prints it.
        moment: the source's clock at the last of it, seconds since the epoch; it never goes back.
        schema: number of the stored schema (`pumphouse.capture.schemas`) that the next rows belong to.
        transactions: how many were published.
        anew: the history does not say yet that rows between an older mark and this one are unknown.
        server: identity of the server that was read; '' = not known.
        file, offset: the same place in its binlog; '' = not known.
        start_ts, commit_ts: of the last transaction that was decided; a commit ts of 0: none was since the journal
            began, which was at this start ts.
        prepared: XA transactions that are open there, by xid.
    """

    gtid: str
    moment: float
    schema: int
    transactions: int
    anew: bool = False
    server: str = ""
    file: str = ""
    offset: int = 0
    start_ts: int = 0
    commit_ts: int = 0
    prepared: Mapping[str, Place] = field(default_factory=dict)

    @property
    def decided(self) -> int:
        """Start ts of the last transaction that was decided; 0 = none since the journal began."""
        return self.start_ts if self.commit_ts else 0

    def to_dict(self) -> dict[str, Any]:
        """For a record's head."""
        return {
            "gtid": self.gtid,
            "moment": self.moment,
            "schema": self.schema,
            "transactions": self.transactions,
            "anew": self.anew,
            "server": self.server,
            "file": self.file,
            "offset": self.offset,
            "start_ts": self.start_ts,
            "commit_ts": self.commit_ts,
            "prepared": self.prepared,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Mark:
        """Read it."""
        return cls(
            gtid=str(data["gtid"]),
            moment=float(data["moment"]),
            schema=int(data["schema"]),
            transactions=int(data["transactions"]),
            anew=bool(data["anew"]),
            server=str(data["server"]),
            file=str(data["file"]),
            offset=int(data["offset"]),
            start_ts=int(data["start_ts"]),
            commit_ts=int(data["commit_ts"]),
            prepared={xid: Place(*place) for xid, place in data.get("prepared", {}).items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Transactions that are committed, in the source's order; ``jobs``: DDL jobs among them."""

    start_ts: np.ndarray
    commit_ts: np.ndarray
    keys: tuple[bytes, ...]
    jobs: tuple[dict[str, Any], ...] = ()

    def __len__(self) -> int:
        return len(self.keys)


NOTHING = Decisions(start_ts=np.zeros(0, np.uint64), commit_ts=np.zeros(0, np.uint64), keys=())


@dataclass(slots=True)
class _File:
    path: Path
    number: int
    size: int
    after: int  # the last start ts of the files before
    last: int  # the last start ts up to its end
    jobs: list[dict[str, Any]] = field(default_factory=list)


class Journal:
    """The journal of one capture. Open it with `open_journal` or `Journal.begin`, under the directory's lock."""

    def __init__(self, folder: Path, identity: dict[str, Any], files: list[_File], mark: Mark) -> None:
        self._folder = folder
        self._identity = identity
        self._files = files
        self._lock = threading.Lock()
        self._broken = ""
        self.mark = mark
        self._fd = os.open(files[-1].path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    @classmethod
    def begin(cls, directory: Path, identity: dict[str, Any], mark: Mark) -> Journal:
        """A new journal, which answers for nothing up to the mark's last decision; FileExistsError."""
        folder = directory / "journal"
        make_dirs(folder, PRIVATE_DIR)
        file = _new_file(folder, identity, 1, mark, mark.decided)
        return cls(folder, identity, [file], mark)

    def append(self, decided: Decisions, mark: Mark) -> None:
        """Decide: durable on return.

        Raises:
            CaptureRefused: start ts do not ascend: nothing is decided. Or the record was not written: whether it is
                decided is not known, and this journal takes nothing more.
        """
        if self._broken:
            raise CaptureRefused(f"the journal takes nothing more: {self._broken}")
        last_start = self.last_start_ts
        if len(decided) and (
            decided.start_ts[0] <= np.uint64(last_start) or (decided.start_ts[1:] <= decided.start_ts[:-1]).any()
        ):
            raise timestamps_went_back(int(decided.start_ts.min()), last_start)
        try:
            self._rotate()
            self._write(decided, mark)
        except OSError as error:
            self._broken = f"{self._files[-1].path} was not written: {error}"
            raise CaptureRefused(self._broken, hint=_UNSAFE_HINT.format(self._folder / _UNSAFE)) from error

    def _write(self, decided: Decisions, mark: Mark) -> None:
        head = {**mark.to_dict(), "count": len(decided), "jobs": list(decided.jobs)}
        body = _body(head, decided)
        record = _framed(body)
        view = memoryview(record)
        while view:
            view = view[os.write(self._fd, view) :]
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            # The kernel shows the record from now on, and the disk may lack it: a restart would take it for decided.
            with suppress(OSError):
                create_exclusive(self._folder / _UNSAFE, f"{error}\n".encode(), PRIVATE_FILE)
            raise
        with self._lock:
            last = self._files[-1]
            last.size += len(record)
            if len(decided):
                last.last = int(decided.start_ts[-1])
            last.jobs += decided.jobs
            self.mark = mark

    def outcome(self, start_ts: Tso) -> Tso | None:
        """Commit ts of a transaction; None = it is not decided. CaptureRefused where the journal has no word of it.

        Nobody needs to ask then: every Pump had passed it when the journal was cut.
        """
        with self._lock:
            if start_ts <= self._files[0].after:
                raise CaptureRefused(f"the journal begins behind start ts {start_ts}")
            at = bisect_left(self._files, int(start_ts), key=lambda file: file.last)
            file = self._files[at] if at < len(self._files) else None
            size = 0 if file is None else file.size
        if file is None:
            return None
        try:
            data = file.path.read_bytes()[:size]
        except FileNotFoundError:  # dropped in between
            raise CaptureRefused(f"the journal begins behind start ts {start_ts}") from None
        for head, rest in _records(file.path, data, torn=False):
            count = int(head.get("count", 0))
            starts = np.frombuffer(rest, "<u8", count)
            place = int(np.searchsorted(starts, np.uint64(start_ts)))  # of a plain int it would compare floats
            if place < count and int(starts[place]) == start_ts:
                return Tso(int(np.frombuffer(rest, "<u8", count, count * 8)[place]))
        return None

    def jobs(self) -> list[dict[str, Any]]:
        """DDL jobs of what is kept, in order."""
        with self._lock:
            return [job for file in self._files for job in file.jobs]

    @property
    def last_start_ts(self) -> Tso:
        """Of what is decided; 0 = nothing yet."""
        with self._lock:
            return Tso(self._files[-1].last)

    def drop_below(self, ts: int) -> int:
        """Drop files whose transactions are all older than a start ts that no Pump will ask below; how many."""
        gone = 0
        while True:
            with self._lock:
                if len(self._files) < 2 or self._files[0].last >= ts:
                    break
                file = self._files.pop(0)
            file.path.unlink()
            gone += 1
        if gone:
            fsync_dir(self._folder)
        return gone

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _rotate(self) -> None:
        last = self._files[-1]
        if last.size < SEGMENT_BYTES:
            return
        file = _new_file(self._folder, self._identity, last.number + 1, self.mark, last.last)
        os.close(self._fd)
        self._fd = os.open(file.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        with self._lock:
            self._files.append(file)


def has_journal(directory: Path) -> bool:
    """Whether `open_journal` finds one there."""
    return any((directory / "journal").glob("[0-9]*.log"))


def open_journal(directory: Path, identity: dict[str, Any]) -> Journal | None:
    """Open the journal of a directory, without its torn end; None where there is none.

    Raises:
        CaptureRefused: it is another capture's, or a write of it has failed.
        CorruptionError: it is damaged.
    """
    folder = directory / "journal"
    paths = sorted(folder.glob("[0-9]*.log"))
    if not paths:
        return None
    if (folder / _UNSAFE).exists():
        raise CaptureRefused(
            f"the last record of {folder} may be on no disk: {(folder / _UNSAFE).read_text().strip()}",
            hint=_UNSAFE_HINT.format(folder / _UNSAFE),
        )
    files: list[_File] = []
    mark = Mark(gtid="", moment=0.0, schema=0, transactions=0)
    for path in paths:
        number = int(path.stem)
        if files and number != files[-1].number + 1:
            raise CorruptionError(f"{folder} lacks the file before {path.name}", path=str(path), hint=_HINT)
        data = path.read_bytes()
        file = _File(path=path, number=number, size=0, after=0, last=0)
        for head, rest in _records(path, data, torn=path == paths[-1]):
            if file.size == 0:
                _check_head(path, head, identity)
                mark, file.after = Mark.from_dict(head["mark"]), int(head["after"])
                file.last = file.after
            else:
                mark = Mark.from_dict(head)
                file.jobs += head["jobs"]
                if head["count"]:
                    file.last = int(np.frombuffer(rest, "<u8", int(head["count"]))[-1])
            file.size = _end_of(data, file.size)
        if files and file.after != files[-1].last:
            raise CorruptionError(f"{path} does not go on where the file before it ends", path=str(path), hint=_HINT)
        if file.size < len(data):
            log.warning("journal_tail_cut", path=str(path), at=file.size, size=len(data))
        if path == paths[-1]:
            # Also where nothing is cut: what was read may be in the kernel's memory alone.
            write_atomic(path, data[: file.size], mode=PRIVATE_FILE)
        files.append(file)
    return Journal(folder, identity, files, mark)


_UNSAFE = "unsafe"
_UNSAFE_HINT = (
    "look after the disk; once it is sound, remove {} if it is there, and start the capture again: it reads what is "
    "decided, and writes it anew"
)
_HINT = "`pumphouse capture run --anew` begins anew at the source's present position (docs/capture.md)"


def _new_file(folder: Path, identity: dict[str, Any], number: int, mark: Mark, after: int) -> _File:
    head = {"format_version": FORMAT_VERSION, **identity, "mark": mark.to_dict(), "after": after}
    body = _body(head, NOTHING)
    data = _framed(body)
    path = folder / f"{number:016d}.log"
    create_exclusive(path, data, PRIVATE_FILE)
    return _File(path=path, number=number, size=len(data), after=after, last=after)


def _body(head: dict[str, Any], decided: Decisions) -> bytes:
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    lengths = np.fromiter(map(len, decided.keys), "<u2", len(decided.keys))
    return b"".join(
        (
            _LENGTH.pack(len(text)),
            text,
            decided.start_ts.astype("<u8").tobytes(),
            decided.commit_ts.astype("<u8").tobytes(),
            lengths.tobytes(),
            *decided.keys,
        )
    )


def _framed(body: bytes) -> bytes:
    length, crc = len(body), zlib.crc32(body)
    return _FRAME.pack(length, crc, zlib.crc32(_FRAME.pack(length, crc, 0)[:8])) + body


def _records(path: Path, data: bytes, *, torn: bool) -> Iterator[tuple[dict[str, Any], bytes]]:
    """(head, rest) of each record. ``torn``: the last one may lack its end, and is left out then."""
    at = 0
    while at < len(data):
        end = _end_of(data, at)
        body = data[at + _FRAME.size : end]
        if 0 < end <= len(data) and zlib.crc32(body) == _FRAME.unpack_from(data, at)[1]:
            (length,) = _LENGTH.unpack_from(body)
            yield json.loads(body[4 : 4 + length]), body[4 + length :]
            at = end
            continue
        # Only what was never answered may be cut: what ends with the file, or space that was never written.
        unwritten = not any(data[at + _FRAME.size :]) or (end == len(data) and data[-1] == 0)
        if torn and at > 0 and (end > len(data) or unwritten):
            return
        raise CorruptionError(f"{path} is damaged at {at}", path=str(path), offset=at, hint=_HINT)


def _end_of(data: bytes, at: int) -> int:
    """Where the record at a place ends, which may be behind the data; 0 = its length is not what was written."""
    if at + _FRAME.size > len(data):
        return len(data) + 1
    length, _, crc = _FRAME.unpack_from(data, at)
    return at + _FRAME.size + int(length) if zlib.crc32(data[at : at + 8]) == crc else 0


def timestamps_went_back(now: int, last: int) -> CaptureRefused:
    """The error for a cluster that gives timestamps again."""
    return CaptureRefused(
        f"the cluster gives the timestamp {now}, and this capture has decided {last}: its timestamps went back",
        hint="was the cluster's directory, or its etcd, restored from a backup? Let its timestamps pass the last one "
        "before anything writes",
    )


def _check_head(path: Path, head: dict[str, Any], identity: dict[str, Any]) -> None:
    version = head.get("format_version")
    if version != FORMAT_VERSION:
        raise CorruptionError(f"{path} has format_version {version}, this program reads {FORMAT_VERSION}")
    if wrong := {name: head.get(name) for name, value in identity.items() if head.get(name) != value}:
        raise CaptureRefused(
            f"the journal {path} is of another capture: it has {wrong}, this one is {identity}",
            hint="give each capture a directory of its own: capture.directory",
        )
