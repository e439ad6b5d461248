"""Whatever a server sets for its sessions: an import, a dump, loads with DDL and a comparison are right, or say its name.

The values are set on the source, which has the history too, and on the target at once.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pymysql.connections import Connection

from pumphouse.archive.init import init_archive
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.capture.passed import waiter
from pumphouse.client import (
    PrewriteValueBuilder,
    PumpClient,
    TransactionBinlog,
    encode_delete,
    encode_insert,
    encode_update,
    named_row,
    tables,
)
from pumphouse.diff.compare import compare
from pumphouse.dump.run import take_dump
from pumphouse.errors import BinlogError
from pumphouse.model.tso import Tso
from pumphouse.mysql import LOAD, connect
from pumphouse.mysql.dsn import Dsn
from pumphouse.parts import Parts
from pumphouse.registry.file import FileCluster
from pumphouse.runs import load
from pumphouse.schema.history import MysqlTableSource, history_server
from pumphouse.schema_import.changes import Asked
from pumphouse.schema_import.run import import_schema
from pumphouse.settings import Settings
from tests.stack.mariadb import MariaDbServer
from tests.support.mariadb import directory_in_memory
from tests.support.pumpserver import PumpServer
from tests.support.variables import Globals, of_server

pytestmark = [pytest.mark.row("A5", "L4", "S1"), pytest.mark.timeout(600)]

_ROWS = 40
_AT_ONCE = 30
_MADE = (
    "CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    (
        "CREATE TABLE shop.item (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, name VARCHAR(60) NOT NULL, price DECIMAL(12,4),"
        " kind ENUM('small','it''s','ümlaut'), tags SET('a','b'), made DATETIME(3) NOT NULL, seen TIMESTAMP NULL, raw BLOB,"
        " f FLOAT, d DOUBLE, y YEAR, t TIME(2), bits BIT(9), doc JSON, half DECIMAL(20,8) AS (price / 3) STORED,"
        " UNIQUE KEY (name, made))"
    ),
    (
        "CREATE TABLE shop.part (item INT UNSIGNED NOT NULL, n INT NOT NULL, note TEXT, PRIMARY KEY (item, n),"
        " FOREIGN KEY (item) REFERENCES shop.item (id) ON DELETE CASCADE)"
    ),
    "CREATE TABLE shop.log (at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, what VARCHAR(300), n INT)",
    (
        "CREATE TABLE shop.old (id BIGINT PRIMARY KEY, v VARCHAR(300) CHARACTER SET utf8mb4, KEY (v))"
        " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (20), PARTITION p1 VALUES LESS THAN MAXVALUE)"
    ),
    "CREATE VIEW shop.cheap AS SELECT id, name FROM shop.item WHERE price < 100",
)
_ITEM = (
    "INSERT INTO shop.item (id, name, price, kind, tags, made, seen, raw, f, d, y, t, bits, doc) VALUES (%s, %s, %s, %s,"
    " 'a,b', '2024-02-29 23:59:59.125', '2024-07-01 12:00:00', %s, 1.1, 1e300, 1999, '-838:59:58.25', 5,"
    ' \'{"a": [1, "x"]}\')'
)


class Chain:
    """A source with its history, a Pump, a target; a new archive for each round."""

    def __init__(self, directory: Path, source: Dsn, target: Dsn) -> None:
        self.directory, self.source, self.target = directory, source, target
        self.cluster = FileCluster(directory / "cluster")
        self.at_source = connect(source.server, LOAD, "source", more={"wait_timeout": "2147483"})
        self.at_target = connect(target.server, LOAD, "target", more={"wait_timeout": "2147483"})
        self.globals = Globals(self.at_source, self.at_target)
        self._rounds = itertools.count()

    def prepare(self) -> None:
        """Empty servers, while nothing is set; the history knows that."""
        for server, names in ((self.at_source, {"shop"}), (self.at_target, {"shop", "pumphouse"})):
            for name in names:
                _run(server, f"DROP DATABASE IF EXISTS {name}")
        if ("history",) in _run(self.at_source, "SHOW DATABASES"):
            settings = self.settings("none")
            if any(db == "shop" for db, _ in tables(settings.history)):
                self.import_(settings, drop=("shop",))

    def round(self) -> None:
        """From an empty source to an equal target, twice; BinlogError, AssertionError."""
        settings = self.settings(f"r{next(self._rounds)}")
        self._fill()
        self.import_(settings)
        with Parts(settings) as parts:

            def cut() -> None:
                run_snapshot(parts.archive, self.cluster, self.cluster.tso(), settings, parts.history)

            init_archive(parts.archive, self.cluster, parts.history, settings=settings)
            settle = waiter(self.cluster, settings.source, settings.capture)
            dumped = take_dump(parts.archive, self.cluster, parts.history, settings, settle=settle)
            assert dumped.rows == 4 * _ROWS
            cut()
            load.run(settings)
            self._equal()
            self._change(settings)
            _run(self.at_source, "ALTER TABLE shop.old ADD COLUMN w VARCHAR(20) NOT NULL DEFAULT 'new', ADD KEY (w)")
            self.import_(settings)
            cut()
            load.run(settings)
            self._equal()
        shutil.rmtree(self.directory / "archives")

    def import_(self, settings: Settings, drop: tuple[str, ...] = ()) -> None:
        history = history_server(settings.history)
        assert history is not None
        jobs = MysqlTableSource(history, "history", "jobs")
        asked = Asked(skip=frozenset({"history"}), drop=drop)
        assert import_schema(settings.source, jobs, self.cluster, asked, tls=settings.tls).jobs

    def _equal(self) -> None:
        report = compare(self.source, self.target, schemas={"shop": "shop"})
        assert report.equal, report.differences
        assert report.tables == 5

    def _fill(self) -> None:
        for statement in _MADE:
            _run(self.at_source, statement)
        with self.at_source.cursor() as cursor:
            for n in range(1, _ROWS + 1):
                kind = ("small", "it's", "ümlaut", None)[n % 4]
                cursor.execute(_ITEM, (n, f"näme {n} \\ '", n * 7, kind, bytes(range(n, n + 100))))
                cursor.execute("INSERT INTO shop.part VALUES (%s, 1, %s)", (n, "x" * n))
                cursor.execute("INSERT INTO shop.log VALUES ('2024-01-01', %s, %s)", ("line", n % 3))
                cursor.execute("INSERT INTO shop.old VALUES (%s, %s)", (n, f"w {n}"))

    def _change(self, settings: Settings) -> None:
        """One transaction on the source and in a binlog."""
        known = tables(settings.history)
        value = PrewriteValueBuilder(known.schema_version)
        old, log = known["shop", "old"], known["shop", "log"]
        line = {"at": "2024-01-01 00:00:00", "what": "line", "n": 1}
        value.insert(old.id, encode_insert(old, named_row(old, {"id": 100, "v": "hundred"})))
        images = named_row(old, {"id": 5, "v": "w 5"}), named_row(old, {"id": 5, "v": "five"})
        value.update(old.id, encode_update(old, *images))
        value.delete(old.id, encode_delete(old, named_row(old, {"id": 6, "v": "w 6"})))
        value.insert(log.id, encode_insert(log, named_row(log, {**line, "n": 9}), handle=1000))
        value.delete(log.id, encode_delete(log, named_row(log, line), handle=1))
        with PumpClient(self.cluster) as client:
            start: Tso = self.cluster.tso()
            binlog = TransactionBinlog(start_ts=start, key=b"shop/x", prewrite_value=value.build())
            client.write_prewrite(binlog.prewrite(), start)
            for statement in (
                "INSERT INTO shop.old VALUES (100, 'hundred')",
                "UPDATE shop.old SET v = 'five' WHERE id = 5",
                "DELETE FROM shop.old WHERE id = 6",
                "INSERT INTO shop.log VALUES ('2024-01-01', 'line', 9)",
                "DELETE FROM shop.log WHERE n = 1 LIMIT 1",
            ):
                _run(self.at_source, statement)
            client.write_commit(binlog.commit(self.cluster.tso()), start)
            assert client.flush(60)

    def settings(self, name: str) -> Settings:
        def server(dsn: Dsn) -> dict[str, Any]:
            return {"host": dsn.host, "port": dsn.port, "user": dsn.user, "password": dsn.password}

        return Settings.model_validate(
            {
                "cluster": {"url": f"file://{self.directory}/cluster"},
                "archive": {"root": f"file://{self.directory}/archives/{name}", "archive_id": name},
                "schema": {
                    "history": f"mysql://{self.source.user}@{self.source.host}:{self.source.port}/history.jobs",
                    "history_password": self.source.password,
                },
                "source": server(self.source),
                "target": server(self.target),
                "load": {"engine": "local", "connections": 2},
            }
        )

    def faults(self, values: Mapping[str, str]) -> list[str]:
        """What is wrong with these values at once, sought by halves; nothing where all is equal or refused by name."""
        self.prepare()
        try:
            out = self.globals.set(values)
            left = {name: value for name, value in values.items() if name not in out}
            if not left:
                return []
            try:
                self.round()
            except BinlogError as error:
                said = str(error)
                named = [name for name in left if name in said.replace("-", "_")]
                failed = f"{type(error).__name__}: {said}"
            except Exception as error:
                named, failed = [], f"{type(error).__name__}: {error}"
            else:
                return []
        finally:
            self.globals.reset()
        if named:
            return self.faults({name: value for name, value in left.items() if name not in named})
        if len(left) == 1:
            return [f"{left}: {failed[:600]}"]
        names = list(left)
        halves = names[: len(names) // 2], names[len(names) // 2 :]
        found = [fault for half in halves for fault in self.faults({name: left[name] for name in half})]
        return found or [f"together: {left}: {failed[:600]}"]


def _run(connection: Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


@contextlib.contextmanager
def chained(directory: Path) -> Iterator[Chain]:
    """Both servers and the Pump."""
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(directory_in_memory())
        servers = [
            stack.enter_context(MariaDbServer(data / name, arguments=("--log-bin", "--server-id=7")))
            for name in ("source", "target")
        ]
        made = Chain(directory, *(server.dsn for server in servers))
        with PumpServer(made.directory, made.cluster).start():
            yield made
        made.at_source.close()
        made.at_target.close()


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    with chained(tmp_path_factory.mktemp("chain")) as made:
        yield made


# Seen in the wild, on servers of others: limits, safe modes, what an ORM or a ticket asked for.
GUARDS = {
    "sql_select_limit": "3",
    "max_statement_time": "0.001",
    "max_join_size": "1",
    "sql_safe_updates": "ON",
    "tx_read_only": "ON",
    "completion_type": "'RELEASE'",
    "autocommit": "OFF",
    "tx_isolation": "'SERIALIZABLE'",
    "sql_quote_show_create": "OFF",
    "sql_mode": "'ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,ONLY_FULL_GROUP_BY'",
    "group_concat_max_len": "4",
    "lc_time_names": "'de_DE'",
    "lc_messages": "'de_DE'",
    "div_precision_increment": "0",
    "time_zone": "'-09:30'",
    "character_set_server": "'latin1'",
    "collation_connection": "'latin1_german1_ci'",
    "foreign_key_checks": "ON",
    "sql_auto_is_null": "ON",
    "big_tables": "ON",
    "binlog_format": "'STATEMENT'",
    "innodb_strict_mode": "ON",
    "default_storage_engine": "'MyISAM'",
    "wait_timeout": "1",
    "lock_wait_timeout": "0",
    "innodb_lock_wait_timeout": "0",
    "max_sort_length": "64",
    "max_error_count": "0",
}


def test_a_servers_guards_reach_no_session_of_ours(chain: Chain) -> None:
    chain.prepare()
    assert chain.globals.set(GUARDS) == []
    try:
        chain.round()
    finally:
        chain.globals.reset()


@pytest.mark.parametrize(
    ("name", "value"),
    [("innodb_default_row_format", "'compact'"), ("max_allowed_packet", "1048576"), ("local_infile", "OFF")],
)
def test_what_no_session_can_set_is_asked_about_before_anything_is_made(chain: Chain, name: str, value: str) -> None:
    chain.prepare()
    only_target = Globals(chain.at_target)
    assert only_target.set({name: value}) == []
    try:
        with pytest.raises(BinlogError, match=rf"{name} is .*Nothing was changed.*SET GLOBAL {name} ="):
            chain.round()
        assert ("pumphouse",) not in _run(chain.at_target, "SHOW DATABASES")
    finally:
        only_target.reset()


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_every_variable_of_sessions_at_its_other_values(chain: Chain) -> None:
    """Several at once: a round that is wrong is sought by halves."""
    found = of_server(chain.at_source)
    assert len(found) > 100
    turns = itertools.zip_longest(*found.values())
    faults = []
    for turn in turns:
        pairs = [(name, value) for name, value in zip(found, turn, strict=True) if value is not None]
        for at in range(0, len(pairs), _AT_ONCE):
            faults += chain.faults(dict(pairs[at : at + _AT_ONCE]))
    assert faults == []
