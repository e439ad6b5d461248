"""History: the changes of one key out of many windows, and all changes of a table, decoded to typed columns."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pumphouse.archive.archive import Archive
from pumphouse.archive.indexing import extend_index
from pumphouse.archive.view import read_view
from pumphouse.codec import payload
from pumphouse.history.changes import Asked, Changed, ChangeReader, changes, forms_between, tables_of
from pumphouse.history.table import ChangeTable
from pumphouse.loader.keys import ALL_ROWS, Predicate
from pumphouse.model.table import MysqlType
from tests.bench.harness import Result, Watch
from tests.support.madearchive import MadeSource, column

_WINDOWS, _OF_TABLE, _KEY_EACH = 10_000, 10, 100
_ROWS, _BATCH = 400_000, 200
_COLUMNS = [column(1, "id", flag=3), column(2, "name", MysqlType.VARCHAR), column(3, "n", MysqlType.LONGLONG)]


def _asked(archive: Archive, where: Predicate) -> tuple[int, int]:
    """Changes and windows."""
    view = read_view(archive, since=archive.genesis().ts)
    asked = Asked(table="d.t", after=view.genesis.ts, upto=view.end, where=where)
    found = (each for each in changes(archive, view, asked) if isinstance(each, Changed))
    return sum(map(len, found)), len(view.windows)


def _many(root: Path) -> MadeSource:
    """Windows of one transaction: of the table every tenth, of the key every hundredth."""
    source = MadeSource(root)
    source.create_table("t", _COLUMNS)
    source.create_table("other", [column(1, "id", flag=3)])
    with source.txn() as t:
        t.insert("t", id=0, name=b"the row", n=0)
    source.genesis()
    for number in range(1, _WINDOWS + 1):
        with source.txn() as t:
            if number % _KEY_EACH == 0:
                t.update("t", 0, n=number)
            if number % _OF_TABLE == 0:
                for at in range(20):
                    t.insert("t", id=number * 100 + at, name=b"x" * 40, n=at)
            else:
                t.insert("other", id=number)
        source.cut(pumps=1)
    while extend_index(source.archive):
        pass
    return source


def bench_key(work: Path, runs: int) -> Result:
    """One key out of 10,000 windows, of which snapshots keep an index; against the same without a key."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else work) as folder:
        source, samples = _many(Path(folder)), []
        whole = Predicate(keys=("0",), exact=True)
        baseline = 0.0
        for where, times in ((whole, 1), (whole, runs), (ALL_ROWS, 1)):
            for _ in range(times):
                gc.collect()
                archive = Archive.alone(source.settings)
                with Watch() as watch:
                    found, windows = _asked(archive, where)
                if where is ALL_ROWS:
                    baseline = windows / watch.seconds
                elif times == runs:
                    if found != _WINDOWS // _KEY_EACH:
                        raise AssertionError(found)
                    samples.append(watch.sample(windows, seconds=watch.seconds))
    return Result("changes_key", "windows/s", samples, "all changes of the table", baseline)


def bench_all(work: Path, runs: int) -> Result:
    """All changes of a table, typed as Spark gets them; against one Python object a row."""
    source = MadeSource(work / "archive")
    table_id = source.create_table("t", _COLUMNS)
    source.genesis()
    info = source.tables["t"].info

    def values(first: int) -> bytes:
        from pumphouse.codec import row

        builder = payload.PrewriteValueBuilder(source.schema_version)
        for id_ in range(first, first + _BATCH):
            builder.insert(table_id, row.encode_insert(info, {1: id_, 2: b"x" * 100, 3: id_}, handle=id_))
        return builder.build()

    source.cut_of((values(at) for at in range(0, _ROWS, _BATCH)), _ROWS // _BATCH)
    archive = Archive.alone(source.settings)
    view = read_view(archive, since=archive.genesis().ts)
    asked = Asked(table="d.t", after=view.genesis.ts, upto=view.end)
    tables = tables_of(view.timeline, asked)
    reader = ChangeReader(view.timeline, asked, tables)
    shape = ChangeTable.of(forms_between(view.timeline, asked, tables))
    samples = []
    for _ in range(runs):
        with Watch() as watch:
            rows = sum(shape.batch(each).num_rows for each in reader.read(archive.store, reader.pieces(view)))
        samples.append(watch.sample(rows))
    began, objects = time.perf_counter(), 0
    for each in reader.read(archive.store, reader.pieces(view)):
        objects += len(each.new.to_pylist()) + len(each.old.to_pylist())
        if objects > _ROWS // 4:
            break
    return Result("changes_all", "rows/s", samples, "an object a row", objects / 2 / (time.perf_counter() - began))


BENCHES: dict[str, Callable[[Path, int], Result]] = {"changes_key": bench_key, "changes_all": bench_all}
