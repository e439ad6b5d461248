"""Binlog files at their destination, and the notes beside them (docs/formats.md, "Files for Reparo").

A note appears by a conditional put before its file, and says which range the file holds and which bytes it has. Who
finds another note under its number ends; who was killed between the two makes the file again, to the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from pumphouse.archive.document import dump, parse
from pumphouse.archive.losses import Losses
from pumphouse.codec.crc import crc32c_of
from pumphouse.codec.jit import Bytes
from pumphouse.errors import BadManifest, ManifestConflict, ObjectExists, StoreError, UsageError
from pumphouse.export import pbkernels as kernels
from pumphouse.export.encode import Frames, Piece
from pumphouse.export.pbframes import framed, large_head
from pumphouse.model import strict
from pumphouse.model.tso import Tso, show, to_datetime
from pumphouse.objectstore.base import ObjectStore

KIND = "pb file"
NOTES, FILES = "pumphouse/", "binlog-"
# As the Drainer's: a file ends with the transaction that makes it so large.
FILE_BYTES = 512 << 20
_REMEDY = "export into an empty directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a directory of files is of; it is of nothing else.

    Args:
        cluster_id: of the archive.
        archive_id: of the archive.
        tables: ``--table`` of the export; () = all.
    """

    cluster_id: int
    archive_id: str
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What one file holds: of ``origin`` everything with ``from_ts < commit ts <= to_ts``.

    Args:
        origin: of the directory.
        number: index of the file, from 0.
        name: the file.
        digest: SHA-256 of its bytes.
        size: how many they are.
        from_ts: exclusive.
        to_ts: inclusive.
        transactions: in it, of those with row changes of the tables.
        changes: row changes in it.
        ddls: in it.
        table_ids: the tables that ``tables`` of the origin meant when it was written; () where it names none.
        losses: what the archive was known to lack of the range when it was written.
    """

    origin: Origin
    number: int
    name: str
    digest: str
    size: int
    from_ts: Tso
    to_ts: Tso
    transactions: int
    changes: int
    ddls: int
    table_ids: tuple[int, ...] = ()
    losses: Losses = field(default_factory=Losses)

    @property
    def key(self) -> str:
        """Where it stands."""
        return f"{NOTES}{self.number:016d}.json"

    def to_json(self) -> bytes:
        """The document."""
        fields = asdict(self)
        del fields["losses"]
        if self.losses:  # notes of earlier releases have none
            fields["losses"] = self.losses.to_dict()
        return dump(KIND, {**fields.pop("origin"), **fields, "from_ts": int(self.from_ts), "to_ts": int(self.to_ts)})

    @classmethod
    def from_json(cls, key: str, data: bytes) -> Note:
        """Read it; BadManifest."""
        note = parse(key, data, KIND, _note, remedy=_REMEDY)
        if note.key != key:
            raise BadManifest(
                f"{key} is the note of file {note.number}", hint=_REMEDY, path=key, offset=0, reason="name"
            )
        return note


def _note(data: dict[str, Any]) -> Note:
    counts = {each: strict.integer(data[each]) for each in ("number", "size", "transactions", "changes", "ddls")}
    return Note(
        origin=Origin(
            cluster_id=strict.integer(data["cluster_id"], high=strict.MAX_UINT64),
            archive_id=strict.text(data["archive_id"]),
            tables=tuple(map(strict.text, data["tables"])),
        ),
        name=strict.text(data["name"]),
        digest=strict.text(data["digest"]),
        from_ts=Tso(strict.integer(data["from_ts"])),
        to_ts=Tso(strict.integer(data["to_ts"])),
        table_ids=tuple(map(strict.integer, data["table_ids"])),
        losses=Losses.from_dict(data["losses"]) if "losses" in data else Losses(),
        **counts,
    )


def read_notes(store: ObjectStore, origin: Origin) -> list[Note]:
    """The notes of a destination, in order, each going on where the one before it ends.

    Raises:
        UsageError: it holds files of something else.
        BadManifest: a note is damaged or missing.
    """
    notes = [Note.from_json(each.key, store.get(each.key)) for each in store.list(NOTES)]
    if not notes and any(True for _ in store.list(FILES)):
        raise UsageError(f"{store.url} holds binlog files that no export of ours wrote", hint=_REMEDY)
    for at, note in enumerate(notes):
        if note.origin != origin:
            of = f"archive {note.origin.archive_id}, {', '.join(note.origin.tables) or 'all tables'}"
            raise UsageError(f"{store.url} holds another export ({of})", hint=_REMEDY)
        if note.number != at or (at and note.from_ts != notes[at - 1].to_ts):
            raise BadManifest(
                f"{store.url} lacks the note of file {at}", hint=_REMEDY, path=note.key, offset=0, reason="missing"
            )
    return notes


def file_name(number: int, commit_ts: int) -> str:
    """Name of a file: its index, and when its first transaction was committed, in UTC."""
    return f"{FILES}{number:016d}-{to_datetime(commit_ts):%Y%m%d%H%M%S}"


class PbFiles:
    """Writes frames into files of a destination, which appear there whole.

    Args:
        store: the destination.
        origin: of the export.
        table_ids: of the tables; () = all.
        number: index of the first file.
        after: what it holds begins behind this.
        folder: for the file that is being written.
        file_bytes: from so many on a file ends.
        told: told of each note when its file is there.
        lost: what the archive lacks of a range.
    """

    def __init__(
        self,
        store: ObjectStore,
        origin: Origin,
        table_ids: tuple[int, ...],
        number: int,
        after: Tso,
        folder: Path,
        file_bytes: int,
        told: Callable[[Note], None],
        lost: Callable[[Tso, Tso], Losses] = lambda *_: Losses(),
    ) -> None:
        self._store, self._origin, self._folder, self._file_bytes, self._told = store, origin, folder, file_bytes, told
        self._table_ids, self._number, self._after, self._lost = table_ids, number, after, lost
        self._file: _File | None = None

    def add(self, part: Frames | Piece) -> None:
        """Write what the encoder gives, in its order."""
        if isinstance(part, Piece):
            self._of(part.commit_ts).piece(part)
            return
        at, count = 0, len(part.ends)
        while at < count:
            file = self._of(int(part.commit_ts[at]))
            begin = int(part.ends[at - 1]) if at else 0
            full = max(at, int(np.searchsorted(part.ends, begin + self._file_bytes - file.size))) + 1
            # Nothing is cut between two that have one commit ts: a later run begins behind it.
            same = np.searchsorted(part.commit_ts, part.commit_ts[min(full, count) - 1], "right")
            stop = min(max(full, int(same)), count)
            file.frames(part, at, stop, begin)
            at = stop

    def ddl(self, commit_ts: Tso, payload: bytes) -> None:
        """Write a DDL."""
        self._of(commit_ts).ddl(commit_ts, framed(payload))

    def finish(self, upto: Tso) -> None:
        """End the last file: everything up to ``upto`` was written."""
        if self._file is not None:
            self._end(self._file, upto)

    def close(self) -> None:
        """Let go of what is not finished."""
        if self._file is not None:
            self._file.close()

    def _of(self, commit_ts: int) -> _File:
        """The file for a frame."""
        file = self._file
        if file is not None and file.size >= self._file_bytes and commit_ts != file.last:
            self._end(file, Tso(file.last))
        if self._file is None:
            self._file = _File(self._folder / "binlog", commit_ts)
        return self._file

    def _end(self, file: _File, upto: Tso) -> None:
        self._file = None
        digest = file.finished()
        note = Note(
            origin=self._origin, number=self._number, name=file_name(self._number, file.first), digest=digest,
            size=file.size, from_ts=self._after, to_ts=upto, transactions=file.transactions, changes=file.changes,
            ddls=file.ddls, table_ids=self._table_ids, losses=self._lost(self._after, upto),
        )  # fmt: skip
        # The note first: the file's name is no other run's from here on, whatever that run reads up to.
        self._claim(note)
        self._store.put_file(note.name, file.path, move=True)
        file.path.unlink(missing_ok=True)
        self._number, self._after = self._number + 1, upto
        self._told(note)

    def _claim(self, note: Note) -> None:
        try:
            self._store.put_if_absent(note.key, note.to_json())
        except ObjectExists as error:
            # A file that is made again keeps its note, whatever else the archive was found to lack since.
            there = replace(Note.from_json(note.key, self._store.get(note.key)), losses=note.losses)
            if replace(there, digest="", size=0) == replace(note, digest="", size=0) and there != note:
                raise StoreError(
                    f"file {note.number} of {self._store.url} would get other bytes than its note says: the archive "
                    "or the release differs",
                    hint=_REMEDY,
                    key=note.key,
                ) from error
            if there != note:
                raise ManifestConflict(
                    f"another export wrote file {note.number} of {self._store.url}, up to {show(there.to_ts)}",
                    hint="run this one again: it goes on behind it",
                    key=note.key,
                ) from error


class _File:
    """A file that is being written. A transaction that comes in pieces is open until something else comes."""

    def __init__(self, path: Path, first: int) -> None:
        self.path, self.first, self.last = path, first, first
        self.size = self.transactions = self.changes = self.ddls = 0
        self._file: IO[bytes] = path.open("wb")
        self._open: tuple[int, int] | None = None
        self._begin = self._crc = 0

    def frames(self, part: Frames, at: int, stop: int, begin: int) -> None:
        self._end_large()
        self._write(part.data[begin : int(part.ends[stop - 1])])
        self.last = int(part.commit_ts[stop - 1])
        self.transactions += stop - at
        self.changes += int(part.changes[at:stop].sum())

    def ddl(self, commit_ts: int, frame: bytes) -> None:
        self._end_large()
        self._write(np.frombuffer(frame, np.uint8))
        self.last = commit_ts
        self.ddls += 1

    def piece(self, part: Piece) -> None:
        if self._open != (part.commit_ts, part.start_ts):
            self._end_large()
            self._open, self._begin, self._crc = (part.commit_ts, part.start_ts), self.size, 0
            self._write(np.concatenate([kernels.MAGIC, np.zeros(8, np.uint8)]))  # its length is not known yet
            self._summed(np.frombuffer(large_head(part.commit_ts), np.uint8))
            self.last = part.commit_ts
            self.transactions += 1
        self._summed(part.data)
        self.changes += part.changes

    def finished(self) -> str:
        """End it; the digest of its bytes."""
        self._end_large()
        self._file.close()
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def close(self) -> None:
        self._file.close()

    def _end_large(self) -> None:
        if self._open is None:
            return
        self._open = None
        length = self.size - self._begin - kernels.HEAD_BYTES
        self._write(np.frombuffer(self._crc.to_bytes(kernels.TAIL_BYTES, "little"), np.uint8))
        self._file.seek(self._begin + len(kernels.MAGIC))
        self._file.write(length.to_bytes(8, "little"))
        self._file.seek(0, 2)

    def _summed(self, data: Bytes) -> None:
        self._crc = int(crc32c_of(data, 0, len(data), self._crc))
        self._write(data)

    def _write(self, data: Bytes) -> None:
        self._file.write(data.data)
        self.size += len(data)
