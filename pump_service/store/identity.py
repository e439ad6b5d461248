"""Who this Pump is: incarnation and start count, in <data_dir>/pumphouse/incarnation.json (contract).

The incarnation is a random id made with the data directory. The same node id with another incarnation is a gap that
the archive must be told about, so a store that may have lost answered binlogs takes a new one.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from pump_service.store.fs import FileSystem
from pumphouse.errors import CorruptionError
from pumphouse.model import strict
from pumphouse.model.position import Pointer

log = structlog.get_logger(__name__)

FILE_NAME = "incarnation.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Content of incarnation.json."""

    format_version: int = 1
    incarnation: str
    start_count: int
    boot_id: str
    clean: bool  # the last process closed the store
    sync_log: bool  # the last process synced before it answered
    end_fid: int = 0  # end of the value log at the last clean close, or when a start that was not finished read it
    end_offset: int = 0
    taken_over_fid: int = -1  # last value-log file of a Go Pump: up to it, its GC may have left gaps

    @property
    def end(self) -> Pointer:
        """What the value log reached at least: at the last clean close, or in a start that was not finished."""
        return Pointer(self.end_fid, self.end_offset)


def boot_id() -> str:
    """Changes with every boot of the machine; '' where there is none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def load(fs: FileSystem, directory: Path) -> Identity | None:
    """Read the identity; None on a new directory."""
    path = directory / FILE_NAME
    if not fs.exists(path):
        return None
    try:
        data = strict.loads(fs.read(path))
        if data["format_version"] != 1:
            raise CorruptionError(f"{path} has format {data['format_version']}, this release reads 1", path=str(path))
        return Identity(**data)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{path} cannot be read: {error}", path=str(path), reason=str(error)) from error


def save(fs: FileSystem, directory: Path, identity: Identity) -> None:
    """Write the identity, durably."""
    fs.write_atomic(directory / FILE_NAME, json.dumps(asdict(identity), indent=1).encode() + b"\n")


def machine_went_down(previous: Identity | None) -> bool:
    """Whether the machine stopped under a running process: of what was not synced, any part may be gone."""
    if previous is None or previous.clean:
        return False
    boot = boot_id()
    return not boot or previous.boot_id != boot


def new_incarnation() -> str:
    """A random id."""
    return secrets.token_hex(16)


def renewed(identity: Identity) -> Identity:
    """Another incarnation of the same directory: what was answered may be missing from here on."""
    return replace(identity, incarnation=new_incarnation(), clean=False, end_fid=0, end_offset=0)


def begin(previous: Identity | None, *, sync_log: bool, lost: str, last_fid: int = -1) -> Identity:
    """Identity of the process that starts now. ``lost`` says why answered binlogs may be missing; '' = they are not.

    ``last_fid``: last value-log file that is there.
    """
    boot = boot_id()
    if previous is None:
        return Identity(
            incarnation=new_incarnation(), start_count=1, boot_id=boot, clean=False, sync_log=sync_log,
            taken_over_fid=last_fid,
        )  # fmt: skip
    if not lost and not previous.sync_log and machine_went_down(previous):
        lost = "the machine went down during a run without fsync"
    incarnation = previous.incarnation
    if lost:
        incarnation = new_incarnation()
        log.error("incarnation_renewed", reason=lost, before=previous.incarnation, now=incarnation)
    return replace(
        previous, incarnation=incarnation, start_count=previous.start_count + 1, boot_id=boot, clean=False,
        sync_log=sync_log, end_fid=0, end_offset=0,
    )  # fmt: skip
