"""Damaged stretches of the value log: finding them, and accepting them by name. The value log stays as it is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pump_service.store import frame, identity, logfiles, recovery
from pump_service.store.fs import REAL_FS, FileSystem, LogHandle
from pump_service.store.gc_rules import GcState
from pump_service.store.index import Index
from pump_service.store.laid import behind_zeros
from pump_service.store.logfile import file_name, parse_name
from pump_service.store.scan import FileScan
from pump_service.store.skips import FILE_NAME, Stretch, load_skipped
from pump_service.store.summary import FileSummary
from pumphouse.errors import ConfigError, UsageError
from pumphouse.model.tso import Tso

Tick = Callable[[int, int], None]  # files done, files

# -- looking -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One stretch that does not read."""

    file: str
    start: int
    stop: int
    reason: str
    accepted: bool = False

    @property
    def name(self) -> str:
        """As `pump accept-damage` takes it."""
        return f"{self.file}:{self.start}-{self.stop}"


@dataclass(slots=True, kw_only=True)
class Report:
    """What a look at a data directory found."""

    files: int = 0
    records: int = 0
    bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what the next start takes care of by itself
    problems: list[str] = field(default_factory=list)  # beside damages: missing files, wrong footers
    running: bool = False  # a Pump has it: its newest file was left out

    @property
    def sound(self) -> bool:
        """Whether everything reads that is not accepted as damaged."""
        return not self.problems and all(damage.accepted for damage in self.damages)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"sound": self.sound}


def verify(data_dir: Path, *, fs: FileSystem = REAL_FS, tick: Tick = lambda _done, _total: None) -> Report:
    """Read every record of a value log and check it; nothing is changed.

    Beside a running Pump, everything but its newest file is read. Raises ConfigError where there is no value log.
    """
    directory = data_dir / "value"
    if not directory.is_dir():
        raise ConfigError(
            f"there is no value log in {data_dir}", hint="give the data directory of a Pump", path=str(data_dir)
        )
    report = Report()
    with locked(data_dir, wait=False) as mine:
        report.running = not mine
        skipped = load_skipped(fs, data_dir / "pumphouse")
        taken_over = identity.load(fs, data_dir / "pumphouse")
        fids = logfiles.ids(fs, directory)
        gaps_upto = fids[-1] if taken_over is None and fids else taken_over.taken_over_fid if taken_over else -1
        for first, last in logfiles.gaps(fids, gaps_upto):
            report.problems.append(f"{file_name(first)} to {file_name(last)} are missing between others")
        for number, fid in enumerate(fids):
            if report.running and fid == fids[-1]:
                report.notes.append(f"{file_name(fid)} is being written and was left out")
                continue
            _look(fs, directory, fid, skipped.get(fid, ()), report, last=fid == fids[-1])
            tick(number + 1, len(fids))
    return report


def _look(fs: FileSystem, directory: Path, fid: int, skipped: Sequence[Stretch], report: Report, *, last: bool) -> None:
    name = file_name(fid)
    handle = fs.open_log(directory / name, read_only=True)
    try:
        size = handle.size()
        summary = FileSummary(fid)
        at = 0
        while True:
            scan = FileScan(handle, fid, at, size)
            for block in scan:
                summary.add(block)
            if not scan.problem:
                break
            at = _behind(handle, name, scan, skipped, summary, report, last=last)
            if at >= size:
                break
        report.files += 1
        report.records += summary.records
        report.bytes += size
    finally:
        handle.close()


