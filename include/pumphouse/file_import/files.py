"""Binlog files of a directory or a bucket: which there are, and their frames, a block of bytes at a time.

Names, order and framing are the Drainer's (docs/formats.md, "Files for Reparo"). Whatever does not fit is refused with
the file and the byte. A Reparo takes a file that ends amid a frame for the end of all; here somebody says that it is.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import NoReturn

import numpy as np

from pumphouse.archive.losses import Losses, together
from pumphouse.codec.jit import Bytes, Ints, frozen
from pumphouse.errors import BadRecord, ImportRefused, StoreError, TornTail, UsageError
from pumphouse.export.pbfiles import FILES, NOTES, Note
from pumphouse.file_import import kernels
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore

_READ_BYTES = 8 << 20
_FRAMES = 1 << 16
_REMEMBERED = 1 << 20  # frames, at least: a Drainer that was killed repeats those of some seconds
_NAME = re.compile(r"binlog-(\d{1,16})[^-]*(?:-([^-]+)(?:-([^-]+))?)?")
_PACKED = re.compile(r"\.(?:tar|gz|tgz|zst|bz2|xz|lz4)\b")


@dataclass(frozen=True, slots=True)
class File:
    """One file. ``index``: the number in its name."""

    name: str
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class Block:
    """Some frames of one file, in its order; of a large one it alone.

    Attributes:
        file: Their file.
        offset: Where ``data`` begins in it.
        data: Bytes.
        starts, lengths: Of each payload, in ``data``.
        commit_ts: Of each.
        ddl: Which ones are DDLs.
    """

    file: File
    offset: int
    data: Bytes
    starts: Ints
    lengths: Ints
    commit_ts: Ints
    ddl: np.ndarray

    def place(self, frame: int) -> str:
        """Where a frame is, for people."""
        return f"{self.file.name}, byte {self.offset + int(self.starts[frame]) - kernels.HEAD_BYTES}"

    def payload(self, frame: int) -> memoryview:
        """Bytes of a frame."""
        begin = int(self.starts[frame])
        return self.data[begin : begin + int(self.lengths[frame])].data

    def marks(self) -> Ints:
        """Commit ts, length and checksum of each, a row a frame."""
        sums = self.data[(self.starts + self.lengths)[:, None] + np.arange(kernels.TAIL_BYTES)]
        return np.stack([self.commit_ts, self.lengths, sums.view("<u4")[:, 0].astype(np.int64)], axis=1)

    def take(self, kept: np.ndarray) -> Block:
        """Those of a mask."""
        return replace(
            self, starts=self.starts[kept], lengths=self.lengths[kept], commit_ts=self.commit_ts[kept],
            ddl=self.ddl[kept],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of one place, in order, and the notes beside them, where our export wrote them.

    Attributes:
        store: Of the place.
        files: In order.
        notes: Of each file; () = a Drainer wrote them.
    """

    store: ObjectStore
    files: tuple[File, ...]
    notes: tuple[Note, ...]

    @classmethod
    def of(cls, store: ObjectStore) -> Source:
        """Look at the names.

        Raises:
            UsageError: there are no files, or those of several Drainers.
            ImportRefused: some are missing or compressed, or are not those that the notes name.
        """
        found, packed = [], []
        for each in store.list(FILES):
            named = _NAME.fullmatch(each.key)
            if _PACKED.search(each.key):
                packed.append(each.key)
            elif named is not None and not each.key.endswith((".lock", "checkpoint")):
                found.append(File(each.key, int(named[1]), each.size))
        if packed:
            raise ImportRefused(
                f"{packed[0]} is compressed{f', and {len(packed) - 1} others' if packed[1:] else ''}",
                hint="unpack them beside each other under their names up to the time: binlog-NUMBER-TIME",
                place=packed[0],
            )
        if not found:
            inside = [name for name in store.folders() if _has_files(store, name)]
            raise UsageError(
                f"there are no binlog files in {store.url}",
                hint=f"{', '.join(inside)} have some: each is a Drainer's, give one of them" if inside else
                "the files are called binlog-NUMBER-TIME; give the folder that they lie in",
            )  # fmt: skip
        for before, file in pairwise(found):
            if file.index == before.index:
                raise UsageError(
                    f"{store.url} has two files of number {file.index}: {before.name} and {file.name}",
                    hint="they are of several Drainers, or of a Drainer that began anew: give each a folder of its own",
                )
            if file.index != before.index + 1:
                raise ImportRefused(
                    f"{store.url} lacks the files {before.index + 1} to {file.index - 1}, before {file.name}",
                    hint="put them back; or import the files behind them by themselves, with the schema that was there "
                    "then (--schema FILE)",
                    place=file.name,
                )
        return cls(store=store, files=tuple(found), notes=_notes(store, found))

    @property
    def begins(self) -> bool:
        """Whether the first file is the first that its Drainer wrote."""
        return self.files[0].index == 0

    def losses(self, after: Tso, upto: Tso) -> Losses:
        """What the archive that was exported lacked of (after, upto], as the notes say."""
        some = [each.losses for each in self.notes if each.to_ts > after and each.from_ts < upto]
        return reduce(together, some, Losses()).above(after, upto)

    def blocks(self, most: int) -> Iterator[Block]:
        """All frames, each held against its checksum, once each.

        A Drainer that was killed goes on behind its checkpoint, and so writes again what it had written behind that.

        Args:
            most: bytes of the largest transaction that is taken.

        Raises:
            BadRecord, TornTail: bytes are not what was written.
            ImportRefused: a transaction is larger, or older than one before it and not that one again; or a file is not
                the one that its note names. Nothing of it was given then.
        """
        before = _Before()
        for file in self.files:
            self._require_noted(file)
            for block in self._of(file, most):
                fresh = before.fresh(block)
                if len(fresh.starts):
                    yield fresh

    def last(self, most: int) -> int:
        """The highest commit ts; the files end with a whole frame then. 0 = there is none. As `blocks`."""
        # The very last may have nothing, or nothing but what its Drainer wrote again.
        some = [file for file in self.files if file.size][-2:]
        return max((int(block.commit_ts.max()) for file in some for block in self._of(file, most)), default=0)

    def _require_noted(self, file: File) -> None:
        """Read a file that has a note, before any of its frames can come into a window."""
        note = next((each for each in self.notes if each.name == file.name), None)
        if note is None:
            return
        digest = hashlib.sha256()
        for offset in range(0, file.size, _READ_BYTES):
            digest.update(self.store.get_range(file.name, offset, min(_READ_BYTES, file.size - offset)))
        if digest.hexdigest() != note.digest:
            raise ImportRefused(
                f"{file.name} is not the file that {note.key} names: its bytes have another digest",
                hint="copy the whole folder again; is it another export's?",
                place=file.name,
            )

    def _of(self, file: File, most: int) -> Iterator[Block]:
        starts, lengths, commits, kinds = (np.empty(_FRAMES, np.int64) for _ in range(4))
        found = np.zeros(kernels.S_FIELDS, np.int64)
        offset, want = 0, _READ_BYTES
        while offset < file.size:
            # What is written behind the size that the list tells of is not this run's.
            raw = self.store.get_range(file.name, offset, min(want, file.size - offset))
            data = frozen(np.frombuffer(raw, np.uint8))
            kernels.scan(data, 0, len(data), most, starts, lengths, commits, kinds, found)
            count, behind, why, size = map(int, found)
            if count:
                yield Block(
                    file, offset, data, starts[:count].copy(), lengths[:count].copy(), commits[:count].copy(),
                    kinds[:count] == kernels.DDL,
                )  # fmt: skip
                offset, want = offset + behind, _READ_BYTES
            elif why != kernels.MORE:
                self._refuse(file, offset, why, size, most)
            elif len(data) < want:
                self._torn(file, offset, size)
            else:
                want = max(size, want + kernels.HEAD_BYTES)

    def _torn(self, file: File, offset: int, size: int) -> NoReturn:
        place = f"{file.name}, byte {offset}"
        last = file == self.files[-1]
        raise TornTail(
            f"{place}: a frame of {size or 'some'} bytes begins, and the file ends {file.size - offset} bytes behind",
            hint="its Drainer writes it now: run the import again when it stands still. Or it was killed there: "
            f"truncate -s {offset} {file.name}"
            if last
            else "the file was cut off, or copied while it was written: copy it again",
            path=file.name, offset=offset, reason="torn",
        )  # fmt: skip

    @staticmethod
    def _refuse(file: File, offset: int, why: int, size: int, most: int) -> NoReturn:
        place = f"{file.name}, byte {offset}"
        if why == kernels.TOO_LARGE and offset + size <= file.size:
            raise ImportRefused(
                f"{place}: a transaction of {size:,} bytes is larger than the {most:,} that are taken",
                hint="--transaction-mib N takes it; an import needs about four times that much memory",
                place=place,
            )
        what = {
            kernels.BAD_MAGIC: "no frame begins here",
            kernels.TOO_LARGE: f"a frame of {size:,} bytes",
            kernels.BAD_CRC: "the checksum of a frame is wrong",
            kernels.BAD_PAYLOAD: "a frame is no transaction and no DDL of a Drainer",
        }[why]
        raise BadRecord(
            f"{place}: {what}",
            hint="the file is damaged: copy it again from where it was written. What stands before it is in the "
            "archive; nothing behind it can be told",
            path=file.name, offset=offset, reason="damaged",
        )  # fmt: skip


