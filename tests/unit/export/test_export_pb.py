"""`archive export --format pb`, by its door: what the files hold, and what a run finds that an earlier one left."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pumphouse.archive.expire import Ages, expire
from pumphouse.archive.losses import Losses
from pumphouse.archive.manifest import AcceptedCommit, Declaration
from pumphouse.archive.parts import split_payload
from pumphouse.archive.retention import Policy
from pumphouse.cli import cli
from pumphouse.codec.datum import read_datum
from pumphouse.codec.payload import PrewriteValueBuilder
from pumphouse.codec.row import encode_delete, encode_insert, encode_update
from pumphouse.errors import (
    BadManifest,
    BinlogError,
    ColumnMismatch,
    ManifestConflict,
    MissingColumn,
    StoreError,
    UnknownDdl,
    UnknownTable,
    UsageError,
)
from pumphouse.export import encode
from pumphouse.export.encode import Encoder
from pumphouse.export.pbfiles import Note, Origin, PbFiles, read_notes
from pumphouse.export.pbframes import PbFrames
from pumphouse.export.run import ExportReport, export_pb
from pumphouse.export.transactions import merged
from pumphouse.model.table import MysqlType, TableInfo
from pumphouse.model.tso import Tso
from pumphouse.objectstore.file import FileStore
from tests.support import pbmessages
from tests.support.agedarchive import aged
from tests.support.madearchive import Churn, MadeSource, column, index, written_as

pytestmark = pytest.mark.row("A6")


@pytest.fixture
def source(tmp_path: Path) -> MadeSource:
    return MadeSource(tmp_path / "archive")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def export(source: MadeSource, out: Path, since: Tso | None = None, **how: Any) -> ExportReport:
    return export_pb(source.archive, FileStore(out), since=since, **{"upto": None, **how})


def files(out: Path) -> dict[str, bytes]:
    """Every object of a destination."""
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def replayed(binlogs: list[Any]) -> dict[str, Counter[tuple[Any, ...]]]:
    """What is in each table when the row changes were made one after the other; an old image must be there."""
    tables: dict[str, Counter[tuple[Any, ...]]] = defaultdict(Counter)
    for binlog in binlogs:
        for event in binlog.dml_data.events:
            rows = [
                tuple(read_datum(value, 0)[0].value for value in side.values()) for side in pbmessages.values_of(event)
            ]
            for gone in rows[:1] if event.tp else ():
                assert tables[event.table_name][gone] > 0, event
                tables[event.table_name] -= Counter([gone])
            for come in rows[-1:] if event.tp < 2 else ():
                tables[event.table_name][come] += 1
    return dict(tables)


def churned(source: MadeSource, windows: int = 3) -> Tso:
    """A history without DDLs, of three tables and two Pumps; where it begins."""
    churn = Churn(source, seed=7)
    since = source.genesis()
    churn.fill()
    for _ in range(windows):
        churn.work(20)
        source.cut()
    return since


def test_the_files_hold_every_change_in_commit_order_over_all_pumps(source: MadeSource, out: Path) -> None:
    since = churned(source)
    report = export(source, out, since)
    binlogs = pbmessages.binlogs(out)
    stamps = [each.commit_ts for each in binlogs]
    assert stamps == sorted(stamps)
    assert len(set(stamps)) == len(stamps)
    wanted = {name: rows for name, rows in source.snapshot().items() if rows}
    assert {name: rows for name, rows in replayed(binlogs).items() if rows} == wanted
    (note,) = report.notes
    assert note.changes == sum(len(each.dml_data.events) for each in binlogs)
    assert note.transactions == len(binlogs)
    assert (note.from_ts, note.to_ts) == (since, source.archive.end())


def test_a_ddl_stands_between_the_transactions_before_it_and_behind_it(source: MadeSource, out: Path) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    since, order = source.genesis(), []
    for number in range(5):
        with source.txn() as t:
            t.insert("t", id=number)
        order.append(0)
        if number in (1, 2):
            source.add_column("t", column(10 + number, f"c{number}", origin_default="7"))
            order.append(1)
    source.rename_table("t", "u")
    source.cut()
    export(source, out, since)
    found = pbmessages.binlogs(out)
    assert [each.tp for each in found] == [*order, 1]
    assert [len(each.row) for binlog in found for each in binlog.dml_data.events] == [1, 1, 2, 3, 3]
    assert found[-1].ddl_query == b"use `d`; ALTER TABLE `t`;"


def test_a_file_ends_with_the_transaction_that_fills_it_and_the_next_goes_on(source: MadeSource, out: Path) -> None:
    since = churned(source)
    export(source, out / "one", since)
    report = export(source, out / "many", since, file_bytes=2000)
    assert len(report.notes) > 3
    assert all(note.size >= 2000 for note in report.notes[:-1])
    assert [note.number for note in report.notes] == list(range(len(report.notes)))
    assert report.notes[0].name.startswith("binlog-0000000000000000-2026")
    whole = next(iter((out / "one").glob("binlog-*"))).read_bytes()
    assert b"".join(path.read_bytes() for path in sorted((out / "many").glob("binlog-*"))) == whole
    for before, after in zip(report.notes, report.notes[1:], strict=False):
        last = list(pbmessages.payloads((out / "many" / before.name).read_bytes()))[-1]
        size = before.size - len(last) - 16
        assert size < 2000, "a file that was full went on"
        assert after.from_ts == before.to_ts == pbmessages.Binlog.FromString(last).commit_ts


def test_a_later_export_goes_on_where_the_files_end(source: MadeSource, out: Path) -> None:
    since = churned(source, windows=1)
    export(source, out, since)
    assert export(source, out).notes == ()
    with source.txn() as t:
        t.insert("t", id=900_000, name=b"later", n=1)
    end = source.cut()
    (note,) = export(source, out).notes
    assert (note.number, note.transactions, note.to_ts) == (1, 1, end)
    with pytest.raises(UsageError, match="begin at"):
        export(source, out, Tso(since + 5))
    assert export(source, out, since).notes == ()


class Killed(Exception):
    """The run ends there."""


class KillingStore(FileStore):
    """Ends at the nth call that changes something: before it, or when it is done."""

    def __init__(self, root: Path, calls: int, *, after: bool) -> None:
        super().__init__(root)
        self.calls, self.after = calls, after

    def _count(self) -> None:
        self.calls -= 1
        if not self.calls:
            raise Killed

    def put_if_absent(self, key: str, data: bytes) -> None:
        if not self.after:
            self._count()
        super().put_if_absent(key, data)
        if self.after:
            self._count()

    def put_file(self, key: str, path: Path, *, move: bool = False, seldom: bool = False) -> None:
        if not self.after:
            self._count()
        super().put_file(key, path, move=move)
        if self.after:
            self._count()


@pytest.mark.parametrize("after", [False, True])
def test_an_export_that_is_killed_anywhere_ends_as_one_that_is_not(source: MadeSource, out: Path, after: bool) -> None:
    since = churned(source)
    export(source, out / "whole", since, file_bytes=4000)
    wanted = files(out / "whole")
    assert len(wanted) > 6
    for calls in range(1, len(wanted) + 1):
        at = out / f"{after}{calls}"
        with pytest.raises(Killed):
            export_pb(source.archive, KillingStore(at, calls, after=after), since=since, upto=None, file_bytes=4000)
        export(source, at, since, file_bytes=4000)
        assert files(at) == wanted, calls


def test_a_file_that_is_missing_or_cut_is_made_again(source: MadeSource, out: Path) -> None:
    since = churned(source)
    report = export(source, out, since, file_bytes=4000)
    wanted = files(out)
    (out / report.notes[1].name).unlink()
    with (out / report.notes[-1].name).open("rb+") as file:
        file.truncate(100)
    again = export(source, out)
    assert [note.number for note in again.notes] == [1, report.notes[-1].number]
    assert files(out) == wanted


def test_of_two_exports_at_once_one_ends_by_name_and_the_files_are_whole(source: MadeSource, out: Path) -> None:
    since = churned(source)
    middle = source.archive.windows()[1].end

    class Late(FileStore):
        """Another export, to a later moment, is done before this one puts anything."""

        def put_if_absent(self, key: str, data: bytes) -> None:
            if not list(out.glob("binlog-*")):
                export(source, out, since)
            super().put_if_absent(key, data)

    with pytest.raises(ManifestConflict, match="another export wrote file 0"):
        export_pb(source.archive, Late(out), since=since, upto=middle)
    export(source, out / "whole", since)
    assert {name: data for name, data in files(out).items() if "whole" not in name} == files(out / "whole")
    assert export(source, out, upto=middle).notes == ()


def test_only_the_tables_that_are_named(source: MadeSource, out: Path) -> None:
    since = churned(source)
    source.add_column("k", column(9, "z"))
    source.add_column("t", column(9, "z"))
    source.cut()
    report = export(source, out, since, tables=["d.T"])
    found = pbmessages.binlogs(out)
    assert {event.table_name for each in found for event in each.dml_data.events} == {"t"}
    assert [each.ddl_query for each in found if each.tp] == [b"use `d`; ALTER TABLE `t`;"]
    assert all(each.tp or each.dml_data.events for each in found)
    assert sum(note.transactions for note in report.notes) == sum(not each.tp for each in found)
    with pytest.raises(UsageError, match="another export"):
        export(source, out)


def test_rows_of_a_partition_are_its_tables(source: MadeSource, out: Path) -> None:
    parts = {"type": 1, "expr": "`id`", "enable": True, "definitions": [{"id": 901, "name": {"O": "p", "L": "p"}}]}
    source.create_table("p", [column(1, "id", flag=3)], partition=parts)
    since = source.genesis()
    with source.txn() as t:
        t.insert("p", id=1)
    source.cut()
    export(source, out, since, tables=["d.p"])
    (binlog,) = pbmessages.binlogs(out)
    assert [event.table_name for event in binlog.dml_data.events] == ["p"]


@pytest.mark.parametrize("file_bytes", [1 << 20, 500])
def test_a_large_transaction_is_one_frame_whose_pieces_a_reader_joins(
    source: MadeSource, out: Path, monkeypatch: pytest.MonkeyPatch, file_bytes: int
) -> None:
    source.create_table("t", [column(1, "id", flag=3), column(2, "v", MysqlType.VARCHAR)])
    since, rng = source.genesis(), random.Random(1)
    for txn in range(4):
        with source.txn() as t:
            for row in range(200 if txn in (1, 2) else 1):
                t.insert("t", id=1000 * txn + row, v=rng.randbytes(rng.randint(0, 50)))
    source.cut()
    export(source, out / "whole", since)
    monkeypatch.setattr(encode, "WHOLE_BYTES", 1000)  # in place of transactions of many MiB
    report = export(source, out / "pieces", since, file_bytes=file_bytes)
    assert pbmessages.binlogs(out / "pieces") == pbmessages.binlogs(out / "whole")
    assert sum(note.changes for note in report.notes) == 402
    assert sum(note.transactions for note in report.notes) == 4
    assert (len(report.notes) > 1) is (file_bytes == 500)
    size = sum(note.size for note in report.notes)
    assert size > next(iter((out / "whole").glob("binlog-*"))).stat().st_size  # it did come in pieces


def test_the_parts_of_a_transaction_are_one_frame_also_over_batches(source: MadeSource, tmp_path: Path) -> None:
    source.create_table("t", [column(1, "id", flag=3), column(2, "v", MysqlType.VARCHAR)])
    source.genesis()
    for txn in range(2):
        with source.txn() as t:
            for row in range(100):
                t.insert("t", id=1000 * txn + row, v=b"x" * 20)
    timeline = source.timeline()

    def written(batches: list[pa.RecordBatch], to: Path) -> list[Any]:
        store = FileStore(to)
        made = PbFiles(store, Origin(cluster_id=1, archive_id="a"), (), 0, Tso(0), tmp_path, 1 << 20, lambda _: None)
        encoder = Encoder(timeline, None, PbFrames())
        for batch in batches:
            for part in encoder.encode(batch):
                made.add(part)
        made.finish(Tso(source.ts))
        return pbmessages.binlogs(to)

    def batch(event: Any, parts: list[bytes], of: int, first: int = 0) -> pa.RecordBatch:
        count = len(parts)
        return pa.RecordBatch.from_pydict(
            {
                "commit_ts": pa.array([event.commit_ts] * count, pa.int64()),
                "start_ts": pa.array([event.start_ts] * count, pa.int64()),
                "part": pa.array(range(first, first + count), pa.int32()),
                "parts": pa.array([of] * count, pa.int32()),
                "payload": pa.array(parts, pa.large_binary()),
            }
        )

    whole = written([batch(each, [each.payload], 1) for each in source.events], tmp_path / "whole")
    cut = []
    for each in source.events:
        parts = split_payload(each.payload, 1000)
        assert len(parts) > 3
        cut += [batch(each, parts[:2], len(parts)), batch(each, parts[2:], len(parts), 2)]
    assert written(cut, tmp_path / "cut") == whole
    assert len(whole) == 2


def test_streams_of_pumps_are_merged_whatever_their_batches(source: MadeSource) -> None:
    rng = random.Random(5)

    def batches(stamps: list[int]) -> Iterator[pa.RecordBatch]:
        while stamps:
            count = rng.randint(1, 4)
            some, stamps = stamps[:count], stamps[count:]
            yield pa.RecordBatch.from_pydict(
                {"commit_ts": some, "start_ts": [ts - 1 for ts in some], "part": [0] * len(some)}
            )

    for _ in range(200):
        streams: list[list[int]] = [[] for _ in range(rng.randint(1, 4))]
        for ts in range(rng.randint(0, 30)):
            rng.choice(streams).append(ts)
        found = [ts for each in merged(map(batches, streams)) for ts in each.column("commit_ts").to_pylist()]
        assert found == sorted(ts for some in streams for ts in some)


def test_what_reparo_refuses_is_written_and_named(source: MadeSource, out: Path) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    since = source.genesis()
    held = source.tables["t"]
    source.drop_table("t")
    source.recover_table("t", held)
    source.cut()
    report = export(source, out, since)
    assert [each.action for each in report.refused] == ["RECOVER_TABLE"]
    assert [each.ddl_query for each in pbmessages.binlogs(out)] == [
        b"use `d`; DROP TABLE `t`;",
        b"use `d`; FLASHBACK TABLE `t`;",
    ]
    assert report.to_dict()["refused_by_reparo"][0]["text"] == "use `d`; FLASHBACK TABLE `t`;"


def test_a_statement_that_drops_several_tables_drops_the_wanted_ones_alone(
    source: MadeSource, out: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        source.create_table(name, [column(1, "id", flag=3)])
    since = source.genesis()
    for name in ("a", "b"):  # a job for each, with the text of both
        info = source.tables.pop(name).info
        source.ddl(4, info.id, "DROP TABLE `a`, `b`", TableInfo=info.raw)
    source.cut()
    export(source, out, since)  # all of them: as the Drainer writes it
    assert [each.ddl_query for each in pbmessages.binlogs(out)] == [b"use `d`; DROP TABLE `a`, `b`;"] * 2
    export(source, tmp_path / "b alone", since, tables=["d.b"])
    assert [each.ddl_query for each in pbmessages.binlogs(tmp_path / "b alone")] == [
        b"use `d`; DROP TABLE IF EXISTS `d`.`b`;"
    ]


def test_a_database_that_is_dropped_drops_the_wanted_tables_alone(
    source: MadeSource, out: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        source.create_table(name, [column(1, "id", flag=3)])
    since = source.genesis()
    source.ddl(2, 0, "DROP DATABASE d")
    source.cut()
    export(source, out, since)
    assert [each.ddl_query for each in pbmessages.binlogs(out)] == [b"use `d`; DROP DATABASE d;"]
    export(source, tmp_path / "b alone", since, tables=["d.b"])
    assert [each.ddl_query for each in pbmessages.binlogs(tmp_path / "b alone")] == [
        b"use `d`; DROP TABLE IF EXISTS `d`.`b`;"
    ]


def test_tables_that_were_made_together_are_made_as_wanted(source: MadeSource, out: Path) -> None:
    since = source.genesis()
    infos = [{**source_info(source, name), "id": 700 + at} for at, name in enumerate(("a", "b"))]
    source.ddl(60, 0, "CREATE TABLE IF NOT EXISTS a …", MultipleTableInfos=infos)
    source.cut()
    export(source, out, since, tables=["d.b"])
    (found,) = pbmessages.binlogs(out)
    assert b"CREATE TABLE `d`.`b`" in found.ddl_query


def test_tables_that_were_made_together_are_statements_of_their_own(source: MadeSource, out: Path) -> None:
    since = source.genesis()
    infos = [{**source_info(source, name), "id": 700 + at} for at, name in enumerate(("a", "b"))]
    source.ddl(60, 0, "CREATE TABLE IF NOT EXISTS a …", MultipleTableInfos=infos)
    source.cut()
    export(source, out, since)
    found = [each.ddl_query.decode() for each in pbmessages.binlogs(out)]
    assert [text.split("(")[0].strip() for text in found] == [
        "use `d`; CREATE TABLE `d`.`a`",
        "use `d`; CREATE TABLE `d`.`b`",
    ]
    assert all(text.endswith(";") for text in found)


def source_info(source: MadeSource, name: str) -> dict[str, Any]:
    from tests.support.madearchive import table_info

    del source
    return table_info(1, name, [column(1, "id", flag=3)])


def test_a_table_that_goes_to_another_database_is_named_in_full(source: MadeSource, out: Path) -> None:
    """Its text may lack the database that the session was in, and no other text says which that was."""
    source.create_table("t", [column(1, "id", flag=3)])
    source.create_database("e")
    since = source.genesis()
    raw = source.tables["t"].info.raw
    source.ddl(14, source.tables["t"].info.id, "RENAME TABLE t TO e.t", TableInfo=raw)
    source.rewrite_job(lambda job: job.update(schema_id=9, schema_name="e"))
    source.cut()
    export(source, out, since)
    (binlog,) = pbmessages.binlogs(out)
    assert b"`d`.`t`" in binlog.ddl_query
    assert b"`e`.`t`" in binlog.ddl_query


def test_nothing_is_exported_past_a_ddl_that_nobody_knows(source: MadeSource, out: Path) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    since = source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    before = source.ts
    source.ddl(
        250, source.tables["t"].info.id, "ALTER TABLE t DO WHAT NOBODY KNOWS", TableInfo=source.tables["t"].info.raw
    )
    source.cut()
    with pytest.raises(UnknownDdl) as failed:
        export(source, out, since)
    assert "--to" in str(failed.value.hint)
    assert files(out) == {}
    export(source, out, since, upto=Tso(before))
    assert len(pbmessages.binlogs(out)) == 1


def test_rows_that_a_table_came_with_refuse_its_own_export_alone(source: MadeSource, out: Path) -> None:
    since = source.genesis()
    source.create_table("t", [column(1, "id", flag=3)])
    source.create_table("x", [column(1, "id", flag=3)])
    source.rewrite_job(lambda raw: raw.update(had_rows=True))
    with source.txn() as t:
        t.insert("t", id=1)
    source.cut()
    for tables in ([], ["d.x"]):
        with pytest.raises(UnknownDdl, match=r"d\.x had rows"):
            export(source, out, since, tables=tables)
    export(source, out, since, tables=["d.t"])
    assert [each.tp for each in pbmessages.binlogs(out)] == [1, 0]


def test_rows_of_a_table_that_no_ddl_names_are_left_out_by_a_rule_alone(source: MadeSource, out: Path) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    since = source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
        t.builder.insert(4711, encode_insert(source.tables["t"].info, {1: 2}, handle=2))
    source.cut()
    for tables in ([], ["d.t"]):
        with pytest.raises(UnknownTable, match="4711") as failed:
            export(source, out, since, tables=tables)
    rule = '[[load.rules]]\ndo = "skip"\ntable = "4711"\nwhy = "'
    assert rule in str(failed.value.hint)
    config = out.with_name("pumphouse.toml")
    config.write_text(f'[archive]\nroot = "{source.settings.root}"\n{rule}a stranger"\n')
    words = ["--config", str(config), "archive", "export", "--format", "pb", "--from", str(int(since))]
    CliRunner(catch_exceptions=False).invoke(cli, [*words, str(out / "all")])
    CliRunner(catch_exceptions=False).invoke(cli, [*words, str(out / "one"), "--table", "d.t"])
    for name in ("all", "one"):
        (binlog,) = pbmessages.binlogs(out / name)
        assert [event.table_name for event in binlog.dml_data.events] == ["t"]


def test_an_old_image_without_the_column_that_tells_the_row_is_refused_by_name(source: MadeSource, out: Path) -> None:
    """A table without a key, written to by a server that has begun to drop a column of it."""
    source.create_table("k", [column(1, "a"), column(2, "b")], pk_is_handle=False)
    since = source.genesis()
    with source.txn() as t:
        handle = t.insert("k", a=1, b=2)
    whole = source.tables["k"].info
    columns = [c for c in whole.columns if c.name != "b"]
    source.tables["k"].info = dataclasses.replace(whole, columns=tuple(columns))
    with source.txn() as t:
        t.delete("k", handle)
    source.cut()
    with pytest.raises(MissingColumn, match=r"d\.k, the transaction at .* column b is missing") as failed:
        export(source, out, since)
    assert "leave d.k out" in str(failed.value.hint)
    assert not list(out.glob("binlog-*"))


def test_a_destination_that_holds_something_else_is_left_alone(source: MadeSource, out: Path) -> None:
    since = churned(source, windows=1)
    out.mkdir()
    (out / "binlog-0000000000000000-20260101000000").write_bytes(b"a Drainer's")
    with pytest.raises(UsageError, match="no export of ours"):
        export(source, out, since)
    assert len(files(out)) == 1


@pytest.mark.row("A5")
def test_an_export_from_before_what_is_kept_names_a_moment_that_it_can_begin_at(tmp_path: Path, out: Path) -> None:
    source = aged(tmp_path / "aged").source
    genesis, gone_on = source.archive.genesis().ts, out / "gone_on"
    export(source, gone_on, genesis, upto=Tso(source.archive.end() - 1))
    expire(source.archive, Ages(), Policy(bases=1), (), now=source.archive.end(), who="me@here")
    with pytest.raises(UsageError, match=r"on, and .* is before that; .* expired at .* by me@here") as refused:
        export(source, out, genesis)
    begin = str(refused.value.hint).removeprefix("--from ")
    assert Tso(int(begin)) > genesis
    export(source, out, Tso(int(begin)))
    assert files(out)
    with pytest.raises(UsageError, match="is kept from") as refused:
        export(source, gone_on)  # its files begin before that: the next ones go on where they end
    assert refused.value.hint == f"go on in another directory: --from {int(source.archive.end()) - 1}"


def test_a_range_that_the_archive_has_not_is_refused(source: MadeSource, out: Path) -> None:
    since = churned(source, windows=1)
    with pytest.raises(UsageError, match="the archive is kept from"):
        export(source, out, Tso(since - 1))
    with pytest.raises(UsageError, match="is empty"):
        export(source, out)
    with pytest.raises(UsageError, match="nothing lies between"):
        export(source, out, source.archive.end())
    assert files(out) == {}


def test_each_changed_byte_of_a_note_is_found(source: MadeSource, out: Path) -> None:
    since = churned(source, windows=1)
    (note,) = export(source, out, since).notes
    path = out / note.key
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((BadManifest, UsageError)):
            export(source, out)
    path.unlink()
    with pytest.raises(UsageError, match="no export of ours"):
        export(source, out)


def test_a_note_between_others_that_is_missing_is_found(source: MadeSource, out: Path) -> None:
    since = churned(source)
    report = export(source, out, since, file_bytes=4000)
    (out / report.notes[1].key).unlink()
    with pytest.raises(BadManifest, match="lacks the note of file 1"):
        export(source, out)


def test_a_file_of_which_the_note_says_other_bytes_is_not_made_again(source: MadeSource, out: Path) -> None:
    since = churned(source, windows=1)
    (note,) = export(source, out, since).notes
    (out / note.name).unlink()
    (out / note.key).write_bytes(dataclasses.replace(note, digest="0" * 64).to_json())
    with pytest.raises(StoreError, match="other bytes"):
        export(source, out)
    assert not (out / note.name).exists()


def test_a_note_is_read_as_it_was_written() -> None:
    note = Note(
        origin=Origin(cluster_id=1 << 63, archive_id="a", tables=("d.t",)), number=3, name="binlog", digest="f" * 64,
        size=5, from_ts=Tso(1), to_ts=Tso(2), transactions=1, changes=2, ddls=3,
    )  # fmt: skip
    assert Note.from_json(note.key, note.to_json()) == note


def test_a_damaged_payload_names_its_transaction(source: MadeSource, out: Path) -> None:
    source.create_table("t", [column(1, "id", flag=3), column(2, "v", MysqlType.VARCHAR)])
    since = source.genesis()
    source.commit(source.tick(), b"\x08\x01\x12\x07\x08\xc9\x01\x12\x00\x38\x00")  # an image of no bytes
    source.cut()
    with pytest.raises(BinlogError, match="transaction"):
        export(source, out, since)


def test_two_keys_that_move_in_one_transaction_keep_their_order(source: MadeSource, out: Path) -> None:
    source.create_table(
        "u", [column(1, "id", flag=3), column(2, "u", MysqlType.VARCHAR)],
        index_info=[index(1, "uu", ("u", 1), unique=True)],
    )  # fmt: skip
    since = source.genesis()
    with source.txn() as t:
        t.insert("u", id=1, u=b"a")
        t.insert("u", id=2, u=b"b")
    with source.txn() as t:
        t.update("u", 1, u=b"c")
        t.update("u", 2, u=b"a")
        t.delete("u", 1)
        t.insert("u", id=1, u=b"b")
    source.cut()
    export(source, out, since)
    events = [each for binlog in pbmessages.binlogs(out) for each in binlog.dml_data.events]
    assert [each.tp for each in events] == [0, 0, 1, 1, 2, 0]
    assert replayed(pbmessages.binlogs(out)) == source.snapshot()


def events_of(out: Path) -> Counter[str]:
    """How many row changes the files have of each table, by the name that they say."""
    return Counter(event.table_name for each in pbmessages.binlogs(out) for event in each.dml_data.events)


def renamed(source: MadeSource) -> Tso:
    """A history in which ``orders`` gets another name early on, beside a table that does not; where it begins."""
    for name in ("orders", "other"):
        source.create_table(name, [column(1, "id", flag=3)])
    since = source.genesis()
    for name, first, last in (("orders", 0, 5), ("other", 0, 5), ("orders_old", 5, 30), ("other", 5, 30)):
        if name == "orders_old" and first == 5:
            source.rename_table("orders", "orders_old")
        for number in range(first, last):
            with source.txn() as t:
                t.insert(name, id=number)
    source.cut()
    return since


def test_a_table_stays_chosen_behind_its_rename_whatever_was_killed_or_lost(source: MadeSource, out: Path) -> None:
    since = renamed(source)
    how: dict[str, Any] = {"tables": ("d.orders", "d.other"), "file_bytes": 600}
    report = export(source, out / "whole", since, **how)
    assert events_of(out / "whole") == {"orders": 5, "orders_old": 25, "other": 30}
    behind = next(at for at, note in enumerate(report.notes) if note.ddls) + 1
    assert behind < len(report.notes) - 2
    wanted = files(out / "whole")
    with pytest.raises(Killed):
        export_pb(
            source.archive, KillingStore(out / "killed", 2 * behind + 1, after=False), since=since, upto=None, **how
        )
    export(source, out / "killed", since, **how)
    assert files(out / "killed") == wanted
    for lost in (0, behind, len(report.notes) - 1):
        (out / "whole" / report.notes[lost].name).unlink()
        export(source, out / "whole", **{**how, "tables": ("D.other", "d.Orders", "d.orders")})
        assert files(out / "whole") == wanted, lost
    export(source, out / "one", since, tables=["d.orders"])
    with source.txn() as t:
        t.insert("orders_old", id=1000)
    source.cut()
    (later,) = export(source, out / "whole", **how).notes
    assert (later.number, later.changes) == (len(report.notes), 1)
    assert later.table_ids == report.notes[0].table_ids
    export(source, out / "one", tables=["d.orders"])
    assert events_of(out / "one") == {"orders": 5, "orders_old": 26}


def test_a_table_that_gets_a_wanted_name_only_later_is_refused_as_the_files_lack_its_rows(
    source: MadeSource, out: Path
) -> None:
    since = renamed(source)
    export(source, out, since, tables=["d.other", "d.new*"])
    source.create_table("newest", [column(1, "id", flag=3)])
    with source.txn() as t:
        t.insert("newest", id=1)
    end = source.cut()
    export(source, out, tables=["d.other", "d.new*"])
    assert events_of(out) == {"other": 30, "newest": 1}
    source.rename_table("orders_old", "new_orders")
    source.cut()
    with pytest.raises(UsageError, match=r"called d\.orders before .* is now one of d\.new\*, d\.other") as failed:
        export(source, out, tables=["d.other", "d.new*"])
    assert "empty directory" in str(failed.value.hint)
    assert export(source, out, tables=["d.other", "d.new*"], upto=end).notes == ()
    export(source, out.with_name("anew"), since, tables=["d.other", "d.new*"])
    assert events_of(out.with_name("anew")) == {"orders": 5, "orders_old": 25, "other": 30, "newest": 1}


def test_what_the_files_lack_is_said_by_every_run_and_so_is_what_reparo_refuses(source: MadeSource, out: Path) -> None:
    since = churned(source, windows=1)
    source.ddl(26, 0, "ALTER DATABASE `d` COLLATE utf8mb4_bin", DBInfo={"id": 2, "db_name": {"O": "d", "L": "d"}})
    until = Tso(source.ts + 1)
    lost = Declaration(node_id="pump-9", incarnation="i", from_ts=since, to_ts=until, reason="gone", who="me")
    middle = source.cut(declared=(lost,))
    accepted = AcceptedCommit(
        node_id="pump-8", start_ts=Tso(since + 1), commit_ts=Tso(since + 2), kind=AcceptedCommit.LATE, reason="late",
        who="me",
    )  # fmt: skip
    with source.txn() as t:
        t.insert("t", id=900_001, name=b"x", n=1)
    source.cut(accepted=(accepted,))
    with source.txn() as t:
        t.insert("t", id=900_002, name=b"x", n=1)
    source.cut(declared=(dataclasses.replace(lost, node_id="pump-7", from_ts=middle, to_ts=Tso(source.ts)),))
    for report in (
        export(source, out, since, upto=middle),  # the late one is of a window behind it
        export(source, out, upto=middle),
        export(source, out),
        export(source, out),
    ):
        told = [each.node_id for each in report.losses.declared]
        assert told == (["pump-9", "pump-8"] if report.upto == middle else ["pump-9", "pump-8", "pump-7"])
        assert [each.action for each in report.refused] == ["MODIFY_SCHEMA_CHARSET"]
    first, second = read_notes(FileStore(out), Origin(cluster_id=source.cluster_id, archive_id="main"))
    assert [[each.node_id for each in note.losses.declared] for note in (first, second)] == [
        ["pump-9", "pump-8"],
        ["pump-7"],
    ]
    assert "losses" not in json.loads(dataclasses.replace(first, losses=Losses()).to_json())
    (out / first.name).unlink()
    assert [each.name for each in export(source, out).notes] == [first.name]  # beside its note, as that stands


def test_an_end_that_the_archive_has_not_reached_is_refused(source: MadeSource, out: Path) -> None:
    since = churned(source, windows=1)
    end = source.archive.end()
    with pytest.raises(UsageError, match="the archive ends at") as failed:
        export(source, out, since, upto=Tso(end + 1))
    assert failed.value.hint == "--to latest"
    assert files(out) == {}
    assert export(source, out, since, upto=end).upto == end


def test_rows_of_few_bytes_in_a_wide_table_are_cut_by_what_they_become(
    source: MadeSource, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets the names and types of 200 columns: 8 MiB of payload would be some GB."""
    wide = [column(1, "id", flag=3), *(column(at, f"column_number_{at}") for at in range(2, 202))]
    source.create_table("wide", wide)
    source.create_table("narrow", [column(1, "id", flag=3)])
    since = source.genesis()
    for txn, rows in enumerate([2000, *[50] * 30, 0]):
        with source.txn() as t:
            for row in range(rows):
                t.insert("wide", id=10_000 * txn + row)
            t.insert("narrow", id=txn)
    source.cut()
    export(source, out / "whole", since)
    size = sum(path.stat().st_size for path in (out / "whole").glob("binlog-*"))
    most = size // 20
    monkeypatch.setattr(encode, "WRITTEN_BYTES", most)
    held = []
    encode_batch = Encoder.encode

    def watched(encoder: Encoder, batch: pa.RecordBatch) -> Iterator[encode.Frames | encode.Piece]:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for part in encode_batch(encoder, batch):
            yield part
            held.append((tracemalloc.get_traced_memory()[1] - before, len(part.data)))

    monkeypatch.setattr(Encoder, "encode", watched)
    tracemalloc.start()
    export(source, out / "cut", since)
    tracemalloc.stop()
    assert len(held) > 15
    assert max(size for _, size in held) <= most
    assert max(peak for peak, _ in held) < 6 * most < size
    assert pbmessages.binlogs(out / "cut") == pbmessages.binlogs(out / "whole")
    export(source, out / "few", since, file_bytes=most)
    frames = [
        payload for at in ("cut", "few") for path in sorted((out / at).glob("binlog-*"))
        for payload in pbmessages.payloads(path.read_bytes())
    ]  # fmt: skip
    assert frames[: len(frames) // 2] == frames[len(frames) // 2 :]


@pytest.mark.parametrize("unique", [False, True])
def test_an_old_value_without_a_known_twin_is_null_unless_it_tells_the_row(
    source: MadeSource, out: Path, unique: bool
) -> None:
    """Writers that had not heard of a MODIFY COLUMN yet: their old images have the column in its former type."""
    keys = [index(1, "vv", ("v", 1), unique=True)] if unique else None
    source.create_table("t", [column(1, "id", flag=3), column(2, "v"), column(3, "n")], index_info=keys)
    since = source.genesis()
    with source.txn() as t:
        for number in (1, 2, 3):
            t.insert("t", id=number, v=10 + number, n=number)
    held = source.tables["t"]
    before = {handle: dict(row) for handle, row in held.rows.items()}
    text = column(7, "v", MysqlType.VARCHAR, flen=20)
    both = copy.deepcopy(held.info.raw)
    both["cols"].append({**text, "offset": 3, "state": 3, "name": {"O": "_Col$_v_0", "L": "_col$_v_0"}})
    writer, start_ts, builder = TableInfo.from_dict(both), source.tick(), PrewriteValueBuilder(source.schema_version)
    raw = copy.deepcopy(held.info.raw)
    raw["cols"][1] = {**text, "offset": 1}
    source.alter("t", 12, raw)
    builder.delete(written_as(held.info), encode_delete(writer, before[1], handle=1))
    new = {**before[2], 3: 20, 7: b"12"}
    builder.update(written_as(held.info), encode_update(writer, before[2], new, handle=2))
    source.commit(start_ts, builder.build())
    source.cut()
    if unique:
        with pytest.raises(ColumnMismatch, match=r"d\.t, the transaction at .* type of column v was changed"):
            export(source, out, since)
        return
    export(source, out, since)
    gone, changed = (event for event in pbmessages.binlogs(out)[-1].dml_data.events)
    images = [
        [[read_datum(value, 0)[0].value for value in side.values()] for side in pbmessages.values_of(event)]
        for event in (gone, changed)
    ]
    assert images == [[[1, None, 1]], [[2, None, 2], [2, b"12", 20]]]


def test_an_encoder_remembers_few_shapes_and_makes_the_others_anew(
    source: MadeSource, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = churned(source)
    export(source, out / "whole", since)
    encoders = []
    begin = Encoder.__init__
    monkeypatch.setattr(Encoder, "__init__", lambda self, *how: (begin(self, *how), encoders.append(self))[0])
    monkeypatch.setattr(encode, "_SHAPES", 2)
    export(source, out / "few", since)
    assert files(out / "few") == files(out / "whole")
    assert [len(each._shapes) for each in encoders] == [2]
