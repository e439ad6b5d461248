"""What a fold names, rewrites and refuses."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from pumphouse.archive import layout
from pumphouse.archive.base import Base, BaseBegun
from pumphouse.archive.declare import Declaration
from pumphouse.archive.document import sha256
from pumphouse.archive.expire import Ages, expire
from pumphouse.archive.losses import Losses
from pumphouse.archive.manifest import AcceptedCommit
from pumphouse.archive.objects import SourceObject, SourceObjects, objects_of
from pumphouse.archive.range import Range
from pumphouse.archive.retention import Policy
from pumphouse.archive.sweep import remove
from pumphouse.archive.verify import verify
from pumphouse.archive.view import read_view
from pumphouse.dump.survey import survey
from pumphouse.errors import (
    BadManifest,
    BadSegment,
    DuplicateKey,
    FoldRefused,
    ManifestConflict,
    RestoreError,
    TargetUnreachable,
    UsageError,
)
from pumphouse.folding import run as folding
from pumphouse.history.rows import moment_of
from pumphouse.loader.work import base_work
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.objectstore.file import FileStore
from pumphouse.restore.plan import plan_restore
from pumphouse.settings import DumpRule, LoadSettings
from tests.support import formats
from tests.support.bases import SMALL, base_of, folded, rows_of
from tests.support.dumpedsource import DumpedSource
from tests.support.madearchive import column, index

pytestmark = pytest.mark.row("A5")
ID = column(1, "id", flag=3)
TEXT = column(2, "s", MysqlType.VARCHAR)


@pytest.fixture
def source(tmp_path: Path) -> DumpedSource:
    """With two tables, t of 100 rows and o of 10."""
    made = DumpedSource(tmp_path)
    for name, rows in (("t", 100), ("o", 10)):
        made.create_table(name, [ID, TEXT])
        with made.txn() as t:
            for n in range(rows):
                t.insert(name, id=n, s=b"row %d" % n)
    made.genesis()
    return made


def put(source: DumpedSource, table: str, *ids: int) -> None:
    with source.txn() as t:
        for each in ids:
            t.insert(table, id=each, s=b"new")


def keys_of(source: DumpedSource, at: Tso, table: str) -> list[str]:
    found = next(each for each in base_of(source, at).tables if each.table == table)
    return [segment.key for segment in found.segments]


# -- what is named, and what is rewritten


def test_a_table_that_did_not_change_is_named_and_nothing_of_it_is_read_or_written(
    source: DumpedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(source, "o", 70)
    first = source.cut()
    folded(source, first)
    put(source, "o", 71)
    second = source.cut()
    read: list[str] = []
    original = FileStore.get_file
    monkeypatch.setattr(FileStore, "get_file", lambda *a: (read.append(a[1]), original(*a))[1])
    report = folded(source, second)
    assert keys_of(source, second, "t") == keys_of(source, first, "t")
    assert not any(key in name for key in keys_of(source, first, "t") for name in read)
    assert {each.name: (each.rewritten, each.written) for each in report.tables}["d.t"] == (False, 0)
    formats.check("base", json.loads(source.archive.store.get(report.key)))
    assert report.bytes_named == sum(
        s.bytes for t in base_of(source, first).tables if t.table == "t" for s in t.segments
    )
    assert rows_of(source, base_of(source, second)) == source.snapshot()
    assert verify(source.archive).sound


def test_of_a_table_in_parts_those_with_changes_alone_are_rewritten(source: DumpedSource) -> None:
    put(source, "o", 70)
    first = source.cut()
    folded(source, first)
    before = keys_of(source, first, "t")
    assert len(before) > 5
    with source.txn() as t:
        t.update("t", 50, s=b"changed")
    second = source.cut()
    folded(source, second)
    after = keys_of(source, second, "t")
    assert len(set(before) - set(after)) == 1
    assert rows_of(source, base_of(source, second)) == source.snapshot()
    # Its last row moves to the end: its part is gone, and the last one grows.
    with source.txn() as t:
        t.update("t", 0, id=500)
        for n in range(1, 30):
            t.delete("t", n)
    third = source.cut()
    folded(source, third)
    assert rows_of(source, base_of(source, third)) == source.snapshot()
    (table,) = (each for each in base_of(source, third).tables if each.table == "t")
    assert table.ranks is not None
    assert table.ranks[0] > 30 + (1 << 63)


def test_a_log_larger_than_a_part_is_dealt_out_by_its_own_keys(
    source: DumpedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = source.cut()
    folded(source, first)
    for n in range(5):
        put(source, "t", *range(1_000 + n * 200, 1_200 + n * 200))
    second = source.cut()
    largest = 0
    original = folding.standing

    def watched(entries: Any, since: Tso) -> Any:
        nonlocal largest
        largest = max(largest, entries.num_rows)
        return original(entries, since)

    monkeypatch.setattr(folding, "standing", watched)
    folded(source, second, SMALL.model_copy(update={"unit_bytes": 4_000}))
    assert 0 < largest < 500
    assert rows_of(source, base_of(source, second)) == source.snapshot()
    # Where one value fills more than a part, no range helps: the table is folded whole.
    source.create_table(
        "same",
        [column(1, "a", flag=3), column(2, "b", flag=3), TEXT | {"id": 3}],
        pk_is_handle=False,
        index_info=[index(1, "PRIMARY", ("a", 0), ("b", 1), unique=True, primary=True)],
    )
    with source.txn() as t:
        for n in range(50):
            t.insert("same", a=1, b=n, s=b"x" * 30)
    folded(source, source.cut())
    with source.txn() as t:
        for n in range(50, 90):
            t.insert("same", a=1, b=n, s=b"x" * 30)
    at = source.cut()
    folded(source, at)
    (table,) = (each for each in base_of(source, at).tables if each.table == "same")
    assert table.ranks is None
    assert len(table.segments) > 1
    assert rows_of(source, base_of(source, at)) == source.snapshot()


def test_other_columns_rewrite_a_table_and_another_name_does_not(source: DumpedSource) -> None:
    first = source.cut()
    folded(source, first)
    source.rename_table("o", "renamed")
    source.add_column("t", column(3, "n", default="5", origin_default="5"))
    second = source.cut()
    report = folded(source, second)
    assert {each.name: each.rewritten for each in report.tables} == {"d.renamed": False, "d.t": True}
    assert keys_of(source, second, "renamed") == keys_of(source, first, "o")
    assert rows_of(source, base_of(source, second)) == source.snapshot()


def test_a_default_is_in_old_rows_as_the_source_writes_it(source: DumpedSource) -> None:
    source.create_table("k", [column(1, "a"), TEXT], pk_is_handle=False)
    with source.txn() as t:
        handles = [t.insert("k", a=n, s=b"x") for n in range(2)]
    amount = column(3, "amount", MysqlType.NEWDECIMAL, default="0", origin_default="0")
    amount["type"] |= {"Flen": 10, "Decimal": 2}
    seen = column(4, "seen", MysqlType.DATETIME, default="2026-01-02 03:04:05", origin_default="2026-01-02 03:04:05")
    seen["type"] |= {"Decimal": 3}
    for each in (amount, seen):
        raw = copy.deepcopy(source.tables["k"].info.raw)
        raw["cols"].append({**each, "offset": len(raw["cols"])})
        source.alter("k", 5, raw)
    for handle in handles:
        source.tables["k"].rows[handle] |= {3: "0.00", 4: "2026-01-02 03:04:05.000"}
    with source.txn() as t:
        t.delete("k", handles[0])  # with the digits of the column, as rows have them
    at = source.cut()
    folded(source, at)
    assert rows_of(source, base_of(source, at)) == source.snapshot()
    (table,) = (each for each in base_of(source, at).tables if each.table == "k")
    path = source.root / str(source.cluster_id) / table.segments[0].key
    assert pq.read_table(path).drop_columns(["a", "s"]).to_pylist() == [
        {"amount": Decimal("0.00"), "seen": datetime(2026, 1, 2, 3, 4, 5)}
    ]


def test_verify_reads_what_several_bases_name_once(source: DumpedSource) -> None:
    put(source, "o", 70)
    folded(source, source.cut())
    once = verify(source.archive).dumped
    put(source, "o", 71)
    folded(source, source.cut())
    written = sum(s.rows for t in base_of(source, source.archive.end()).tables for s in t.segments if t.table == "o")
    assert once < verify(source.archive).dumped <= once + written


def test_a_dump_whose_rows_are_newer_than_its_low_folds_and_so_does_a_dump_over_a_folded_base(
    source: DumpedSource,
) -> None:
    low = source.cut()
    put(source, "t", 200)
    chunk = source.read("t", low, low)  # has what the log above its low brings again
    with source.txn() as t:
        t.delete("t", 200)
    source.publish(low, [chunk, source.read("o", low, low)])
    put(source, "t", 201)
    at = source.cut()
    assert folded(source, at).older_ts > low
    assert rows_of(source, base_of(source, at)) == source.snapshot()
    earlier, begun = base_of(source, at), source.cut()
    chunks = [source.read("o", begun, begun)]
    put(source, "t", 202)
    exact = source.cut()
    source.tick()
    source.cut()
    view = read_view(source.archive)
    found = survey(view, earlier.low, chunks, exact, earlier.tables, lambda version: version.table.name == "o")
    dump = Base(begun=begun, low=earlier.low, ts=exact, tables=found.tables, columns=True, sha256="")
    note = layout.base_begun(begun)
    source.archive.store.put(note, b"")
    source.archive.publish_base(dump, begun=note)
    source.archive.store.delete(note)
    put(source, "t", 203)
    last = source.cut()
    report = folded(source, last)
    assert report.older_ts == exact
    assert rows_of(source, base_of(source, last)) == source.snapshot()
    assert next(each.named for each in report.tables if each.name == "d.t") > 3


# -- what belongs to a base


def test_the_keys_of_a_base_are_all_that_a_restore_from_it_reads(source: DumpedSource) -> None:
    genesis = read_view(source.archive).bases[0]
    assert layout.GENESIS in genesis.keys
    put(source, "o", 70)
    first, _ = source.cut(), folded(source)
    put(source, "o", 71)
    second, _ = source.cut(), folded(source)
    base = base_of(source, second)
    root = source.root / str(source.cluster_id)
    for path in (root / "base").rglob("*"):
        if path.is_file() and str(path.relative_to(root)) not in base.keys:
            path.unlink()
    assert layout.folded_document(first) not in base.keys
    assert any(key.startswith(layout.base_folder(first)) for key in base.keys)
    assert rows_of(source, base_of(source, second)) == source.snapshot()
    assert verify(source.archive).sound is False  # genesis' own dump is gone with the rest


def test_a_restore_reads_no_window_from_before_the_base_and_its_parts_as_they_lie(source: DumpedSource) -> None:
    put(source, "t", 300)
    middle = Tso(source.tick())
    put(source, "t", 301)
    source.cut()
    folded(source, middle)
    view = read_view(source.archive)
    work = base_work(view, view.base_at(middle), "t", LoadSettings())
    assert {piece.window for piece in work.pieces} == {None}
    assert work.plan.whole == {table.table_id for table in view.base_at(middle).tables}


def test_what_a_dump_kept_as_text_goes_with_it(source: DumpedSource) -> None:
    low = source.cut()
    source.publish(low, [source.read(name, low, low) for name in source.tables])
    key = layout.base_document(low)
    base = read_view(source.archive).bases[-1]
    kept = SourceObjects(
        cluster_id=source.cluster_id,
        begun=low,
        objects=(SourceObject(kind="trigger", name="d.x", sql=("CREATE TRIGGER …",)),),
    )
    source.archive.store.put(layout.base_objects(low), kept.to_json())
    of = {"cluster_id": source.cluster_id, "genesis": source.archive.genesis().sha256}
    source.archive.store.put(key, dataclasses.replace(base, objects=sha256(kept.to_json())).to_json(**of))
    put(source, "o", 70)
    at = source.cut()
    folded(source, at)
    found = objects_of(source.archive, base_of(source, at))
    assert found is not None
    assert found == kept
    assert layout.base_objects(low) in base_of(source, at).keys
    put(source, "o", 71)
    again = source.cut()
    folded(source, again)
    assert objects_of(source.archive, base_of(source, again)) == kept


def test_what_a_rule_kept_out_of_a_dump_is_not_in_bases_folded_from_it(source: DumpedSource) -> None:
    low = source.cut()
    rule = DumpRule.model_validate({"table": "d.o", "why": "too large"})
    source.publish(low, [source.read("t", low, low)], rules=[rule])
    put(source, "o", 70)
    at = source.cut()
    assert folded(source, at).without == ("d.o",)
    (without,) = base_of(source, at).without
    assert without.why == "too large"
    assert read_view(source.archive).base_for(at).ts < at  # who wants the table begins before


# -- two at once, and again


def test_the_second_fold_of_a_moment_finds_the_first(source: DumpedSource, monkeypatch: pytest.MonkeyPatch) -> None:
    put(source, "t", 300)
    at = source.cut()
    original = FileStore.put_if_absent
    beside: list[folding.FoldReport] = []

    def first(self: FileStore, key: str, data: bytes) -> None:
        if key.endswith("folded.json") and not beside:
            monkeypatch.setattr(FileStore, "put_if_absent", original)
            beside.append(folded(source, at))
        original(self, key, data)

    monkeypatch.setattr(FileStore, "put_if_absent", first)
    report = folded(source, at)
    assert report.made
    assert report.bytes_written == beside[0].bytes_written
    assert rows_of(source, base_of(source, at)) == source.snapshot()
    assert not folded(source, at).made
    written = sum(each.written for each in report.tables)
    assert (verify(source.archive).sound, verify(source.archive).orphans) == (True, written)


def test_a_moment_that_is_not_there_is_refused(source: DumpedSource) -> None:
    end = source.cut()
    with pytest.raises(UsageError, match="the archive ends at"):
        folded(source, Tso(end + 1))
    with pytest.raises(TargetUnreachable, match="cannot be restored: the archive covers"):
        folded(source, Tso(source.archive.genesis().ts - 1))


def test_a_dump_that_begins_where_a_fold_is_made_stays_a_base_of_its_own(source: DumpedSource) -> None:
    put(source, "t", 300)
    low = source.cut()
    chunks = [source.read(name, low, low) for name in source.tables]
    folded(source, low)
    assert rows_of(source, base_of(source, low)) == source.snapshot()
    exact = source.publish(low, chunks)
    assert source.archive.store.get(layout.base_document(low)) != source.archive.store.get(layout.folded_document(low))
    assert [each.ts for each in read_view(source.archive).bases[-2:]] == [low, exact]
    assert verify(source.archive).sound


def test_a_fold_says_what_it_is_made_of_and_is_withdrawn_where_that_goes_meanwhile(
    source: DumpedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(source, "o", 70)
    first, _ = source.cut(), folded(source)
    put(source, "o", 71)
    at = source.cut()
    original = FileStore.put_if_absent
    gone = source.root / str(source.cluster_id) / keys_of(source, first, "t")[2]
    notes: list[BaseBegun] = []

    def expired(self: FileStore, key: str, data: bytes) -> None:
        notes.extend(
            BaseBegun.from_json(each.key, source.archive.store.get(each.key))
            for each in source.archive.store.list(layout.base_folder(at))
            if layout.is_fold_note(each.key)
        )
        if gone.exists():
            assert verify(source.archive).sound
            gone.unlink()
        original(self, key, data)

    monkeypatch.setattr(FileStore, "put_if_absent", expired)
    with pytest.raises(BadSegment, match="is not there as the base of"):
        folded(source, at)
    assert {(each.low, each.over) for each in notes} == {(at, first)}
    assert read_view(source.archive).bases[-1].ts == first
    assert any(layout.is_fold_note(each.key) for each in source.archive.store.list(layout.BASE))  # nothing came of it


def test_what_a_fold_is_made_of_that_expired_before_it_said_so_is_not_in_its_base(
    source: DumpedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expiry has looked who needs the older base, and deletes only when the fold has ended."""
    put(source, "o", 70)
    source.cut()
    folded(source)
    put(source, "o", 71)
    low = source.cut()
    source.publish(low, [source.read(name, low, low) for name in source.tables])
    store, document = source.archive.store, layout.base_document(low)
    dump = store.get(document)
    store.delete(document)  # until the fold has looked
    at = source.cut()
    deletions: list[Callable[[], None]] = []
    original = folding.plan_fold

    def planned(*of: Any) -> Any:
        monkeypatch.setattr(folding, "plan_fold", original)
        plan = original(*of)
        store.put(document, dump)
        expire(source.archive, Ages(), Policy(bases=1), (), now=at)
        return plan

    monkeypatch.setattr(folding, "plan_fold", planned)
    monkeypatch.setattr("pumphouse.archive.expire.remove", lambda *of: deletions.append(lambda: remove(*of)))
    with pytest.raises(ManifestConflict, match="expired before this fold of it had begun"):
        folded(source, at)
    (delete,) = deletions
    delete()
    assert not any(layout.is_fold_note(each.key) for each in store.list(layout.BASE))
    assert verify(source.archive).problems == []
    assert folded(source, at).made
    assert rows_of(source, base_of(source, at)) == source.snapshot()