class _Before:
    """The frames that came last, so that those that come again are known."""

    def __init__(self) -> None:
        self._last = 0
        self._marks: deque[Ints] = deque()

    def fresh(self, block: Block) -> Block:
        """Without the frames that were there before; ImportRefused where one is older and was not."""
        commits = block.commit_ts
        if (np.diff(commits, prepend=self._last) <= 0).any():
            block = self._without_repeated(block)
            commits = block.commit_ts
        if len(commits):
            self._last = int(commits[-1])
            self._marks.append(block.marks())
            while sum(map(len, self._marks)) - len(self._marks[0]) >= _REMEMBERED:
                self._marks.popleft()
        return block

    def _without_repeated(self, block: Block) -> Block:
        marks, last, first = block.marks(), self._last, int(block.commit_ts.min())
        known = {tuple(mark) for some in self._marks for mark in some[some[:, 0] >= first].tolist()}
        kept = np.ones(len(marks), np.bool_)
        for at, mark in enumerate(map(tuple, marks.tolist())):
            if mark[0] <= last and mark in known:
                kept[at] = False
                continue
            if mark[0] < last:
                raise ImportRefused(
                    f"{block.place(at)}: {show(mark[0])} comes after {show(last)}, and is not what came at that time "
                    "before",
                    hint="files are in commit order, but for what a Drainer that was killed writes again: these are "
                    "not those of one Drainer, or it began anew there. Import those from there on by themselves",
                    place=block.place(at),
                )
            last = mark[0]
            known.add(mark)
        return block.take(kept)


