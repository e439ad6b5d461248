"""What a load or a restore reads of a damaged archive it refuses, on a real MariaDB; mended, it goes on by itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from pumphouse.archive.layout import DDL
from pumphouse.archive.schema_parts import SchemaParts
from pumphouse.archive.schema_store import rebuild
from pumphouse.archive.view import read_view
from pumphouse.errors import ConfigError, CorruptionError, ObjectNotFound
from pumphouse.loader.target import TargetConnection
from pumphouse.objectstore.file import FileStore
from pumphouse.runs import load
from pumphouse.settings import Settings
from tests.support.loading import restored
from tests.support.madearchive import Churn, MadeSource, column, target_rows


def fill(source: MadeSource, *, stored: bool) -> None:
    """A dump and two windows with DDL; with or without the schema at rest."""
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(2)
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    source.cut()
    if stored:
        rebuild(source.archive)
    churn.work(2)
    source.truncate("k")
    churn.work(1)
    source.cut()
    if stored:
        rebuild(source.archive)


def objects(source: MadeSource, *, read: bool) -> dict[str, bytes]:
    """Every object, or those that a load reads: DDL jobs are in the schema at rest, where there is one."""
    store = source.archive.store
    documents = [each.key for each in store.list("schema/parts/")]
    keys = [each.key for each in store.list("")]
    if read and documents:
        newest = SchemaParts.from_json(documents[-1], store.get(documents[-1]))
        named = {documents[-1], *(file.key for part in newest.parts for file in part.files)}
        keys = [key for key in keys if not key.startswith(DDL) and (key in named or not key.startswith("schema/"))]
    return {key: store.get(key) for key in keys}


def fresh(source: MadeSource) -> MadeSource:
    """The same archive, nothing remembered of it."""
    source.archive = type(source.archive)(FileStore(source.root), source.cluster_id)
    return source


Run = Callable[[], object]


def runs(settings: Settings) -> list[Run]:
    return [
        lambda: load.run(settings),
        lambda: restored(settings, dry_run=False),
    ]


def forget(target: TargetConnection) -> None:
    for name in ("d", "pumphouse"):
        target.execute(f"DROP DATABASE IF EXISTS {name}")


@pytest.mark.row("A4", "R1")
@pytest.mark.parametrize("stored", [True, False])
def test_a_changed_or_missing_object_is_refused_by_load_and_restore_and_mended_they_go_on(
    source: MadeSource, settings: Settings, target: TargetConnection, stored: bool
) -> None:
    fill(source, stored=stored)
    store = source.archive.store
    newest_schema = max((each.key for each in store.list("schema/parts/")), default="")
    for key, good in objects(source, read=True).items():
        at = len(good) * 2 // 3
        for run in runs(settings):
            for bad in (None, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]):
                store.delete(key) if bad is None else store.put(key, bad)
                if bad is None and key == newest_schema:
                    run()  # derived, and so derived again
                    assert target_rows(target) == source.snapshot()
                else:
                    with pytest.raises((CorruptionError, ConfigError, ObjectNotFound)):
                        run()
            store.put(key, good)
            run()
            assert target_rows(target) == source.snapshot(), key
            forget(target)


@pytest.mark.row("A4", "R1")
def test_two_objects_that_were_swapped_are_refused_by_load_and_restore(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    fill(source, stored=True)
    store = source.archive.store
    found = objects(source, read=True)
    for one, other in combinations(found, 2):
        store.put(one, found[other])
        store.put(other, found[one])
        for run in runs(settings):
            with pytest.raises(CorruptionError):
                run()
            forget(target)
        store.put(one, found[one])
        store.put(other, found[other])
    load.run(settings)
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("A4", "S1")
@pytest.mark.parametrize("part", range(2))
def test_every_byte_of_what_a_run_sees_is_held_against_a_digest(tmp_path: Path, part: int) -> None:
    source = MadeSource(tmp_path / "archive")
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    source.cut(pumps=1)
    rebuild(source.archive)
    store = source.archive.store
    seen = {key: data for key, data in objects(source, read=True).items() if not key.endswith(".parquet")}
    assert {key.partition("/")[0] for key in seen} == {"genesis.json", "HEAD", "windows", "schema"}
    for key, good in seen.items():
        for at in range(part, len(good), 2):
            store.put(key, good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
            with pytest.raises(CorruptionError):
                read_view(fresh(source).archive)
        store.put(key, good)