# -- what the archive alone does not say


def converted(source: DumpedSource) -> None:
    raw = copy.deepcopy(source.tables["t"].info.raw)
    raw["cols"][1] = raw["cols"][1] | {"id": 9, "type": column(2, "s")["type"]}
    source.alter("t", 12, raw)


def computed(source: DumpedSource) -> None:
    raw = copy.deepcopy(source.tables["t"].info.raw)
    raw["cols"].append(column(9, "made", generated_expr_string="length(`s`)", generated_stored=True) | {"offset": 2})
    source.alter("t", 5, raw)


def other_key(source: DumpedSource) -> None:
    keys = [index(1, "a", ("a", 0), unique=True), index(1, "b", ("b", 1), unique=True)]
    columns = [column(1, "a", flag=1), column(2, "b", flag=1)]
    source.create_table("q", columns, pk_is_handle=False, index_info=keys[:1])
    with source.txn() as t:
        t.insert("q", a=1, b=2)
    source.alter("q", 7, {**source.tables["q"].info.raw, "index_info": keys[1:]})


def exchanged(source: DumpedSource) -> None:
    part = {"id": 900, "name": {"O": "p0", "L": "p0"}, "less_than": ["1000"]}
    source.create_table("p", [ID, TEXT], partition={"type": 1, "expr": "id", "enable": True, "definitions": [part]})
    folded(source, source.cut())
    whole, parted = source.tables["o"].info, copy.deepcopy(source.tables["p"].info.raw)
    parted["partition"]["definitions"][0]["id"] = whole.id
    source.ddl(42, whole.id, "ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE o", TableInfo=parted)
    source.ddl(4, 900, "DROP TABLE `o`", TableInfo={**whole.raw, "id": 900})