def _has_files(store: ObjectStore, folder: str) -> bool:
    """Whether a folder has binlog files; False for one that cannot be read."""
    try:
        return any(True for _ in store.list(f"{folder}/{FILES}"))
    except StoreError:
        return False


def _notes(store: ObjectStore, files: list[File]) -> tuple[Note, ...]:
    notes = [Note.from_json(each.key, store.get(each.key)) for each in store.list(NOTES)]
    if not notes:
        return ()
    there = {each.name: each.size for each in files}
    for at, note in enumerate(notes):
        if note.number != at or note.origin != notes[0].origin or (at and note.from_ts != notes[at - 1].to_ts):
            raise ImportRefused(
                f"{store.url} lacks the note of file {at}, or has one of another export",
                hint="copy the whole folder again, or export again into an empty one",
                place=note.key,
            )
        if there.pop(note.name, None) != note.size:
            raise ImportRefused(
                f"{store.url} lacks {note.name} of {note.size:,} bytes, which {note.key} names",
                hint="copy it again; or run the export again, which writes what is missing",
                place=note.name,
            )
    if there:
        raise ImportRefused(
            f"{store.url} has {min(there)}, and no note of the export names it",
            hint="an export is under way there, or the file is another one's: each has a folder of its own",
            place=min(there),
        )
    return tuple(notes)
