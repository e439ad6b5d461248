"""DDL jobs at rest by table: what is read of some tables is what the whole history says, and costs what they have."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from pumphouse.archive import schema_parts
from pumphouse.archive.schema_parts import RULES, Part, SchemaParts, all_jobs, extended, jobs_of_tables, read_rows
from pumphouse.errors import BadManifest
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectStore
from pumphouse.objectstore.open import open_store
from pumphouse.schema.actions import Action
from pumphouse.schema.related import is_whole
from pumphouse.schema.timeline import Timeline
from pumphouse.settings import ArchiveSettings
from tests.support.randomhistory import RandomHistory
from tests.support.schemajobs import add, int_col


class Counted:
    """A store that counts what is read and written of each file."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.read: Counter[str] = Counter()
        self.written: Counter[str] = Counter()

    def get(self, key: str) -> bytes:
        data = self._store.get(key)
        self.read[key] += len(data)
        return data

    def put(self, key: str, data: bytes) -> None:
        self.written[key] += len(data)
        self._store.put(key, data)

    def delete(self, key: str) -> None:
        self._store.delete(key)


@pytest.fixture
def store(tmp_path: Path) -> Counted:
    return Counted(open_store(ArchiveSettings(root=f"file://{tmp_path}")))


def document(parts: tuple[Part, ...], history: Timeline) -> SchemaParts:
    return SchemaParts(
        upto=Tso(1), genesis="", window="", rules=RULES, whole=is_whole(history), sequences=(), views=(), parts=parts
    )  # fmt: skip


def _stored(store: Counted, source: RandomHistory, jobs: int, step: int) -> SchemaParts:
    """A history that came in steps."""
    parts: tuple[Part, ...] = ()
    timeline = Timeline.empty()
    for _ in range(0, jobs, step):
        source.run(step)
        timeline = timeline.fold(source.jobs)
        parts = extended(store, parts, timeline)
    return document(parts, timeline)


@pytest.mark.row("S1", "S3")
@pytest.mark.parametrize("seed", range(40))
def test_the_jobs_of_some_tables_are_those_that_the_whole_history_gives(
    store: Counted, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_parts, "_FILE_ROWS", 16)
    source = RandomHistory(seed)
    found = _stored(store, source, 160, step=(5, 40)[seed % 2])
    if seed % 8 == 7:
        source.job(Action.FLASHBACK_CLUSTER, "")
        found = document(extended(store, found.parts, source.timeline()), source.timeline())
    whole = source.timeline()
    assert Timeline.empty().fold(all_jobs(store, found)) == whole
    ids = [*{*whole.versions, *whole.partitions}]
    chosen = random.Random(seed)
    for _ in range(6):
        some = chosen.sample(ids, chosen.randint(1, 4))
        part = Timeline.empty().fold(jobs_of_tables(store, found, some))
        assert part.of_tables(some) == whole.of_tables(some)
        assert {*part.versions} == {*whole.of_tables(some).versions}
        assert part.databases == whole.databases


@pytest.mark.row("S1")
def test_a_job_is_written_again_a_few_times_and_never_all_of_them_for_some(store: Counted) -> None:
    source = RandomHistory(1)
    most, total, parts = 0, 0, ()
    timeline = Timeline.empty()
    for step in range(200):
        source.run(10)
        timeline = timeline.fold(source.jobs[-60:])
        before = sum(store.written.values())
        parts = extended(store, parts, timeline)
        total += sum(part.jobs for part in parts[-1:])
        most = max(most, len(parts))
        if step % 50 == 49:
            # Those that came before lie as they lay, but for what is not much larger than what came.
            assert sum(store.written.values()) - before < sum(store.written.values()) / 4
    jobs = len(timeline.jobs)
    assert sum(part.jobs for part in parts) == jobs
    assert total < 6 * jobs
    assert most <= 10


@pytest.mark.row("S1")
def test_a_plan_over_ten_of_four_thousand_tables_reads_a_small_part_of_their_history(
    store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 jobs of 4,000 tables, in files as small as the history is short."""
    monkeypatch.setattr(schema_parts, "_FILE_ROWS", 256)
    source = RandomHistory(7)
    texts = [int_col(f"c{number}") for number in range(12)]
    names = [f"{source.schema()}.t{number}" for number in range(4000)]
    for name in names:
        source.create(name, [int_col("id", flag=4099), *texts])
    for number in range(16000):
        source.alter(names[number * 7919 % 4000], Action.ADD_COLUMN, lambda t: add(t, int_col(f"n{number}")))  # noqa: B023
    timeline = source.timeline()
    found = document(extended(store, (), timeline), timeline)
    size = sum(file.bytes for part in found.parts for file in part.files)
    # Five jobs of 5 kB a table.
    assert size / len(timeline.jobs) < 400
    store.read.clear()
    wanted = [source.tables[name]["id"] for name in names[:4000:400]]
    part = Timeline.empty().fold(jobs_of_tables(store, found, wanted))
    assert {*part.versions} == {*wanted}
    assert len(part.jobs) < 80
    assert sum(store.read.values()) < size / 5
    # A new job of a table reads and writes little.
    store.read.clear()
    store.written.clear()
    source.alter(names[5], Action.ADD_COLUMN, lambda t: add(t, int_col("last")))
    parts = extended(store, found.parts, timeline.fold(source.jobs[-1:]))
    assert (len(parts), parts[0]) == (2, found.parts[0])
    assert sum(store.read.values()) == 0
    assert sum(store.written.values()) < 20_000


@pytest.mark.row("A4")
def test_a_file_that_is_missing_or_damaged_is_named(store: Counted) -> None:
    found = _stored(store, RandomHistory(3), 20, 20)
    (file,) = found.parts[0].files
    good = store.get(file.key)
    store.put(file.key, good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    with pytest.raises(BadManifest, match="is damaged"):
        list(read_rows(store, found.parts[0]))
    store.delete(file.key)
    with pytest.raises(BadManifest, match="is missing"):
        jobs_of_tables(store, found, [5])
    assert SchemaParts.from_json(found.key, found.to_json()).parts == found.parts
