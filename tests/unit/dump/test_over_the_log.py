"""What the log lays over a dump's rows: an exchanged partition, rows without a key, DDL that the history tells late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.dump.survey import survey
from pumphouse.errors import RowRejected
from pumphouse.loader.context import LoadContext
from pumphouse.loader.decode import Decoder
from pumphouse.loader.engine import LocalEngine
from pumphouse.loader.work import base_work
from pumphouse.model.table import MysqlType, TableInfo
from pumphouse.model.tso import Tso
from pumphouse.settings import DumpRule, LoadSettings
from tests.support.dumpedsource import DumpedSource
from tests.support.madearchive import Held, column

pytestmark = pytest.mark.row("A5", "R1")


class Source(DumpedSource):
    """What a restore makes of its dumps."""

    def sizes(self, at: Tso, settings: LoadSettings) -> list[int]:
        """Bytes of each unit of a restore."""
        view = read_view(self.archive)
        base = view.base_for(at)
        assert base is not None
        work = base_work(view, base, "main", settings)
        ranges = Decoder(LoadContext.of(work.numbered(1, {}), view, self.settings)).ranges(work)
        assert bool(ranges) is not bool(work.plan.whole)
        work = work.numbered(1, ranges)
        return [unit.bytes for unit in LocalEngine().prepare(LoadContext.of(work, view, self.settings), work.pieces)]

    def restored(self, at: Tso) -> dict[str, list[dict[str, Any]]]:
        """Rows that a restore puts into each table."""
        view: ArchiveView = read_view(self.archive)
        base = view.base_for(at)
        assert base is not None
        work = base_work(view, base, "main", LoadSettings()).numbered(1, {})
        context = LoadContext.of(work, view, self.settings)
        engine = LocalEngine()
        engine.prepare(context, work.pieces)
        names = {v.table.id: v.table.name for v in view.timeline.tables_at(at)}
        found: dict[str, list[dict[str, Any]]] = {}
        for unit, blobs in engine._units.items():
            for blob in blobs:
                found.setdefault(names[unit.table_id], []).extend(blob.table().to_pylist())
        return found


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def partition(partition_id: int) -> dict[str, Any]:
    name = {"O": "p0", "L": "p0"}
    definition = {"id": partition_id, "name": name, "less_than": ["MAXVALUE"]}
    return {"type": 1, "expr": "`id`", "enable": True, "num": 1, "definitions": [definition]}


@pytest.mark.parametrize("keyed", [True, False])
def test_rows_that_were_exchanged_into_a_table_come_from_its_dump_alone(source: Source, keyed: bool) -> None:
    columns = [column(1, "id", flag=3 if keyed else 0), column(2, "v", MysqlType.VARCHAR)]
    plain = source.create_table("plain", columns, pk_is_handle=keyed)
    source.create_table("pt", columns, pk_is_handle=keyed, partition=partition(900))
    source.genesis(base=False)
    begun = source.cut()
    with source.txn() as t:
        handle = t.insert("plain", id=1, v=b"goes again")
        t.insert("plain", id=2, v=b"stays")
    raw = {**source.tables["pt"].info.raw, "partition": partition(plain)}
    source.ddl(42, plain, "ALTER TABLE pt EXCHANGE PARTITION p0 WITH TABLE plain", TableInfo=raw)
    old, other = source.tables["plain"], {**source.tables["plain"].info.raw, "id": 900}
    source.tables["plain"] = Held(TableInfo.from_dict(other), {}, 0)
    source.tables["pt"] = Held(TableInfo.from_dict(raw), old.rows, old.last_handle)
    with source.txn() as t:
        t.delete("pt", handle)
    low = source.cut()
    at = source.publish(begun, [source.read(name, low, begun) for name in ("pt", "plain")])
    assert source.restored(at) == {"pt": [{"id": 2, "v": b"stays"}]}


@pytest.mark.parametrize(("printed", "equal"), [('{"b":1,"a":2}', False), ('{"a": 2, "b": 1}', True)])
def test_a_row_without_a_key_that_the_log_deletes_is_in_the_dump_or_nothing_is_restored(
    source: Source, printed: str, equal: bool
) -> None:
    source.create_table("k", [column(1, "n"), column(2, "j", MysqlType.JSON)], pk_is_handle=False)
    source.genesis(base=False)
    with source.txn() as t:
        handle = t.insert("k", n=1, j='{"b":1,"a":2}')
    low = source.cut()
    chunk = source.read("k", low, low, [{"n": 1, "j": printed}])
    with source.txn() as t:
        t.delete("k", handle)
    at = source.publish(low, [chunk])
    if equal:
        assert source.restored(at) == {}
    else:
        with pytest.raises(RowRejected, match="archive dump"):
            source.restored(at)


def test_flashback_cluster_spoils_every_table_and_is_no_silent_ddl(source: Source) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis(base=False)
    low = source.cut()
    chunk = source.read("t", low, low)
    source.ddl(62, 0, "FLASHBACK CLUSTER TO TIMESTAMP '2026-01-01'")
    at = source.cut()
    view = read_view(source.archive)
    assert [version.table.name for version in survey(view, low, [chunk], at).missing] == ["t"]
    (event,) = view.timeline.ddls(low, view.end)
    assert not event.silent


def test_a_ddl_whose_job_says_a_later_start_counts_by_its_commit(source: Source, monkeypatch: Any) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis(base=False)
    low = source.cut()
    chunk = source.read("t", low, low)
    source.add_column("t", column(9, "more"))
    source.rewrite_job(lambda raw: raw.update(start_ts=source.ts + (1 << 40)))
    at = source.cut()
    view = read_view(source.archive)
    assert [version.table.name for version in survey(view, low, [chunk], at).missing] == ["t"]


def test_a_table_that_was_born_in_the_log_is_read_when_it_is_asked_for(source: Source) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis(base=False)
    low = source.cut()
    chunk = source.read("t", low, low)
    source.create_table("countries", [column(1, "id", flag=3)])
    at = source.cut()
    view = read_view(source.archive)
    assert survey(view, low, [chunk], at).missing == ()
    found = survey(view, low, [chunk], at, chosen=lambda version: version.table.name == "countries")
    assert [version.table.name for version in found.missing] == ["countries"]


@pytest.mark.parametrize("unit_bytes", [256 << 10, 64 << 10])
def test_a_dump_of_many_pieces_fills_all_units_alike(source: Source, unit_bytes: int) -> None:
    """By the pieces where these are no larger than a unit may be, else by ranges of keys."""
    source.create_table("t", [column(1, "id", flag=3), column(2, "v", MysqlType.BLOB)])
    source.genesis(base=False)
    low = source.cut()
    chunks = [
        source.read("t", low, low, [{"id": 20 * n + at, "v": b"x" * 4000} for at in range(20)], number=n)
        for n in range(72)
    ]
    at = source.publish(low, chunks)
    sizes = source.sizes(at, LoadSettings(unit_bytes=unit_bytes))
    assert len(sizes) >= 20
    assert max(sizes) < 2 * unit_bytes


def test_keys_that_the_log_appends_to_a_large_dump_fill_units_like_its_own(source: Source) -> None:
    source.create_table("t", [column(1, "id", flag=3), column(2, "v", MysqlType.BLOB)])
    source.genesis(base=False)
    low = source.cut()

    def rows(first: int) -> list[dict[str, Any]]:
        return [{"id": first + at, "v": b"x" * 4000} for at in range(20)]

    chunks = [source.read("t", low, low, rows(20 * n), number=n) for n in range(60)]
    for n in range(60, 72):
        with source.txn() as t:
            for row in rows(20 * n):
                t.insert("t", **row)
        source.cut()
    sizes = source.sizes(source.publish(low, chunks), LoadSettings(unit_bytes=256 << 10))
    assert len(sizes) >= 20
    assert max(sizes) < 2 * (256 << 10)


def test_a_dump_that_lacks_a_table_serves_those_who_do_without_it_and_others_begin_before_it(source: Source) -> None:
    for name in ("t", "other"):
        source.create_table(name, [column(1, "id", flag=3)])
        with source.txn() as t:
            t.insert(name, id=1)
    source.genesis(base=False)
    low = source.cut()
    whole = source.publish(low, [source.read(name, low, low) for name in ("t", "other")])
    low = source.cut()
    lacking = source.publish(low, [source.read("other", low, low)], [DumpRule(table="d.t", why="broken")])
    view = read_view(source.archive)
    assert [[each.name for each in base.without] for base in view.bases] == [[], ["d.t"]]

    def begins(without: Callable[[str], bool]) -> Tso:
        base = view.base_for(view.end, without)
        assert base is not None
        return base.ts

    assert begins(lambda _: False) == whole
    assert begins(lambda name: name == "d.t") == lacking
    alone = replace(view, bases=view.bases[1:])
    assert alone.base_for(view.end) is None
    found = alone.lacking(view.end, lambda _: False)
    assert (found is not None and (found.name, found.why)) == ("d.t", "broken")
