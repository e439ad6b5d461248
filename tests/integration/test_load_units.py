"""Units on a real MariaDB: each is applied once, exactly as it is, or its rows are named."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from pumphouse.errors import FenceLost, LoadError, RowRejected, TargetBusy, TargetUnavailable
from pumphouse.loader import fence
from pumphouse.loader.columns import Column
from pumphouse.loader.keyless import COUNT
from pumphouse.loader.plan import UnitId
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.unit import Claim, UnitHead, apply_units
from pumphouse.model.table import MysqlType
from pumphouse.mysql import ServerConnection
from pumphouse.settings import TargetSettings
from tests.support import mariadb
from tests.support.kind import is_mysql
from tests.support.loading import drop_all
from tests.support.waiting import eventually


def apply_unit(connection: TargetConnection, claim: Claim, head: UnitHead, batches: Sequence[pa.RecordBatch]) -> bool:
    """One unit; whether it was applied now."""
    (done,) = apply_units(connection, claim, [(head, batches)])
    return done


@pytest.fixture
def target(server: TargetSettings) -> Iterator[tuple[TargetConnection, Claim]]:
    with TargetConnection.open(server) as connection:
        drop_all(connection)
    with mariadb.owned(server) as (connection, owner):
        connection.execute("CREATE DATABASE d")
        yield connection, Claim(task="main", plan=1, fence=owner.number)


def head(phase: int, *, key: tuple[str, ...] = ("id",), bucket: int = 0, epoch: int = 0) -> UnitHead:
    return UnitHead(unit=UnitId(epoch, phase, 7, bucket), db="d", table="t", key=key)


def batch(**columns: tuple[int, pa.DataType, list[object]]) -> pa.RecordBatch:
    """Columns whose names begin with b hold bytes, where they are strings."""
    schema = pa.schema(
        [
            Column(n, int(tp), binary=n[0] == "b" and pa.types.is_large_binary(kind)).field(kind)
            for n, (tp, kind, _) in columns.items()
        ]
    )
    return pa.RecordBatch.from_arrays([pa.array(values, kind) for _, kind, values in columns.values()], schema=schema)


def ids(*values: int) -> pa.RecordBatch:
    return batch(id=(MysqlType.LONG, pa.int64(), list(values)))


@pytest.mark.mysql
@pytest.mark.row("L1")
def test_rows_arrive_whole_however_many_packets_they_take(
    target: tuple[TargetConnection, Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A packet's number is one byte: a server that meets another one than it waits for ends the connection.
    monkeypatch.setattr("pumphouse.loader.target.PACKET_BYTES", 100)
    connection, claim = target
    connection.execute("CREATE TABLE d.t (id BIGINT PRIMARY KEY)")
    for bucket, count in enumerate((10, 9_000)):
        rows = ids(*range(bucket << 20, (bucket << 20) + count))
        assert apply_unit(connection, claim, head(1, bucket=bucket), [rows])
    found = connection.query("SELECT COUNT(*), MIN(id), MAX(id), SUM(id >> 20) FROM d.t")
    assert found == [(9_010, 0, (1 << 20) + 8_999, 9_000)]


@pytest.mark.mysql
@pytest.mark.timeout(60)
@pytest.mark.row("L4")
def test_who_is_interrupted_amid_rows_ends_at_once_and_leaves_none(
    server: TargetSettings, target: tuple[TargetConnection, Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, claim = target
    connection.execute("CREATE TABLE d.t (id BIGINT PRIMARY KEY)")
    monkeypatch.setattr("pumphouse.loader.target.PACKET_BYTES", 100)
    send, sent = ServerConnection.write_rows, list[int]()

    def interrupted(self: ServerConnection, data: memoryview) -> None:
        sent.append(len(data))
        if len(sent) > 254:  # what comes next has number 0, as a new statement has
            raise KeyboardInterrupt
        send(self, data)

    monkeypatch.setattr(ServerConnection, "write_rows", interrupted)
    with TargetConnection.open(server) as worker, pytest.raises(KeyboardInterrupt):
        apply_unit(worker, claim, head(1), [ids(*range(10_000))])
    assert connection.value("SELECT COUNT(*) FROM d.t") == 0


@pytest.mark.mysql
@pytest.mark.row("L1", "L4")
def test_values_of_every_kind_arrive_as_they_are(target: tuple[TargetConnection, Claim]) -> None:
    connection, claim = target
    connection.execute(
        "CREATE TABLE d.t (id BIGINT UNSIGNED PRIMARY KEY, c VARCHAR(200), bl LONGBLOB, f FLOAT, db DOUBLE,"
        " e ENUM('a','b','2'), s SET('x','y'), bi BIT(64), y YEAR, d DATE, dt DATETIME(6), tm TIME(3), de DECIMAL(30,9),"
        " j JSON, ts TIMESTAMP(3) NULL)"
    )
    rng = np.random.default_rng(5)
    count = 500
    blobs = [rng.bytes(200) for _ in range(count)]
    floats = rng.standard_normal(count).astype(np.float32) * np.float32(1e20)
    doubles = rng.standard_normal(count) * 1e-200
    rows = batch(
        id=(MysqlType.LONGLONG, pa.uint64(), [(1 << 64) - 1 - i for i in range(count)]),
        c=(
            MysqlType.VARCHAR,
            pa.large_binary(),
            [f"nä\t\\{i}\n\0\\N".encode() if i % 5 else None for i in range(count)],
        ),
        bl=(MysqlType.LONG_BLOB, pa.large_binary(), blobs),
        f=(MysqlType.FLOAT, pa.float32(), list(floats)),
        db=(MysqlType.DOUBLE, pa.float64(), list(doubles)),
        # 0 is what TiDB stores for a value that is no element; a strict session refuses it in every usual way.
        e=(MysqlType.ENUM, pa.uint64(), [i % 4 for i in range(count)]),
        s=(MysqlType.SET, pa.uint64(), [i % 4 for i in range(count)]),
        bi=(MysqlType.BIT, pa.uint64(), [(1 << 63) + i for i in range(count)]),
        y=(MysqlType.YEAR, pa.int64(), [0 if i % 2 else 1999 for i in range(count)]),
        d=(MysqlType.DATE, pa.large_string(), ["0000-00-00" if i % 3 else "2026-02-00" for i in range(count)]),
        dt=(MysqlType.DATETIME, pa.large_string(), ["2026-11-21 07:30:00.123456"] * count),
        tm=(MysqlType.TIME, pa.large_string(), ["-838:59:59.000"] * count),
        de=(MysqlType.NEWDECIMAL, pa.large_string(), ["-123456789012345678901.123456789"] * count),
        j=(MysqlType.JSON, pa.large_string(), ['{"a": "x\\\\n\\"y\\""}'] * count),
        ts=(MysqlType.TIMESTAMP, pa.large_string(), ["2026-03-29 02:30:00.500"] * count),
    )
    assert apply_unit(connection, claim, head(1), [rows])
    found = connection.query(
        "SELECT id, c, bl, f + 0.0e0, db, e + 0, s + 0, bi + 0, y + 0, CAST(d AS CHAR), CAST(dt AS CHAR), CAST(tm AS CHAR),"
        " CAST(de AS CHAR), j, CAST(ts AS CHAR) FROM d.t ORDER BY id DESC"
    )
    want = rows.to_pydict()
    assert [r[0] for r in found] == want["id"]
    assert [None if r[1] is None else r[1].encode() for r in found] == want["c"]
    assert [r[2] for r in found] == want["bl"]
    assert [np.float32(r[3]) for r in found] == list(floats)
    for at, name in (
        (4, "db"),
        (5, "e"),
        (6, "s"),
        (7, "bi"),
        (8, "y"),
        (9, "d"),
        (10, "dt"),
        (11, "tm"),
        (12, "de"),
        (13, "j"),
        (14, "ts"),
    ):
        assert [r[at] for r in found] == want[name], name
    assert isinstance(connection.value("SELECT dt FROM d.t LIMIT 1").date(), date)


@pytest.mark.row("L6", "L2")
def test_a_unit_that_comes_again_changes_nothing_with_and_without_a_key(target: tuple[TargetConnection, Claim]) -> None:
    connection, claim = target
    connection.execute("CREATE TABLE d.t (id INT)")
    rows = ids(1, 1, 2)
    assert apply_unit(connection, claim, head(1, key=()), [rows])
    assert not apply_unit(connection, claim, head(1, key=()), [rows])
    assert connection.value("SELECT COUNT(*) FROM d.t") == 3


@pytest.mark.row("L6")
def test_a_twin_waits_for_the_first_and_then_skips(
    server: TargetSettings, target: tuple[TargetConnection, Claim]
) -> None:
    connection, claim = target
    connection.execute("CREATE TABLE d.t (id INT)")
    connection.execute("BEGIN")
    connection.execute("INSERT INTO pumphouse.applied VALUES ('main', 1, 0, 1, 7, 0, 3)")
    answers: list[bool] = []

    def twin() -> None:
        with TargetConnection.open(server) as other:
            answers.append(apply_unit(other, claim, head(1, key=()), [ids(1, 1, 2)]))

    thread = threading.Thread(target=twin)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    connection.execute("COMMIT")
    thread.join(60)
    assert answers == [False]
    assert connection.value("SELECT COUNT(*) FROM d.t") == 0


def copies(number: int) -> pa.RecordBatch:
    """Delete so many copies of the row 1."""
    return ids(1).append_column(pa.field(COUNT, pa.int64()), pa.array([number]))


@pytest.mark.row("L6")
def test_a_delete_without_a_key_that_comes_again_takes_no_second_copy(target: tuple[TargetConnection, Claim]) -> None:
    connection, claim = target
    connection.execute("CREATE TABLE d.t (id INT)")
    connection.execute("INSERT INTO d.t VALUES (1), (1), (1)")
    for done in (True, False, False):
        assert apply_unit(connection, claim, head(0, key=()), [copies(1)]) is done
        assert connection.value("SELECT COUNT(*) FROM d.t") == 2


@pytest.mark.row("L6")
def test_a_delete_without_a_key_that_runs_twice_at_once_waits_before_it_looks_at_a_row(
    server: TargetSettings, target: tuple[TargetConnection, Claim]
) -> None:
    connection, claim = target
    connection.execute("CREATE TABLE d.t (id INT)")
    connection.execute("INSERT INTO d.t VALUES (1), (1), (1)")
    answers: list[bool | Exception] = []
    # Whoever comes to the rows stands still there, with its transaction open.
    connection.execute("BEGIN")
    connection.query("SELECT * FROM d.t FOR UPDATE")

    def run() -> None:
        with TargetConnection.open(server) as other:
            try:
                answers.append(apply_unit(other, claim, head(0, key=()), [copies(1)]))
            except LoadError as error:
                answers.append(error)

    twins = [threading.Thread(target=run) for _ in range(2)]
    for each in twins:
        each.start()

    def running() -> list[str]:
        rows = connection.query(
            "SELECT info FROM information_schema.processlist WHERE info IS NOT NULL AND id <> CONNECTION_ID()"
        )
        return sorted(" ".join(str(text).split()[:3]) for (text,) in rows)

    stand = ["DELETE `d`.`t` FROM" if is_mysql() else "DELETE FROM `d`.`t`", "INSERT INTO `pumphouse`.`applied`"]
    eventually(lambda: running() == stand, what="one at the rows, the other at the first one's id")
    connection.execute("COMMIT")
    for each in twins:
        each.join(60)
    assert sorted(answers, key=repr) == [False, True]
    assert connection.query("SELECT id FROM d.t") == [(1,), (1,)]


@pytest.mark.row("L6")
def test_a_unit_of_an_earlier_owner_changes_nothing(
    server: TargetSettings, target: tuple[TargetConnection, Claim]
) -> None:
    connection, claim = target
    connection.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
    with TargetConnection.open(server) as other:
        with pytest.raises(TargetBusy) as busy:
            fence.acquire(other, run="second")
        assert "test" in str(busy.value)
        assert "pid" in busy.value.holder
        fence.acquire(other, run="second", take_over=True)
        with pytest.raises(FenceLost):
            apply_unit(other, claim, head(1), [ids(1)])
        assert other.value("SELECT COUNT(*) FROM d.t") == 0
        # Taking over ended the first owner's connection: it cannot go on with its DDL.
        with pytest.raises(TargetUnavailable):
            connection.value("SELECT 1")


@pytest.mark.row("L6")
@pytest.mark.parametrize("error", [None, RowRejected, OSError])
def test_a_run_that_has_ended_leaves_the_target_free_before_the_server_notices_its_close(
    server: TargetSettings,
    target: tuple[TargetConnection, Claim],
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception] | None,
) -> None:
    owner, _ = target
    owner.close()
    with TargetConnection.open(server) as other:
        with monkeypatch.context() as unnoticed:
            unnoticed.setattr(TargetConnection, "close", lambda _: None)
            with contextlib.suppress(RowRejected, OSError), TargetConnection.open(server, owner=True) as ended:
                fence.acquire(ended, run="first", take_over=True)
                if error is not None:
                    raise error("it failed")
        assert fence.acquire(other, run="second").run == "second"
        ended.close()


@pytest.mark.row("L6")
def test_the_same_run_takes_over_from_itself(server: TargetSettings, target: tuple[TargetConnection, Claim]) -> None:
    del target
    with TargetConnection.open(server) as again:
        assert fence.acquire(again, run="test").run == "test"


@pytest.mark.row("L6")
def test_a_run_that_stands_still_before_it_raised_the_fence_gives_way_to_itself_alone(
    server: TargetSettings, target: tuple[TargetConnection, Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, claim = target
    owner.close()
    with (
        TargetConnection.open(server) as still,
        TargetConnection.open(server) as other,
        TargetConnection.open(server) as again,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(fence, "_raise_fence", lambda *_, **__: None)
            fence.acquire(still, run="nightly", take_over=True)
        with pytest.raises(TargetBusy, match="unknown"):
            fence.acquire(other, run="second")
        assert fence.acquire(again, run="nightly").number == claim.fence + 1
        with pytest.raises(TargetUnavailable):
            still.value("SELECT 1")


@pytest.mark.row("L6")
def test_a_unit_of_an_owner_whose_tables_were_made_again_since_is_refused(
    server: TargetSettings, target: tuple[TargetConnection, Claim]
) -> None:
    owner, claim = target
    owner.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
    fence.release(owner)
    with TargetConnection.open(server) as old, TargetConnection.open(server, owner=True) as new:
        new.execute(f"DROP DATABASE {new.settings.schema_name}")
        new.create_tables()
        fence.acquire(new, run="later")
        with pytest.raises(FenceLost):
            apply_unit(old, claim, head(1), [ids(1)])
        assert old.value("SELECT COUNT(*) FROM d.t") == 0


@pytest.mark.row("L6")
@pytest.mark.parametrize("again", ["take over", "same run"])
def test_a_take_over_ends_a_unit_whose_host_has_died(
    server: TargetSettings, target: tuple[TargetConnection, Claim], again: str
) -> None:
    owner, claim = target
    with TargetConnection.open(server) as dead, TargetConnection.open(server, owner=True) as new:
        assert 0 < int(dead.value("SELECT @@wait_timeout")) <= 300
        assert int(new.value("SELECT @@wait_timeout")) > 86400
        dead.execute("BEGIN")
        fence.hold_shared(dead, claim.fence)
        owner.close()
        while new.value("SELECT IS_USED_LOCK(%s)", (fence.lock_name(server.schema_name),)) is not None:
            time.sleep(0.05)
        new.execute("SET innodb_lock_wait_timeout = 2")
        with (
            capture_logs() as said,
            pytest.raises(TargetBusy, match=rf"connection {dead.connection_id} of root") as busy,
        ):
            fence.acquire(new, run="another")
        assert str(dead.connection_id) in busy.value.holder
        (waited,) = (each for each in said if each["event"] == "waiting_for_session")
        assert f"connection {dead.connection_id} of root" in waited["session"]
        fence.release(new)
        new.execute("SET innodb_lock_wait_timeout = 1000")  # longer than this test may take
        raised = fence.acquire(new, run="test" if again == "same run" else "third", take_over=again == "take over")
        assert raised.number == claim.fence + 1
        with pytest.raises(TargetUnavailable):
            dead.execute("COMMIT")


@pytest.mark.row("L6")
@pytest.mark.parametrize("before", ["SELECT number", "INSERT INTO `pumphouse`.`applied`", "LOAD DATA", "COMMIT"])
def test_a_unit_that_stands_still_within_its_transaction_keeps_nobody_who_takes_over_waiting(
    server: TargetSettings, target: tuple[TargetConnection, Claim], monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    owner, claim = target
    owner.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
    standing, go_on = threading.Event(), threading.Event()
    answers: list[Exception] = []
    with TargetConnection.open(server) as still:

        def stops(call: Callable[..., Any]) -> Callable[..., Any]:
            def stopping(on: TargetConnection, statement: str, *args: Any) -> Any:
                if on is still and statement.startswith(before):
                    standing.set()
                    go_on.wait(300)
                return call(on, statement, *args)

            return stopping

        for name in ("execute", "query", "load_local"):
            monkeypatch.setattr(TargetConnection, name, stops(getattr(TargetConnection, name)))

        def run() -> None:
            try:
                apply_unit(still, claim, head(1), [ids(1)])
            except LoadError as error:
                answers.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert standing.wait(60)
        with TargetConnection.open(server, owner=True) as new, TargetConnection.open(server) as worker:
            for each in (new, worker):
                each.execute("SET innodb_lock_wait_timeout = 3")
            raised = fence.acquire(new, run="another", take_over=True)
            assert apply_unit(worker, Claim(task="main", plan=1, fence=raised.number), head(1), [ids(1)])
            go_on.set()
            thread.join(60)
            assert [type(each) for each in answers] in ([FenceLost], [TargetUnavailable])
            assert new.query("SELECT id FROM d.t") == [(1,)]


@pytest.mark.row("L6")
def test_units_of_one_run_do_not_take_turns_at_the_fence(
    server: TargetSettings, target: tuple[TargetConnection, Claim]
) -> None:
    _, claim = target
    with TargetConnection.open(server) as a, TargetConnection.open(server) as b:
        for each in (a, b):
            each.execute("BEGIN")
            each.execute("SET innodb_lock_wait_timeout = 2")
            fence.hold_shared(each, claim.fence)
        for each in (a, b):
            each.execute("ROLLBACK")


@pytest.mark.row("L4")
@pytest.mark.parametrize(
    ("column", "values", "named"),
    [
        ("VARCHAR(3)", [b"abc", b"abcdef"], "2"),
        ("VARCHAR(9) NOT NULL", [b"abc", None], "2"),
        ("TINYINT", [b"1", b"999"], "2"),
        ("VARCHAR(9) COLLATE utf8mb4_general_ci UNIQUE", [b"abc", b"ABC "], "2"),
    ],
)
def test_rows_that_the_target_would_bend_or_merge_are_named(
    target: tuple[TargetConnection, Claim], column: str, values: list[bytes | None], named: str
) -> None:
    connection, claim = target
    connection.execute(f"CREATE TABLE d.t (id INT PRIMARY KEY, c {column})")
    rows = batch(id=(MysqlType.LONG, pa.int64(), [1, 2]), c=(MysqlType.VARCHAR, pa.large_binary(), values))
    with pytest.raises(RowRejected) as rejected:
        apply_unit(connection, claim, head(1), [rows])
    assert rejected.value.table == "d.t"
    assert rejected.value.rows == [{"id": named}]
    assert connection.value("SELECT COUNT(*) FROM d.t") == 0
    assert connection.value("SELECT COUNT(*) FROM pumphouse.applied") == 0


@pytest.mark.row("L4")
def test_a_row_that_removes_another_rows_unique_value_is_found_among_many(
    target: tuple[TargetConnection, Claim],
) -> None:
    connection, claim = target
    connection.execute("CREATE TABLE d.t (id INT PRIMARY KEY, c VARCHAR(9) UNIQUE)")
    connection.execute("INSERT INTO d.t VALUES (9000, 'v777')")
    rows = batch(
        id=(MysqlType.LONG, pa.int64(), list(range(1000))),
        c=(MysqlType.VARCHAR, pa.large_binary(), [b"v%d" % i for i in range(1000)]),
    )
    with pytest.raises(RowRejected) as rejected:
        apply_unit(connection, claim, head(1), [rows])
    assert rejected.value.rows == [{"id": "777"}]
    assert connection.query("SELECT * FROM d.t") == [(9000, "v777")]


@pytest.mark.row("L4", "L2")
def test_deletes_by_key_take_what_is_there_and_forgive_what_is_not(target: tuple[TargetConnection, Claim]) -> None:
    connection, claim = target
    connection.execute("CREATE TABLE d.t (id INT, c VARCHAR(20) COLLATE utf8mb4_bin, PRIMARY KEY (id, c))")
    connection.execute("INSERT INTO d.t VALUES (1,'a'),(1,'A'),(2,'b')")
    keys = batch(
        id=(MysqlType.LONG, pa.int64(), [1, 2, 5]), c=(MysqlType.VARCHAR, pa.large_binary(), [b"a", b"x", b"y"])
    )
    assert apply_unit(connection, claim, head(0, key=("id", "c")), [keys])
    assert connection.query("SELECT * FROM d.t ORDER BY 1") == [(1, "A"), (2, "b")]


@pytest.mark.mysql
@pytest.mark.row("L6")
def test_a_table_without_a_key_loses_exactly_so_many_copies_compared_byte_by_byte(
    target: tuple[TargetConnection, Claim],
) -> None:
    connection, claim = target
    connection.execute("CREATE TABLE d.t (a INT, c VARCHAR(20) COLLATE utf8mb4_general_ci, f FLOAT, b BLOB)")
    connection.execute(
        "INSERT INTO d.t VALUES (1,'x',1.1,NULL),(1,'x',1.1,NULL),(1,'x',1.1,NULL),(1,'X',1.1,NULL),(1,'x ',1.1,NULL),"
        "(NULL,NULL,NULL,NULL),(NULL,NULL,NULL,NULL),(2,'y',2.2,x'00ff')"
    )
    gone = batch(
        a=(MysqlType.LONG, pa.int64(), [1, None, 2]),
        c=(MysqlType.VARCHAR, pa.large_binary(), [b"x", None, b"y"]),
        f=(MysqlType.FLOAT, pa.float32(), [1.1, None, 2.2]),
        b=(MysqlType.BLOB, pa.large_binary(), [None, None, b"\0\xff"]),
    ).append_column(pa.field(COUNT, pa.int64()), pa.array([2, 1, 1]))
    assert apply_unit(connection, claim, head(0, key=()), [gone])
    assert sorted(connection.query("SELECT a, c FROM d.t"), key=repr) == sorted(
        [(1, "x"), (1, "X"), (1, "x "), (None, None)], key=repr
    )
    with pytest.raises(RowRejected, match="lacks 2 of the rows"):
        apply_unit(connection, claim, head(0, key=(), epoch=1), [gone])
    assert connection.value("SELECT COUNT(*) FROM d.t") == 4


def rows_read(connection: TargetConnection) -> int:
    """Rows that this session read in the order of a scan."""
    return int(connection.query("SHOW SESSION STATUS LIKE 'Handler_read_rnd_next'")[0][1])


@pytest.mark.row("L4", "L6")
def test_a_table_without_a_key_is_read_once_for_all_of_its_units_and_each_is_applied_once(
    target: tuple[TargetConnection, Claim],
) -> None:
    connection, claim = target
    connection.execute("CREATE TABLE d.t (id INT, c VARCHAR(20))")
    values = ",".join(f"({n // 2},'{'x' * (n % 7)}')" for n in range(1, 20_001))
    connection.execute(f"INSERT INTO d.t VALUES {values}")
    once = 1.1 * 20_000 * (2 if is_mysql() else 1)  # MySQL counts the rows before it deletes them

    def gone(bucket: int, epoch: int) -> tuple[UnitHead, list[pa.RecordBatch]]:
        """Nine rows, one copy of each."""
        numbers = [1000 * (bucket + 1) + 100 * epoch + n for n in range(9)]
        rows = batch(
            id=(MysqlType.LONG, pa.int64(), numbers),
            c=(MysqlType.VARCHAR, pa.large_binary(), [b"x" * (2 * n % 7) for n in numbers]),
        )
        return head(0, key=(), bucket=bucket, epoch=epoch), [rows.append_column(COUNT, pa.array([1] * 9))]

    def left() -> int:
        return int(connection.value("SELECT COUNT(*) FROM d.t"))

    before = rows_read(connection)
    assert apply_unit(connection, claim, *gone(0, 0))
    assert rows_read(connection) - before < once
    assert left() == 20_000 - 9

    before = rows_read(connection)
    units = [gone(bucket, 1) for bucket in range(4)]
    assert apply_units(connection, claim, units) == [True] * 4
    assert rows_read(connection) - before < once
    assert left() == 20_000 - 5 * 9
    assert connection.value("SELECT COUNT(*) FROM pumphouse.applied") == 5

    assert apply_units(connection, claim, units) == [False] * 4
    assert left() == 20_000 - 5 * 9
    # One of them was applied by a twin.
    units = [gone(bucket, 2) for bucket in range(3)]
    assert apply_unit(connection, claim, *units[1])
    assert apply_units(connection, claim, units) == [True, False, True]
    assert left() == 20_000 - 8 * 9


@pytest.mark.row("L4", "L6")
def test_rows_without_a_key_go_and_change_where_columns_have_on_update_current_timestamp(
    target: tuple[TargetConnection, Claim],
) -> None:
    connection, claim = target
    connection.execute(
        "CREATE TABLE d.t (a INT, ts TIMESTAMP NULL ON UPDATE CURRENT_TIMESTAMP,"
        " ts6 TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),"
        " dt DATETIME DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,"
        " dt3 DATETIME(3) NULL ON UPDATE CURRENT_TIMESTAMP(3))"
    )

    def rows(*values: tuple[int | None, str | None, str, str | None, str | None]) -> pa.RecordBatch:
        a, ts, ts6, dt, dt3 = (list(each) for each in zip(*values, strict=True))
        return batch(
            a=(MysqlType.LONG, pa.int64(), a),
            ts=(MysqlType.TIMESTAMP, pa.large_string(), ts),
            ts6=(MysqlType.TIMESTAMP, pa.large_string(), ts6),
            dt=(MysqlType.DATETIME, pa.large_string(), dt),
            dt3=(MysqlType.DATETIME, pa.large_string(), dt3),
        )

    full = (1, "2026-03-29 02:30:00", "2026-03-29 02:30:00.123456", "2001-01-01 00:00:00", "2026-11-21 07:30:00.500")
    nulls = (1, None, "2026-03-29 02:30:00.000001", None, None)
    zero = (None, "0000-00-00 00:00:00", "0000-00-00 00:00:00.000000", "0000-00-00 00:00:00", None)
    later = (2, "2026-04-01 00:00:00", "2026-04-01 00:00:00.654321", None, "2026-04-01 00:00:00.001")
    assert apply_unit(connection, claim, head(1, key=()), [rows(full, full, full, nulls, nulls, zero)])
    gone = rows(full, nulls, zero).append_column(pa.field(COUNT, pa.int64()), pa.array([2, 1, 1]))
    assert apply_unit(connection, claim, head(0, key=(), epoch=1), [gone])
    assert apply_unit(connection, claim, head(1, key=(), epoch=1), [rows(later)])
    found = connection.query(
        "SELECT a, CAST(ts AS CHAR), CAST(ts6 AS CHAR), CAST(dt AS CHAR), CAST(dt3 AS CHAR) FROM d.t"
    )
    assert sorted(found, key=repr) == sorted([full, nulls, later], key=repr)
