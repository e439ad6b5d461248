"""Reading tables of a real MariaDB: pages by key, the server's own limits, values as binlogs spell them, the wrong server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from pumphouse.dump.objects import read_objects
from pumphouse.dump.rows import text_columns
from pumphouse.dump.source import execute, require_primary, session
from pumphouse.dump.table import TableReader
from pumphouse.errors import ConfigError, SourceFailed, SourceHeld
from pumphouse.loader.state import PARTS_TASK, parts_schema
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import ColumnFlag, MysqlType, TableInfo
from pumphouse.model.tso import Tso
from pumphouse.mysql import DUMP
from pumphouse.schema.ident import elements_of, literal
from pumphouse.schema.versions import TableVersion
from pumphouse.settings import SourceSettings, TargetSettings
from tests.support import mariadb
from tests.support.kind import is_mysql
from tests.support.madearchive import column, index, table_info
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("A5")


@pytest.fixture(scope="module")
def source() -> Iterator[SourceSettings]:
    with mariadb.in_memory() as server:
        yield mariadb.as_source(server)


@pytest.fixture
def app(source: SourceSettings) -> Iterator[Connection[Any]]:
    connection = pymysql.connect(
        host=source.host, port=source.port, user=source.user, password=source.password.get_secret_value(),
        autocommit=True,
    )  # fmt: skip
    with connection:
        execute(connection, "CREATE DATABASE d")
        execute(connection, "USE d")
        yield connection
        execute(connection, "DROP DATABASE d")


def version(columns: list[dict[str, Any]], *key: str, length: int = -1) -> TableVersion:
    """Table d.t with a unique key over these columns, or so much of each."""
    at = {c["name"]["O"]: offset for offset, c in enumerate(columns)}
    indexes = [index(1, "k", *((name, at[name]) for name in key), unique=True)] if key else None
    for part in (indexes or [{"idx_cols": []}])[0]["idx_cols"]:
        part["length"] = length
    info = TableInfo.from_dict(table_info(7, "t", columns, pk_is_handle=False, index_info=indexes))
    return TableVersion(db="d", table=info, schema_version=1, commit_ts=Tso(1), job_id=1)


def pages(source: SourceSettings, reader: TableReader, size: int) -> list[dict[str, Any]]:
    """The whole table, page by page."""
    found, after = [], None
    with session(source) as connection:
        while True:
            batches = list(text_columns(connection, reader.select(after, size)))
            rows = [row for batch in batches for row in reader.convert(batch).to_pylist()]
            found += rows
            if len(rows) < size:
                return found
            after = reader.key_of_last(batches[-1])


NOT_NULL = int(ColumnFlag.NOT_NULL)


def test_long_keys_that_begin_alike_are_all_read(source: SourceSettings, app: Connection[Any]) -> None:
    execute(
        app, "CREATE TABLE t (u TEXT CHARACTER SET latin1 COLLATE latin1_bin NOT NULL, n INT, UNIQUE KEY (u(2000)))"
    )
    with app.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO t VALUES (%s, %s)", [("x" * 1200 + f"{n * 7919 % 300:04d}", n) for n in range(300)]
        )
    reader = TableReader.of(version([column(1, "u", MysqlType.BLOB, flag=NOT_NULL), column(2, "n")], "u", length=2000))
    assert sorted(row["n"] for row in pages(source, reader, 20)) == list(range(300))


@pytest.mark.skipif(is_mysql(), reason="a MySQL has no unique key over a TEXT without a length")
@pytest.mark.parametrize(("kind", "tp"), [("TEXT", MysqlType.BLOB), ("VARCHAR(30000)", MysqlType.VARCHAR)])
def test_keys_that_a_sort_takes_for_equal_are_read_whole(
    source: SourceSettings, app: Connection[Any], kind: str, tp: MysqlType
) -> None:
    execute(app, f"CREATE TABLE t (u {kind} CHARACTER SET latin1 NOT NULL, n INT, UNIQUE KEY (u))")
    with app.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, %s)", [("x" * 20_000 + f"{7 * n % 9}", n) for n in range(9)])
    columns = [column(1, "u", tp, flag=NOT_NULL, flen=30_000 if tp is MysqlType.VARCHAR else -1), column(2, "n")]
    reader = TableReader.of(version(columns, "u"))
    with session(source) as connection:
        whole = [row for b in text_columns(connection, reader.select()) for row in reader.convert(b).to_pylist()]
    rows = pages(source, reader, 2) if reader.key else whole
    assert sorted(row["n"] for row in rows) == list(range(9))


def test_a_composite_key_of_many_types_is_read_once_each(source: SourceSettings, app: Connection[Any]) -> None:
    execute(
        app,
        "CREATE TABLE t (e ENUM('b','a','c') NOT NULL, s VARCHAR(10) COLLATE utf8mb4_general_ci NOT NULL, f FLOAT NOT NULL,"
        " n INT, UNIQUE KEY (e, s, f))",
    )
    rows = [(e, s, f / 10) for e in ("b", "a", "c") for s in ("", "A b", "ä", "z'") for f in range(5)]
    with app.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, %s, %s, %s)", [(*row, n) for n, row in enumerate(rows)])
    columns = [
        column(1, "e", MysqlType.ENUM, flag=NOT_NULL, elems=["b", "a", "c"]),
        column(2, "s", MysqlType.VARCHAR, flag=NOT_NULL, collate="utf8mb4_general_ci"),
        column(3, "f", MysqlType.FLOAT, flag=NOT_NULL),
        column(4, "n"),
    ]
    reader = TableReader.of(version(columns, "e", "s", "f"))
    for size in (1, 3, 7):
        assert sorted(row["n"] for row in pages(source, reader, size)) == list(range(len(rows)))


def test_a_limit_of_the_server_cuts_nothing(source: SourceSettings, app: Connection[Any]) -> None:
    execute(app, "CREATE TABLE t (n INT)")
    execute(app, f"INSERT INTO t VALUES {','.join(f'({n})' for n in range(300))}")
    execute(app, "SET GLOBAL sql_select_limit = 100")
    try:
        with session(source) as connection:
            reader = TableReader.of(version([column(1, "n")]))
            assert sum(batch.num_rows for batch in text_columns(connection, reader.select())) == 300
    finally:
        execute(app, "SET GLOBAL sql_select_limit = DEFAULT")


def test_values_are_spelled_as_binlogs_spell_them(source: SourceSettings, app: Connection[Any]) -> None:
    execute(app, "CREATE TABLE t (d DECIMAL(10,2) ZEROFILL, j JSON)")
    execute(app, """INSERT INTO t VALUES (1.5, '{"b":1,"aa":[1,2.0]}')""")
    flag = int(ColumnFlag.ZEROFILL | ColumnFlag.UNSIGNED)
    columns = [column(1, "d", MysqlType.NEWDECIMAL, flag=flag, flen=10, decimal=2), column(2, "j", MysqlType.JSON)]
    reader = TableReader.of(version(columns))
    with session(source) as connection:
        (batch,) = text_columns(connection, reader.select())
        assert reader.convert(batch).to_pylist() == [{"d": "1.50", "j": '{"aa": [1, 2], "b": 1}'}]


@pytest.mark.mariadb("a MySQL has none of these numbers and names")
@pytest.mark.row("A3")
def test_json_that_no_binlog_can_say_goes_through_as_it_is(source: SourceSettings, app: Connection[Any]) -> None:
    texts = ['{"n": 123456789012345678901234567890}', '{"a": 1, "a": 2}', "1E400", "[1.]"]
    execute(app, "CREATE TABLE t (j JSON)")
    with app.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s)", [(text,) for text in texts])
    reader = TableReader.of(version([column(1, "j", MysqlType.JSON)]))
    with session(source) as connection:
        (batch,) = text_columns(connection, reader.select())
        assert [row["j"] for row in reader.convert(batch).to_pylist()] == texts


def test_a_ddl_that_the_history_does_not_know_is_seen(app: Connection[Any]) -> None:
    assert app.open
    columns = [column(1, "n"), column(2, "e", MysqlType.ENUM, elems=["small", "it's"])]
    reader = TableReader.of(version(columns))
    assert reader.differs({"n": "int(11)", "e": "enum('small','it''s')"}) == ""
    assert "elements" in reader.differs({"n": "int(11)", "e": "enum('tiny','small','it''s')"})
    assert "more" in reader.differs({"n": "int(11)", "e": "enum('small','it''s')", "more": "int(11)"})


@pytest.mark.row("A3", "S1")
def test_elements_are_what_the_server_says_whatever_it_escapes(source: SourceSettings, app: Connection[Any]) -> None:
    elements = ("a", "C:\\dir", "x\ny", "a\tb", "a\0b", "a\x1ab", "a\rb", "it's", '"x"', "100%", "é中")
    elements = tuple(each for each in elements if not (is_mysql() and "\0" in each))  # a MySQL cuts elements at a NUL
    listed = ",".join(map(literal, elements))
    execute(app, f"CREATE TABLE t (e ENUM({listed}), s SET({listed})) CHARACTER SET utf8mb4")
    with app.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = 'd' AND table_name = 't'"
        )
        found = {str(name): str(kind) for name, kind in cursor.fetchall()}
    columns = [
        column(1, "e", MysqlType.ENUM, elems=list(elements)), column(2, "s", MysqlType.SET, elems=list(elements)),
    ]  # fmt: skip
    assert TableReader.of(version(columns)).differs(found) == ""
    assert [elements_of(kind) for kind in found.values()] == [elements, elements]


def test_rows_of_16_mib_and_a_connection_that_ends_among_them(source: SourceSettings, app: Connection[Any]) -> None:
    execute(app, "SET GLOBAL max_allowed_packet = 67108864")
    execute(app, "CREATE TABLE t (n INT, b LONGBLOB)")
    sizes = [1, 0xFFFFFF - 20, 0xFFFFFF, 20_000_000, 5]
    with session(source) as connection:
        for n, size in enumerate(sizes):
            execute(connection, f"INSERT INTO d.t VALUES ({n}, REPEAT('x', {size}))")
        found = [
            (int(n), len(b))
            for batch in text_columns(connection, "SELECT n, b FROM d.t ORDER BY n")
            for n, b in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        ]
        assert found == list(enumerate(sizes))
    with pytest.raises(SourceFailed), session(source) as connection:
        stream = text_columns(connection, "SELECT n, b FROM d.t ORDER BY n")
        next(stream)
        execute(app, f"KILL {connection.thread_id()}")  # type: ignore[no-untyped-call]
        list(stream)


def test_a_table_that_stays_locked_is_refused_with_what_locks_it(
    source: SourceSettings, app: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DDL waits for an XA transaction whose session has ended. A MariaDB leaves the table out of its lists then."""
    monkeypatch.setitem(DUMP.more, "lock_wait_timeout", "1")  # type: ignore[arg-type]
    execute(app, "CREATE TABLE t (n INT PRIMARY KEY)")
    with session(source) as connection:
        for statement in ("XA START 'a b', 'c', 3", "INSERT INTO d.t VALUES (1)", "XA END 'a b', 'c', 3"):
            execute(connection, statement)
        execute(connection, "XA PREPARE 'a b', 'c', 3")
    xid = "X'612062',X'63',3" if is_mysql() else "'a b','c',3"
    listed = "SELECT column_name FROM information_schema.columns WHERE table_schema = 'd'"
    locks = rf"session \d+ runs `TRUNCATE d.t` for \d+ s; XA transactions are prepared \({xid}\): `XA COMMIT"
    with session(source) as changing, ThreadPoolExecutor(1) as pool:
        execute(changing, "SET lock_wait_timeout = 600, innodb_lock_wait_timeout = 600")
        ddl = pool.submit(execute, changing, "TRUNCATE d.t")
        try:
            eventually(lambda: any("TRUNCATE" in str(row) for row in execute(app, "SHOW PROCESSLIST")))
            reads: list[Callable[[Connection[Any]], object]] = [lambda held: execute(held, "SELECT n FROM d.t")]
            if not is_mysql():
                reads += [lambda held: execute(held, listed), lambda held: read_objects(held, ())]
            for each in reads:
                with pytest.raises(SourceHeld, match=locks), session(source) as connection:
                    each(connection)
            with session(source) as connection:  # whatever tables there are
                require_primary(connection, source)
        finally:
            execute(app, f"XA COMMIT {xid}")
            ddl.result(60)
    with session(source) as connection:
        assert execute(connection, listed)