def unknown(source: DumpedSource) -> None:
    other = source.tables["o"].info
    source.ddl(99, other.id, "ALTER TABLE o STRANGE", TableInfo=other.raw)
    source.drop_table("o")


@pytest.mark.parametrize(
    ("happen", "said"),
    [
        (converted, "d.t: the DDL at .* changed the type of s.*archive dump --table d.t"),
        (computed, "d.t: the DDL at .* computed made anew.*archive dump --table d.t"),
        (other_key, "d.q: its rows were told apart by another key until.*archive dump --table d.q"),
        (exchanged, "d.p: the DDL at .* changed rows without a binlog.*archive dump --table d.p"),
        (unknown, "no restore leads to .*99.*a new dump leads on"),
    ],
)
def test_what_the_archive_alone_does_not_say_is_refused_by_name(
    source: DumpedSource, happen: Callable[[DumpedSource], None], said: str
) -> None:
    happen(source)
    at = source.cut()
    before = [each.key for each in source.archive.store.list(layout.BASE)]
    for how in ({"dry_run": True}, {}):
        with pytest.raises(FoldRefused, match=f"(?s){said}"):
            folded(source, at, **how)
    assert [each.key for each in source.archive.store.list(layout.BASE)] == before


def test_what_the_log_lacks_behind_the_dump_a_restore_from_the_folded_base_says(source: DumpedSource) -> None:
    put(source, "t", 400)
    first = Tso(source.tick())
    loss = Declaration(node_id="pump-0", incarnation="i", from_ts=Tso(first - 5), to_ts=first, reason="disk", who="ops")
    put(source, "t", 401)
    at = source.cut(declared=(loss,))
    late = Tso(at - 2)

    def losses() -> Losses:
        view = read_view(source.archive)
        plan = plan_restore(view, view.end, task="t", settings=LoadSettings())
        assert base_work(view, view.bases[-1], "t", LoadSettings()).losses == plan.losses or len(view.bases) == 1
        return plan.losses

    folded(source, at)
    put(source, "t", 402)
    # A row from before the base came after it, and somebody goes on without.
    record = AcceptedCommit(
        node_id="pump-0", start_ts=Tso(late - 1), commit_ts=late, kind="late", reason="disk", who="ops"
    )
    source.cut(accepted=(record,))
    found = losses()
    assert [each.to_ts for each in found.declared] == [first, late]
    put(source, "o", 403)
    folded(source, source.cut())  # a fold of a fold
    assert losses() == found


