"""An archive that has grown old: dumps, DDL and windows, in memory, so that each call of its store can be made to fail.

Fixtures: ``made`` of a module; ``store`` and ``archive`` of a test, a copy of it in memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.archive import Archive
from pumphouse.archive.schema_store import rebuild
from pumphouse.archive.verify import verify
from pumphouse.archive.view import read_view
from pumphouse.loader.work import SegmentPart
from pumphouse.model.tso import Tso
from pumphouse.restore.plan import RestorePlan, plan_restore
from pumphouse.settings import LoadSettings
from tests.support.dumpedsource import DumpedSource
from tests.support.madearchive import Churn, column
from tests.support.memorystore import MemoryStore

Rows = dict[str, Counter[tuple[Any, ...]]]


@dataclass
class Aged:
    """A source and the moments that somebody may want: rows of every table as they were then."""

    source: DumpedSource
    moments: list[tuple[Tso, Rows]] = field(default_factory=list)
    dumps: list[Tso] = field(default_factory=list)

    def in_memory(self) -> tuple[MemoryStore, Archive]:
        """A copy of the archive as it is now, whose objects are all old."""
        store, disk = MemoryStore(), self.source.archive.store
        for each in disk.list(""):
            store.objects[f"{self.source.cluster_id}/{each.key}"] = disk.get(each.key)
        store.put_s = dict.fromkeys(store.objects, 0.0)
        return store, Archive(store, self.source.cluster_id)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Aged:
    return aged(tmp_path_factory.mktemp("aged"))


@pytest.fixture
def copied(made: Aged) -> tuple[MemoryStore, Archive]:
    return made.in_memory()


@pytest.fixture
def store(copied: tuple[MemoryStore, Archive]) -> MemoryStore:
    return copied[0]


@pytest.fixture
def archive(copied: tuple[MemoryStore, Archive]) -> Archive:
    return copied[1]


def fresh(archive: Archive) -> Archive:
    """Another process's."""
    return Archive(archive.store._store, archive.cluster_id)


def kept_moments(archive: Archive, made: Aged) -> list[Tso]:
    base = archive.range().base
    return [at for at, _ in made.moments if base is None or at >= base.ts]


def aged(root: Path, *, rounds: int = 3) -> Aged:
    """`grown` in a directory."""
    return grown(DumpedSource(root), rounds=rounds)


def grown(source: DumpedSource, *, rounds: int = 3, work: int = 4) -> Aged:
    """Genesis with a dump, then in each round: work, DDL, two windows, a stored schema, a dump that the log goes into."""
    churn = Churn(source)
    churn.fill()
    made = Aged(source)
    made.dumps.append(source.genesis())

    def note() -> None:
        made.moments.append((Tso(source.tick()), source.snapshot()))

    note()
    for number in range(rounds):
        churn.work(work)
        source.add_column("t", column(10 + number, f"extra{number}", default="7", origin_default="7"))
        churn.work(work)
        note()
        source.cut()
        rebuild(source.archive)
        source.create_table(f"new{number}", [column(1, "id", flag=3)])
        with source.txn() as txn:
            txn.insert(f"new{number}", id=number)
        churn.work(work)
        low = source.cut()
        read = [source.read(name, low, low) for name in sorted(source.tables)]
        churn.work(1)  # the log over the dump
        made.dumps.append(source.publish(low, read))
        note()
    churn.work(work)
    note()
    source.cut()
    note_end = made.moments.pop()  # the last moment is the end of a window
    made.moments.append((Tso(min(note_end[0], source.archive.end())), note_end[1]))
    return made


def plan_of(archive: Archive, at: Tso) -> RestorePlan:
    """What a restore to a moment does."""
    return plan_restore(read_view(archive, upto=at), at, task="main", settings=LoadSettings())


def pieces_of(plan: RestorePlan) -> list[SegmentPart]:
    """What it reads."""
    return [piece for work in plan.works for piece in work.pieces]


def require_restorable(archive: Archive, moments: list[Tso]) -> None:
    """Every moment has a plan, every object that it reads is there, and the whole archive is sound."""
    for at in moments:
        for piece in pieces_of(plan_of(archive, at)):
            assert archive.store.size(piece.segment.key) == piece.segment.bytes
    report = verify(archive)
    assert report.problems == []