def test_a_replica_is_no_source_whatever_its_connection_is_called(source: SourceSettings, app: Connection[Any]) -> None:
    name = "FOR CHANNEL 'east'" if is_mysql() else "'east'"
    if is_mysql():
        execute(app, f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1 {name}")
    else:
        execute(app, f"CHANGE MASTER {name} TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1, MASTER_USER = 'nobody'")
    try:
        with (
            session(source) as connection,
            pytest.raises(ConfigError, match="is a replica: what its primary") as refused,
        ):
            require_primary(connection, source)
        assert "RESET REPLICA ALL" in refused.value.hint
    finally:
        execute(app, f"RESET REPLICA ALL {name}" if is_mysql() else f"RESET SLAVE {name} ALL")


def test_a_target_of_loads_is_no_source(source: SourceSettings, app: Connection[Any]) -> None:
    with session(source) as connection:
        execute(app, "CREATE DATABASE theirs")
        execute(app, "CREATE TABLE theirs.checkpoint (n INT)")
        require_primary(connection, source)
        plain = {name: value for name, value in dict(source).items() if name in TargetSettings.model_fields}
        with TargetConnection.open(TargetSettings.model_validate({**plain, "schema_name": "state"})) as target:
            target.create_tables()
        try:
            with pytest.raises(ConfigError, match=r"has the schema state, .* target of loads"):
                require_primary(connection, source)
        finally:
            execute(app, "DROP DATABASE theirs")
            execute(app, "DROP DATABASE state")


@pytest.mark.row("R3")
def test_a_source_on_which_tables_were_being_restored_is_still_the_source(
    source: SourceSettings, app: Connection[Any]
) -> None:
    plain = {name: value for name, value in dict(source).items() if name in TargetSettings.model_fields}
    own = parts_schema("pumphouse")
    with TargetConnection.open(TargetSettings.model_validate({**plain, "schema_name": own})) as target:
        target.create_tables()
        row = f"INSERT INTO {target.table('checkpoint')} VALUES (%s, 1, 'incomplete', '', 1, 0, NOW(6))"
        try:
            with session(source) as connection:
                require_primary(connection, source)  # begun, and killed at once
                target.execute(row, (PARTS_TASK,))
                require_primary(connection, source)
                target.execute(row, ("main",))
                with pytest.raises(ConfigError, match=f"has the schema {own}, .* target of loads"):
                    require_primary(connection, source)
        finally:
            execute(app, f"DROP DATABASE {own}")