def test_what_the_log_lacked_is_told_when_the_dump_and_the_windows_before_a_folded_base_are_gone(
    source: DumpedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(source, "t", 400)
    first = Tso(source.tick())
    loss = Declaration(node_id="pump-0", incarnation="i", from_ts=Tso(first - 5), to_ts=first, reason="disk", who="ops")
    put(source, "t", 401)
    at = source.cut(declared=(loss,), binlog_skipped=True)
    folded(source, at)
    record = AcceptedCommit(
        node_id="pump-0", start_ts=Tso(at - 9), commit_ts=Tso(at - 8), kind="late", reason="disk", who="ops"
    )
    put(source, "t", 402)
    source.cut(accepted=(record,), binlog_skipped=True)
    with monkeypatch.context() as patched:
        unsynced = tuple(dataclasses.replace(each, sync_log=False) for each in source.pumps_at(source.archive.end()))
        patched.setattr(source, "pumps_at", lambda reached: unsynced[:1])
        source.cut()

    def losses() -> Losses:
        view = read_view(source.archive)
        assert base_work(view, view.bases[-1], "t", LoadSettings()).losses.declared
        moment = moment_of(view, "d.t", view.end, archive=source.settings, load=LoadSettings())
        plan = plan_restore(view, view.end, task="t", settings=LoadSettings())
        assert moment.losses == plan.losses
        with pytest.raises(RestoreError, match="declared lost: Pump pump-0"):
            plan.require_accepted(False)
        return plan.losses

    def expired() -> Range:
        expire(source.archive, Ages(), Policy(bases=1), (), now=source.archive.end(), who="me@here")
        kept = source.archive.range()
        formats.check("range", json.loads(source.archive.store.get(kept.key)))
        return kept

    found = losses()
    assert [each.to_ts for each in found.declared] == [first, record.commit_ts]
    assert [each.start for each in found.binlog_skipped] == [source.archive.genesis().ts]
    assert found.unsynced == ("pump-0",)
    for _ in range(2):  # behind the first base, then the windows behind that, too
        assert expired().losses
        assert losses() == found
        assert next(each["to_ts"] for each in verify(source.archive).declared) == first
        put(source, "o", int(source.tick()) % 1_000_000)
        folded(source, source.cut())
        for _ in range(3):
            source.cut()
        assert losses() == found
    low = source.cut()
    source.publish(low, [source.read(name, low, low) for name in sorted(source.tables)])
    # A dump of everything lacks nothing; one that took tables over from the folded base lacks what that lacked.
    view = read_view(source.archive)
    taken, dump = view.bases[-2:]
    assert not view.losses(dump.since, view.end)
    assert view.losses(taken.since, view.end) == found
    for _ in range(3):
        source.cut()
    assert not expired().losses
    view = read_view(source.archive)
    assert not plan_restore(view, view.end, task="t", settings=LoadSettings()).losses


def test_a_key_that_changes_on_both_sides_of_a_dumps_moment_is_no_key_of_two_rows(source: DumpedSource) -> None:
    unique = index(1, "u", ("id", 0), unique=True)
    source.create_table("q", [column(1, "id", flag=1), TEXT], pk_is_handle=False, index_info=[unique])
    low = source.cut()
    with source.txn() as t:
        handle = t.insert("q", id=2, s=b"b")  # the dump reads it, and the log brings it again
    source.publish(low, [source.read(name, low, low) for name in source.tables])
    with source.txn() as t:
        t.update("q", handle, s=b"c")
    at = source.cut()
    folded(source, at, SMALL.model_copy(update={"connections": 1}))
    assert rows_of(source, base_of(source, at)) == source.snapshot()


def test_rows_that_a_key_which_is_going_does_not_tell_apart_are_refused(source: DumpedSource) -> None:
    unique = index(1, "u", ("id", 0), unique=True)
    source.create_table("q", [column(1, "id", flag=1), TEXT], pk_is_handle=False, index_info=[unique])
    with source.txn() as t:
        first = t.insert("q", id=1, s=b"first")
    folded(source, source.cut())
    # The key is out of force, and its DROP INDEX has not ended: a second row has it, and the first one goes.
    with source.txn() as t:
        t.insert("q", id=1, s=b"second")
        t.delete("q", first)
    put(source, "o", 70)
    at, before = source.cut(), [each.key for each in source.archive.store.list(layout.BASE)]
    with pytest.raises(DuplicateKey, match=r"d\.q belong to more than one row"):
        folded(source, at)
    # Nothing is left that would hold `archive expire` as a fold under way.
    assert [each.key for each in source.archive.store.list(layout.BASE)] == before


def test_a_delete_of_a_row_that_is_nowhere_is_refused_where_no_key_tells(source: DumpedSource) -> None:
    source.create_table("k", [column(1, "a"), TEXT], pk_is_handle=False)
    with source.txn() as t:
        handle = t.insert("k", a=1, s=b"x")
    source.tables["k"].rows[handle] = {1: 2, 2: b"x"}
    with source.txn() as t:
        t.delete("k", handle)
    with pytest.raises(FoldRefused, match=r"d\.k has no key"):
        folded(source, source.cut())


# -- damage


def test_a_segment_that_is_named_and_not_there_stops_the_fold(source: DumpedSource) -> None:
    put(source, "o", 70)
    first, _ = source.cut(), folded(source)
    put(source, "o", 71)
    source.cut()
    key = keys_of(source, first, "t")[2]
    (source.root / str(source.cluster_id) / key).unlink()
    with pytest.raises(BadSegment, match="is not there as the base of"):
        folded(source)
    assert [each.key for each in verify(source.archive).problems] == [key]


def test_swapped_parts_are_found(source: DumpedSource) -> None:
    put(source, "o", 70)
    at, _ = source.cut(), folded(source)
    base = base_of(source, at)
    of = {"cluster_id": source.cluster_id, "genesis": source.archive.genesis().sha256}
    (table,) = (each for each in base.tables if each.table == "t")
    swapped = (table.segments[1], table.segments[0], *table.segments[2:])
    tables = tuple(dataclasses.replace(each, segments=swapped) if each is table else each for each in base.tables)
    source.archive.store.put(layout.folded_document(at), dataclasses.replace(base, tables=tables).to_json(**of))
    with source.txn() as t:
        t.update("t", 1, s=b"changed")
    source.cut()
    with pytest.raises(BadSegment, match="outside of its range"):
        folded(source)


@pytest.mark.parametrize(
    "change", [{"ranks": (1,)}, {"ranks": ()}, {"folded": 10**18}], ids=["few ranks", "no ranks", "of later"]
)
def test_a_document_that_contradicts_itself_is_refused(source: DumpedSource, change: dict[str, Any]) -> None:
    put(source, "o", 70)
    at, _ = source.cut(), folded(source)
    base = base_of(source, at)
    if "ranks" in change:
        base = dataclasses.replace(base, tables=tuple(dataclasses.replace(t, **change) for t in base.tables))
    else:
        base = dataclasses.replace(base, **change)
    of = {"cluster_id": source.cluster_id, "genesis": source.archive.genesis().sha256}
    source.archive.store.put(layout.folded_document(at), base.to_json(**of))
    with pytest.raises(BadManifest):
        base_of(source, at)


def test_ranks_tell_the_parts_of_texts_and_of_numbers(source: DumpedSource) -> None:
    key = column(1, "k", MysqlType.VARCHAR, flag=3)
    primary = index(1, "PRIMARY", ("k", 0), unique=True, primary=True)
    source.create_table("w", [key, column(2, "n")], pk_is_handle=False, index_info=[primary])
    with source.txn() as t:
        handles = [t.insert("w", k=f"{n * 7919 % 1000:04d} word".encode(), n=n) for n in range(200)]
    folded(source, source.cut())
    with source.txn() as t:
        t.update("w", handles[7], n=-1)
        t.delete("w", handles[90])
        t.insert("w", k=b"zzz", n=5)
    at = source.cut()
    report = folded(source, at)
    table = next(each for each in report.tables if each.name == "d.w")
    assert table.named > table.written > 0
    (of,) = (each for each in base_of(source, at).tables if each.table == "w")
    assert of.ranks is not None
    assert list(of.ranks) == sorted(of.ranks)
    assert rows_of(source, base_of(source, at)) == source.snapshot()


def test_the_recipe_of_the_page_reads_a_table_in_duckdb(source: DumpedSource) -> None:
    total = column(3, "total", MysqlType.NEWDECIMAL, flen=10, decimal=2)
    source.create_table("orders", [ID, column(2, "state", MysqlType.VARCHAR), total])
    with source.txn() as t:
        for n in range(50):
            t.insert("orders", id=n, state=b"new" if n % 2 else b"paid", total="1.50")
    at, _ = source.cut(), folded(source)
    page = (formats.ROOT / "docs/operations.md").read_text()
    recipe = re.search(r"```sql\n(-- DuckDB.*?)```", page, re.DOTALL)
    assert recipe is not None
    text = recipe.group(1).replace("ARCHIVE", f"{source.root}/{source.cluster_id}").replace("'shop'", "'d'")
    with duckdb.connect() as duck:
        *before, last = re.sub(r"base/\d{20}/", f"base/{at:020d}/", text).strip().rstrip(";").split(";")
        for each in before:
            duck.execute(each)
        assert sorted(duck.execute(last).fetchall()) == [("new", 25, Decimal("37.50")), ("paid", 25, Decimal("37.50"))]
