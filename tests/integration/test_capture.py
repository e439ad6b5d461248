"""`pumphouse capture` on real processes: plain SQL writers, DDL among them, kills of every part."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from pumphouse.capture import passed
from pumphouse.capture.passed import waiter
from pumphouse.errors import BinlogError, ConversionUnknown, LoadError, RestoreError, WindowHeld
from pumphouse.executor import build, executor, places
from pumphouse.parts import Parts
from pumphouse.registry.base import CaptureState
from pumphouse.restore.parts import Chosen
from pumphouse.runs import restore, restore_parts
from tests.support import capturing, formats, mariadb
from tests.support.capturedstack import CapturedStack, as_json, captured_stack
from tests.support.kind import is_mysql

pytestmark = pytest.mark.timeout(600)


@pytest.mark.mysql
@pytest.mark.row("Q1", "Q2", "Q3")
def test_what_plain_sql_writes_reaches_a_target() -> None:
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        stack.run("CREATE DATABASE shop")
        stack.run(
            "CREATE TABLE orders"
            " (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(40), price DECIMAL(10,2), at DATETIME(3))",
            "INSERT INTO orders (name, price, at) VALUES ('a', 1.5, NOW(3)), ('ä', -2.25, '2001-01-01'), (NULL, 1, NULL)",
            db="shop",
        )
        stack.begin()
        stack.run(
            "UPDATE orders SET name = 'b' WHERE id = 1",
            "ALTER TABLE orders ADD COLUMN city VARCHAR(20) NOT NULL DEFAULT 'Ulm'",
            "INSERT INTO orders (name, city) VALUES ('c', 'Bonn')",
            "RENAME TABLE orders TO sales",
            "DELETE FROM sales WHERE id = 2",
            db="shop",
        )
        stack.require_equal()
        stack.run("TRUNCATE TABLE sales", "INSERT INTO sales (name) VALUES ('new')", db="shop")
        stack.stop_capture()
        stack.run("INSERT INTO sales (name) VALUES ('while it was down')", db="shop")
        stack.start_capture()
        stack.require_equal()


@pytest.mark.mariadb("it writes under GTID domains")
@pytest.mark.row("Q2", "Q3")
def test_a_lost_journal_knows_the_schema_by_the_last_that_was_decided() -> None:
    """Statements that publish nothing are on no Pump: here those of a domain of its own, before one that is."""
    with mariadb.directory_in_memory() as directory, captured_stack(directory, without=["shop.left_*"]) as stack:
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)", "INSERT INTO shop.a VALUES (1)")
        stack.begin()
        stack.captured()
        said = stack.capture_record()
        stack.run(
            "SET gtid_domain_id = 7",
            "CREATE TABLE shop.left_out (id INT PRIMARY KEY)",
            "SET gtid_domain_id = 0",
            "ALTER TABLE shop.a ADD COLUMN b INT NOT NULL DEFAULT 3",
            "INSERT INTO shop.a VALUES (2, 5)",
        )
        stack.captured()
        stack.kill_capture()
        stack.lose_journal()
        # As if it had been killed before it told the cluster of them.
        told = {name: getattr(said, name) for name in ("gtid", "start_ts", "commit_ts", "moment", "transactions")}
        stack.cluster.update_capture("main", lambda found: found and replace(found, **told))
        stack.run("UPDATE shop.a SET b = 6 WHERE id = 2", "INSERT INTO shop.a VALUES (3, 7)")
        stack.start_capture()
        stack.captured()
        stack.stop_capture()
        # The table is known as it is, for its statement was not read again.
        stack.config.write_text(stack.config.read_text().replace("shop.left_*", "shop.others"))
        stack.start_capture()
        stack.run("INSERT INTO shop.left_out VALUES (1)")
        stack.require_equal()


@pytest.mark.mariadb("its binlog has no metadata at all")
@pytest.mark.row("Q1", "Q2")
def test_two_at_once_a_lost_journal_and_a_source_that_is_not_ready_are_refused() -> None:
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)", "INSERT INTO shop.a VALUES (1)")
        stack.begin()
        assert "another process uses" in stack.pumphouse("capture", "run").stderr
        elsewhere = stack.pumphouse("--set", f"capture.directory={directory / 'd'}", "capture", "run")
        assert "CaptureFenced" in elsewhere.stderr, elsewhere.stderr
        stack.captured()
        stack.stop_capture()
        (directory / "c" / "journal").rename(directory / "lost")
        stack.pumps[0].stop()
        for _ in range(2):  # the first one has not made it a new one
            gone = stack.pumphouse("capture", "run")
            assert stack.pumps[0].node_id in gone.stderr, gone.stderr
            assert "every Pump has to say what it has" in gone.stderr, gone.stderr
        stack.pumps[0].start()
        (shown,) = as_json(stack.pumphouse("capture", "status", "--json"))
        formats.check("captures-output", [shown])
        assert (shown["state"], stack.pumps[0].node_id in shown["reason"]) == ("failed", True)
        whole = stack.pumphouse("status")
        assert "capture main of" in whole.stdout, whole.stdout
        stack.run(
            "INSERT INTO shop.a VALUES (2)", "SET GLOBAL binlog_row_metadata = NO_LOG, GLOBAL binlog_format = MIXED"
        )
        refused = stack.pumphouse("capture", "run", "--anew")
        assert "binlog_row_metadata is NO_LOG" in refused.stderr, refused.stderr
        checked = stack.pumphouse("capture", "check", "--json")
        lines = as_json(checked)
        formats.check("capture-check-output", lines)
        assert [line["text"].split()[0] for line in lines if line["wrong"]] == ["binlog_format", "binlog_row_metadata"]
        assert checked.returncode == 1
        stack.run("SET GLOBAL binlog_row_metadata = FULL, GLOBAL binlog_format = ROW")
        # Its schema is lost too: it is not guessed.
        stack.run("DROP TABLE history.jobs_shadow")
        gone = stack.pumphouse("capture", "run")
        assert "no stored schema is as old as" in gone.stderr, gone.stderr
        assert "--anew" in gone.stderr
        # What was committed meanwhile is not known: a load stops there by name, until a dump begins behind it.
        stack.start_capture("--anew")
        stack.captured()
        stack.snapshot()
        with pytest.raises(BinlogError, match=r"shop\.a"):
            stack.load()
        assert stack.pumphouse("archive", "dump").returncode == 0
        stack.snapshot()
        restore.run(stack.read_settings, dry_run=False)
        assert stack.compared("restore").differences == []


@pytest.mark.mariadb("RESET MASTER, and a target without TLS beside a source with it")
@pytest.mark.row("Q1", "Q2", "Q4")
def test_an_old_journal_a_reset_source_and_a_dump_of_another_server_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        journal, copied = directory / "c" / "journal", directory / "copied"
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY, pad LONGTEXT)")
        stack.captured()
        stack.stop_capture()
        shutil.copytree(journal, copied)
        stack.start_capture()
        stack.run("INSERT INTO shop.a VALUES (1, REPEAT('x', 1000000))")
        stack.captured()
        stack.stop_capture()
        # Another server than the captured one: a dump of it does not know what it has to wait for.
        source, capture = stack.read_settings.source, stack.read_settings.capture
        target = stack.dsn("target")
        other = source.model_copy(update={"port": target.port, "password": SecretStr(target.password)})
        with pytest.raises(WindowHeld, match="no capture is registered of the source"):
            waiter(stack.cluster, other, capture)(1)
        waiter(stack.cluster, source, capture)(1)
        # Who waits for a capture that is behind says so.
        stack.run("INSERT INTO shop.a VALUES (0, '')")
        monkeypatch.setattr(passed, "_TELL_S", 0.5)
        with capture_logs() as said, pytest.raises(WindowHeld, match="the capture main is at"):
            waiter(stack.cluster, source, capture)(2)
        assert ["the capture main is at" in each["why"] for each in said if each["event"] == "waiting_for_capture"]
        # A journal from a backup: all that came since would be published again.
        journal.rename(directory / "newest")
        shutil.copytree(copied, journal)
        refused = stack.pumphouse("capture", "run")
        assert "a copy or a backup" in refused.stderr, refused.stderr
        shutil.rmtree(journal)
        (directory / "newest").rename(journal)
        # GTIDs that are given twice: the numbers have grown past those that were read.
        stack.run("RESET MASTER", *(f"INSERT INTO shop.a VALUES ({at}, '')" for at in range(2, 20)))
        reset = stack.pumphouse("capture", "run")
        assert "it was reset" in reset.stderr, reset.stderr
        assert stack.capture_record().state is CaptureState.FAILED
        # What it is at covers the source's position now.
        stack.run("RESET MASTER", "INSERT INTO shop.a VALUES (20, '')")
        with pytest.raises(WindowHeld, match="it was reset"):
            waiter(stack.cluster, source, capture)(1)
        stack.start_capture("--anew")
        stack.captured()
        assert "CaptureFenced" in stack.pumphouse("capture", "forget", "main").stderr
        stack.stop_capture()
        stack.start_capture()  # the new position is behind the old one, and counts
        # A journal from before a reset: its position covers the one that counts, and it knows less.
        stack.run(*(f"INSERT INTO shop.a VALUES ({at}, '')" for at in range(30, 90)))
        stack.captured()
        stack.stop_capture()
        journal.rename(directory / "before")
        shutil.copytree(directory / "before", journal)
        stack.run("RESET MASTER")
        stack.start_capture("--anew")
        stack.run("INSERT INTO shop.a VALUES (90, '')")
        stack.captured()
        stack.stop_capture()
        shutil.rmtree(journal)
        (directory / "before").rename(journal)
        refused = stack.pumphouse("capture", "run")
        assert "a copy or a backup" in refused.stderr, refused.stderr
        assert stack.pumphouse("capture", "forget", "main").returncode == 0
        assert stack.cluster.captures() == []
        assert "no capture main" in stack.pumphouse("capture", "forget", "main").stderr


@pytest.mark.mariadb("a MySQL writes what its foreign keys change")
@pytest.mark.row("Q3")
def test_what_cannot_be_followed_is_named_and_left_out_by_a_setting() -> None:
    def prepare(stack: CapturedStack) -> None:
        stack.run(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.p (id INT PRIMARY KEY)",
            "CREATE TABLE shop.c (id INT PRIMARY KEY, p INT, FOREIGN KEY f (p) REFERENCES p (id) ON DELETE CASCADE)",
            "CREATE TABLE shop.g (id INT PRIMARY KEY, at POINT)",
        )
        stack.write_settings()
        refused = stack.pumphouse("capture", "check")
        assert "shop.c.f (ON DELETE CASCADE" in refused.stdout, refused.stdout
        assert "shop.g.at" in refused.stdout
        assert "shop.c.f" in stack.pumphouse("capture", "run").stderr
        stack.settings["capture"]["without"] = ["shop.c", "shop.g"]
        stack.write_settings()

    with mariadb.directory_in_memory() as directory, captured_stack(directory, prepare=prepare) as stack:
        stack.begin()
        stack.run(
            "INSERT INTO shop.p VALUES (1), (2)", "INSERT INTO shop.c VALUES (1, 1)", "DELETE FROM shop.p WHERE id = 1"
        )
        stack.captured()
        stack.snapshot()
        stack.load()
        with stack.databases["target"].connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT * FROM shop.p")
            assert cursor.fetchall() == ((2,),)
            cursor.execute("SHOW TABLES FROM shop")
            assert cursor.fetchall() == (("p",),)


@pytest.mark.mariadb("a MySQL has no unique key over a whole text")
@pytest.mark.row("Q1", "Q3")
def test_a_unique_key_over_a_long_text_is_followed() -> None:
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        stack.run("CREATE DATABASE shop")
        stack.run(
            "CREATE TABLE pages (url TEXT NOT NULL, n INT, UNIQUE KEY (url))",
            "CREATE TABLE notes (id INT PRIMARY KEY, a VARCHAR(3000) COLLATE utf8mb4_bin, b JSON, UNIQUE KEY (a, id), UNIQUE (b))",
            "INSERT INTO pages VALUES ('/a', 1), (REPEAT('/b', 9000), 2)",
            "INSERT INTO notes VALUES (1, 'x', '[]'), (2, NULL, NULL)",
            db="shop",
        )
        stack.begin()
        stack.run(
            "UPDATE pages SET n = 3",
            "INSERT INTO pages VALUES (REPEAT('/b', 9001), 2)",
            "DELETE FROM pages WHERE url = '/a'",
            "REPLACE INTO notes VALUES (1, 'y', '[1]'), (3, REPEAT('z', 3000), '[]')",
            "ALTER TABLE pages DROP INDEX url, ADD UNIQUE KEY (n, url)",
            "INSERT INTO pages VALUES ('/a', 1)",
            db="shop",
        )
        stack.require_equal()


@pytest.mark.mysql
@pytest.mark.row("Q1", "Q3")
def test_fractions_of_seconds_become_what_the_source_makes_of_them() -> None:
    """A MariaDB cuts them, a MySQL rounds, and each may be told to do as the other."""
    told = "TIME_TRUNCATE_FRACTIONAL" if is_mysql() else "TIME_ROUND_FRACTIONAL"
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        stack.run("CREATE DATABASE shop")
        stack.run(
            "CREATE TABLE t (id INT PRIMARY KEY, a DATETIME(6), b TIME(4), c TIMESTAMP(3) NULL, d VARCHAR(40), e TIME(1))",
            (
                "INSERT INTO t VALUES (1, '2024-01-01 10:00:00.6', '10:00:00.66', '2024-01-01 10:00:00.999',"
                " '2024-01-01 10:00:00.6', '10:00:00.6')"
            ),
            "CREATE TABLE u AS SELECT * FROM t",
            "ALTER TABLE u ADD PRIMARY KEY (id)",
            db="shop",
        )
        stack.begin()
        stack.require_equal()
        stack.run(
            "ALTER TABLE t MODIFY a DATETIME, MODIFY b TIME(1), MODIFY c TIMESTAMP NULL, MODIFY d DATETIME", db="shop"
        )
        stack.run(
            f"SET sql_mode = CONCAT(@@sql_mode, ',{told}')",
            "ALTER TABLE u MODIFY a DATETIME, MODIFY b TIME(1), MODIFY c TIMESTAMP NULL, MODIFY d DATETIME",
            db="shop",
        )
        stack.require_equal()
        with stack.source("shop") as connection:
            ((cut, rounded),) = capturing.rows_of(connection, "SELECT t.a, u.a FROM t, u")
        assert cut != rounded
        # It gets the day of the change.
        stack.run("ALTER TABLE t MODIFY e DATETIME", db="shop")
        with pytest.raises(ConversionUnknown, match=r"shop\.t: e from time"):
            stack.require_equal()


@pytest.mark.mariadb("a MySQL drops no column that another one is computed from")
@pytest.mark.row("Q1", "Q3")
def test_a_stored_column_is_computed_anew_when_another_column_takes_the_name_that_it_is_computed_from() -> None:
    """As the source does when it copies the table. What it keeps when it does not is in docs/limits.md."""
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        stack.run("CREATE DATABASE shop")
        stack.run(
            "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9), s VARCHAR(20) AS (CONCAT('g', a)) STORED, KEY (s))",
            "INSERT INTO t (id, a) VALUES (1, 'x'), (2, 'y')",
            db="shop",
        )
        stack.begin()
        stack.require_equal()
        stack.run(
            "ALTER TABLE t DROP COLUMN a, RENAME COLUMN id TO a, ALGORITHM = COPY",
            "UPDATE t SET a = 3 WHERE a = 2",
            db="shop",
        )
        stack.require_equal()


@pytest.mark.mysql
@pytest.mark.row("R1", "Q1", "Q3")
def test_a_table_restored_beside_the_live_one_on_the_source_is_captured_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "_COPIED_ROWS", 7)
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        stack.run("CREATE DATABASE shop")
        stack.run(
            "CREATE TABLE orders (id INT, line INT, note VARCHAR(20), twice INT AS (line * 2) STORED,"
            " PRIMARY KEY (id, line), KEY (note))",
            "CREATE TABLE words (word VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY, n INT AUTO_INCREMENT UNIQUE)",
            *(f"INSERT INTO orders (id, line) VALUES ({each}, 1), ({each}, 2)" for each in range(-5, 20)),
            *(f"INSERT INTO orders (id, line) VALUES (7, {each})" for each in range(10, 30)),
            "INSERT INTO words VALUES ('a', 1), ('B', 2)",
            db="shop",
        )
        stack.begin()
        stack.require_equal()
        with stack.source("shop") as connection:
            there = capturing.rows_of(connection, "SELECT * FROM orders ORDER BY 1, 2")
        settings = stack.read_settings
        with Parts(settings) as parts:
            before = parts.archive.end()
        stack.run("DELETE FROM orders WHERE id > 3", db="shop")
        stack.require_equal()
        chosen = Chosen(tables=("shop.orders", "shop.words"), database="old")
        with monkeypatch.context() as killed, pytest.raises(ZeroDivisionError):  # with the copies, without their names
            killed.setattr(build, "not_waiting", lambda _: 1 / 0)
            restore_parts.run(settings, chosen=chosen, into="source", to=before, dry_run=False)
        report = restore_parts.run(settings, chosen=chosen, into="source", to=before, dry_run=False)
        assert any("the capture follows" in note for note in report.load.notes)
        with stack.source("old") as connection:
            assert capturing.rows_of(connection, "SELECT * FROM orders ORDER BY 1, 2") == there
            assert capturing.rows_of(connection, "SHOW TABLES") == [("orders",), ("words",)]
        stack.require_equal()
        stack.run("DELETE FROM orders WHERE id = 7", "DROP TABLE words", db="old")
        stack.require_equal()
        restore.run(settings, dry_run=False)  # nothing of it is a hole
        assert stack.compared("restore").differences == []


@pytest.mark.mysql
@pytest.mark.row("R2", "Q1")
def test_the_rights_that_a_restore_onto_a_captured_source_asks_for_are_enough() -> None:
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, n INT)")
        stack.run("INSERT INTO shop.orders VALUES (1, 1), (2, 2)")
        stack.begin()
        stack.run("UPDATE shop.orders SET n = 3 WHERE id = 1", "CREATE USER limited IDENTIFIED BY 'pw'")
        stack.run("GRANT SELECT, REPLICATION CLIENT ON *.* TO limited")
        stack.captured()
        stack.snapshot()
        settings = stack.read_settings
        source = settings.source.model_copy(update={"user": "limited", "password": SecretStr("pw")})
        settings = settings.model_copy(update={"source": source})
        chosen = Chosen(tables=("shop.orders",), called="shop.orders_before")
        with pytest.raises(RestoreError) as refused:
            restore_parts.run(settings, chosen=chosen, into="source", dry_run=True)
        asked = [re.findall(r"(GRANT .* ON .* TO) …", each) for each in refused.value.problems]
        assert all(asked)
        stack.run(*(f"{grant} limited" for (grant,) in asked))
        restore_parts.run(settings, chosen=chosen, into="source", dry_run=True)
        restore_parts.run(settings, chosen=chosen, into="source", dry_run=False)
        with stack.source("shop") as connection:
            assert capturing.rows_of(connection, "SELECT * FROM orders_before ORDER BY id") == [(1, 3), (2, 2)]


@pytest.mark.mysql
@pytest.mark.row("R1", "R3")
def test_a_copy_for_a_captured_source_takes_nobodys_table_and_goes_with_the_restore_that_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = "pumphouse_parts_part_1"
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        stack.run("CREATE DATABASE shop")
        stack.run("CREATE TABLE orders (id INT PRIMARY KEY)", "CREATE TABLE words (id INT PRIMARY KEY)", db="shop")
        stack.run("INSERT INTO orders VALUES (1)", "INSERT INTO words VALUES (2)", db="shop")
        stack.begin()
        settings = stack.read_settings

        def restored(table: str, *, anew: bool = False) -> None:
            chosen = Chosen(tables=(f"shop.{table}",), database="old")
            restore_parts.run(settings, chosen=chosen, into="source", dry_run=False, anew=anew)

        def there() -> list[str]:
            with stack.source("old") as connection:
                return [name for (name,) in capturing.rows_of(connection, "SHOW TABLES")]

        stack.run("CREATE DATABASE old")
        stack.run(f"CREATE TABLE {copy} (id INT PRIMARY KEY)", f"INSERT INTO {copy} VALUES (7)", db="old")
        for late in (False, True):  # before anything is built, and where somebody made it meanwhile
            with monkeypatch.context() as unseen, pytest.raises(LoadError, match=copy):
                if late:
                    unseen.setattr(restore_parts, "require_free_for_copies", lambda *_: None)
                restored("orders")
            with stack.source("old") as connection:
                assert capturing.rows_of(connection, f"SELECT * FROM {copy}") == [(7,)]
                built = capturing.rows_of(connection, "SHOW DATABASES LIKE 'pumphouse_parts'")
                assert len(built) == late
        stack.run(f"RENAME TABLE {copy} TO mine", db="old")

        def killed_in_the_copy(table: str, *, anew: bool = False) -> None:
            with monkeypatch.context() as killed, pytest.raises(ZeroDivisionError):
                killed.setattr(places, "_pages", lambda *_: 1 / 0)  # it is made, and has no rows
                restored(table, anew=anew)
            assert there() == ["mine", copy]

        killed_in_the_copy("orders")
        with monkeypatch.context() as killed, pytest.raises(ZeroDivisionError):
            killed.setattr(executor, "make", lambda *_: 1 / 0)
            restored("words", anew=True)
        killed_in_the_copy("words", anew=True)
        restored("words")
        assert there() == ["mine", "words"]
        stack.require_equal()