def _behind(
    handle: LogHandle, name: str, scan: FileScan, skipped: Sequence[Stretch], summary: FileSummary, report: Report,
    *, last: bool,
) -> int:  # fmt: skip
    """Note what does not read at the end of a scan; where reading goes on."""
    size = whole = handle.size()
    for stretch in skipped:
        if stretch.start == scan.end:
            report.damages.append(
                Damage(file=name, start=scan.end, stop=stretch.stop, reason=scan.problem, accepted=True)
            )
            return min(stretch.stop, whole)
    if (going_on := behind_zeros(handle, scan.end, whole)) is not None:
        zeros = going_on - scan.end
        report.notes.append(f"{name}: {zeros} bytes of zeros at {scan.end}, behind which another program went on")
        return going_on
    if last:
        size = recovery.written_end(handle, scan.end, size)
        if size == scan.end:
            report.notes.append(f"{name}: {whole - size} bytes of zeros laid ahead, which the next start gives back")
            return whole
    if size - scan.end == frame.FOOTER_BYTES:
        max_ts = frame.decode_footer(handle.read_at(scan.end, frame.FOOTER_BYTES))
        if max_ts is not None:
            if max_ts < summary.max_ts:
                report.problems.append(f"{name}: its footer says {max_ts}, it holds {summary.max_ts}")
            return whole
    follower = recovery.next_good_record(handle, scan.end + 1, whole)
    stop = whole if follower is None else follower
    if follower is None and last and recovery.is_torn(handle, scan.end, size):
        report.notes.append(f"{name}: a torn tail of {size - scan.end} bytes at {scan.end}, which the next start cuts")
        return whole
    report.damages.append(Damage(file=name, start=scan.end, stop=stop, reason=scan.problem))
    return stop


# -- accepting ---------------------------------------------------------------------------------------------------------


def accept(
    data_dir: Path, names: Sequence[str], *, reason: str, who: str, at: float, fs: FileSystem = REAL_FS
) -> list[Damage]:
    """Record that stretches ("000003.vlog:4096-8192") are given up. The Pump must be stopped.

    What was in them may have been answered: the Pump takes a new incarnation, so that the archive declares a gap, and
    its index is built again without them. Raises UsageError unless each is a stretch that `verify` shows.
    """
    if not reason.strip():
        raise UsageError("giving up damaged bytes needs a reason", hint="--reason")
    report = verify(data_dir, fs=fs)
    with locked(data_dir, wait=False) as mine:
        if not mine:
            raise ConfigError(f"a Pump has {data_dir}", hint="stop it first", path=str(data_dir))
        found = {damage.name: damage for damage in report.damages if not damage.accepted}
        unknown = sorted(set(names) - set(found))
        if unknown:
            known = ", ".join(found) or "nothing"
            raise UsageError(f"{', '.join(unknown)}: no such damaged stretch", hint=f"`pump verify` shows {known}")
        own = data_dir / "pumphouse"
        fs.make_dirs(own)
        _give_up_index(fs, data_dir, own)
        # The record comes last: until it is there the damage is refused as before.
        for name in names:
            damage = found[name]
            line = {
                "fid": parse_name(damage.file), "start": damage.start, "stop": damage.stop,
                "reason": reason, "who": who, "at": at,
            }  # fmt: skip
            fs.append_line(own / FILE_NAME, json.dumps(line).encode() + b"\n")
    return [found[name] for name in names]


def _give_up_index(fs: FileSystem, data_dir: Path, own: Path) -> None:
    """A new incarnation, and no index; of a Go Pump's index its GC point is kept."""
    known = identity.load(fs, own)
    if known is not None:
        identity.save(fs, own, identity.renewed(known))
    state = GcState(fs, own)
    state.load()
    index = Index.open(data_dir / "kv")
    try:
        floor = max(index.positions().gc_ts, state.gc_point)
        state.save(Tso(floor), Tso(max(state.deletion_limit, floor)), state.judged_end)
        index.reset()
    finally:
        index.close()


@contextlib.contextmanager
def locked(data_dir: Path, *, wait: bool) -> Iterator[bool]:
    """The lock that a running Pump holds; False when one does."""
    fd = os.open(data_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            mine = True
        except OSError:
            mine = False
        yield mine
    finally:
        os.close(fd)
