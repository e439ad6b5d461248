"""A restore looks at its server before it drops anything: is it the right one, can it take the plan, what does it hold."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pydantic import SecretStr

from pumphouse.cli import cli
from pumphouse.errors import AccessDenied, BinlogError, ConfigError, LoadError, RestoreError, TargetUnavailable
from pumphouse.loader.apart import server_name
from pumphouse.loader.grants import LOADING, in_columns_alone, missing_privileges
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.runs import load, restore
from pumphouse.settings import Settings, SourceSettings, TargetSettings
from tests.stack.mariadb import MariaDbServer
from tests.support import mariadb
from tests.support.kind import is_mysql
from tests.support.loading import read_checkpoint
from tests.support.madearchive import MadeSource, column, target_rows

pytestmark = pytest.mark.row("R1")


@pytest.fixture(scope="module")
def spare() -> Iterator[TargetSettings]:
    """The server that a restore may replace; ``server`` is the one in use."""
    with mariadb.in_memory() as settings:
        yield settings


@pytest.fixture
def on_spare(spare: TargetSettings) -> Iterator[TargetConnection]:
    with TargetConnection.open(spare) as connection:
        for name in ("d", "pumphouse"):
            connection.execute(f"DROP DATABASE IF EXISTS `{name}`")
        yield connection


@pytest.fixture
def end(source: MadeSource, target: TargetConnection) -> Tso:
    """An archive with a row, and data on the server in use that must survive everything here."""
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    target.execute("CREATE DATABASE d")
    target.execute("CREATE TABLE d.production (id INT)")
    return source.cut()


def to(settings: Settings, **sections: Any) -> Settings:
    return settings.model_copy(update=sections)


def unharmed(target: TargetConnection) -> bool:
    return target.query("SHOW TABLES IN d") == [("production",)] and ("pumphouse",) not in target.query(
        "SHOW DATABASES"
    )


class Tunnel:
    """The server under another address and port, as a tunnel or a proxy gives it."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def leads_to(self, port: int) -> None:
        """For connections from now on."""
        self._to = port

    def _serve(self) -> None:
        while True:
            try:
                mine, _ = self._listener.accept()
            except OSError:
                return
            theirs = socket.create_connection(("127.0.0.1", self._to))
            for a, b in ((mine, theirs), (theirs, mine)):
                threading.Thread(target=self._copy, args=(a, b), daemon=True).start()

    @staticmethod
    def _copy(a: socket.socket, b: socket.socket) -> None:
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass
        for each in (a, b):
            each.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def tunnel(server: TargetSettings) -> Iterator[TargetSettings]:
    made = Tunnel(server.port)
    yield server.model_copy(update={"port": made.port})
    made.close()


def source_at(server: TargetSettings, **more: Any) -> SourceSettings:
    return mariadb.as_source(server).model_copy(update=more)


def history_at(server: TargetSettings) -> dict[str, Any]:
    return {"history": mariadb.as_history(server, "s.t")}


@pytest.mark.parametrize("which", ["source", "history", "target"])
@pytest.mark.parametrize("alias", [False, True])
def test_the_source_and_the_target_of_loads_are_never_replaced_whatever_their_address(
    which: str, alias: bool, settings: Settings, server: TargetSettings, tunnel: TargetSettings,
    target: TargetConnection, end: Tso,
) -> None:  # fmt: skip
    restore_target = tunnel if alias else server
    known: dict[str, Any] = {"target": TargetSettings()}
    known |= {
        "source": {"source": source_at(server)}, "history": history_at(server), "target": {"target": server}
    }[which]  # fmt: skip
    mine = to(settings, restore_target=restore_target, **known)
    for dry_run in (True, False):
        with pytest.raises(RestoreError, match="Nothing was changed") as refused:
            restore.run(mine, to=end, dry_run=dry_run, replace=server_name(restore_target))
        said = str(refused.value)
        assert {"source": "[source]", "history": "schema.history", "target": "[target]"}[which] in said
        # MariaDB has no identity of its own to tell.
        assert (("server_uuid" if is_mysql() else "a lock that is held on the one") in said) is alias
        assert "correct [restore_target]" in said
    assert unharmed(target)


def test_two_servers_of_one_machine_are_told_apart_and_a_source_that_is_gone_is_no_obstacle(
    settings: Settings, server: TargetSettings, spare: TargetSettings, on_spare: TargetConnection,
    source: MadeSource, target: TargetConnection, end: Tso,
) -> None:  # fmt: skip
    mine = to(settings, restore_target=spare, source=source_at(server), **history_at(server))
    shown = restore.run(mine, to=end, dry_run=True, task="apply")
    assert shown.check is not None
    assert (shown.check.holds, shown.check.notes) == ((), ())
    gone = to(mine, source=source_at(server, port=1))
    done = restore.run(gone, to=end, dry_run=False)
    assert done.check is not None
    assert "[source] (127.0.0.1:1): it does not answer" in done.check.notes[0]
    assert target_rows(on_spare) == source.snapshot()
    assert unharmed(target)


def test_a_source_that_does_not_let_us_in_stops_a_restore(
    settings: Settings, server: TargetSettings, spare: TargetSettings, on_spare: TargetConnection, end: Tso
) -> None:
    wrong = source_at(server, password=SecretStr("wr0ng"))
    with pytest.raises(ConfigError, match="nobody knows") as refused:
        restore.run(to(settings, restore_target=spare, source=wrong), to=end, dry_run=False)
    assert f"correct user and password of {server.host}:{server.port}" in refused.value.hint
    assert "wr0ng" not in str(refused.value)
    shut = source_at(server, tls_ca=Path("/nowhere.pem"))
    with pytest.raises(ConfigError, match=r"nobody knows .*: tls_ca of \[source\]") as refused:
        restore.run(to(settings, restore_target=spare, source=shut), to=end, dry_run=False)
    assert "[target]" not in str(refused.value)
    assert ("d",) not in on_spare.query("SHOW DATABASES")


# A MySQL has no such right to lack.
@pytest.mark.skipif(is_mysql(), reason="a MariaDB's right to change the format of its binlog")
def test_a_source_that_a_reader_may_only_ask_is_told_apart_whatever_a_load_would_set_there(
    settings: Settings, spare: TargetSettings, on_spare: TargetConnection, end: Tso
) -> None:
    arguments = ("--log-bin", "--binlog-format=STATEMENT")
    with mariadb.directory_in_memory() as directory, MariaDbServer(directory, arguments=arguments) as other:
        root = mariadb.settings_of(other)
        with TargetConnection.open(root) as connection:
            connection.execute("CREATE USER reader IDENTIFIED BY 'pw'")
            connection.execute("GRANT SELECT ON *.* TO reader")
        asked = source_at(root, user="reader", password=SecretStr("pw"))
        shown = restore.run(to(settings, restore_target=spare, source=asked), to=end, dry_run=True)
    assert shown.check is not None
    assert shown.check.notes == ()


def test_what_is_wrong_with_the_target_of_a_restore_names_its_section(
    settings: Settings, spare: TargetSettings, on_spare: TargetConnection, end: Tso
) -> None:
    shut = spare.model_copy(update={"tls_ca": Path("/nowhere.pem")})
    with pytest.raises(ConfigError, match=r"tls_ca of \[restore_target\]"):
        restore.run(to(settings, restore_target=shut), to=end, dry_run=True)
    wrong = spare.model_copy(update={"password": SecretStr("wr0ng")})
    with pytest.raises(AccessDenied, match=r"of \[restore_target\] does not let us in") as refused:
        restore.run(to(settings, restore_target=wrong), to=end, dry_run=True)
    assert "[restore_target]" in refused.value.hint


def test_what_loads_keep_up_to_date_is_built_anew_when_its_section_is_named(
    settings: Settings, server: TargetSettings, target: TargetConnection, source: MadeSource, end: Tso
) -> None:
    restore.run(settings, into="target", to=end, dry_run=False, replace=server_name(server))
    assert target_rows(target) == source.snapshot()


@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        ("", "no host and no user"),
        ("[restore_target]\nport = 3307\n", "no host and no user"),
        ('[restore_target]\nhost = "127.0.0.1"\n', "no user"),
        ('[restore_target]\nport = 3307\nuser = "root"\npassword = "x"\n', "no host"),
    ],
)
def test_a_section_that_does_not_name_its_server_is_refused_with_the_lines_to_write(
    lines: str, missing: str, settings: Settings, end: Tso, tmp_path: Path
) -> None:
    result = command(tmp_path, settings, lines, "--to", str(end), "--dry-run")
    assert isinstance(result.exception, ConfigError)
    assert f"[restore_target] names {missing}:" in str(result.exception)
    assert '[restore_target] host = "…", port = 3306, user = "…", password = "…"' in str(result.exception)


def command(directory: Path, settings: Settings, lines: str, *args: str, typed: str | None = None) -> Result:
    config = directory / "pumphouse.toml"
    config.write_text(
        f'[cluster]\nurl = "{settings.cluster.url}"\n[archive]\nroot = "{settings.archive.root}"\n'
        f'[load]\nengine = "local"\n{lines}'
    )
    return CliRunner().invoke(cli, ["--config", str(config), "restore", *args], input=typed)


def section(target: TargetSettings) -> str:
    return f"[restore_target]\n{mariadb.as_lines(target)}"


@pytest.mark.row("R2")
def test_a_dry_run_looks_at_the_target_unless_it_is_told_to_plan_only(
    settings: Settings, spare: TargetSettings, on_spare: TargetConnection, end: Tso, tmp_path: Path
) -> None:
    del on_spare
    wrong = section(spare.model_copy(update={"password": SecretStr("wr0ng")}))
    refused = command(tmp_path, settings, wrong, "--to", str(end), "--dry-run")
    assert isinstance(refused.exception, AccessDenied)
    assert "check user and password" in str(refused.exception)
    assert "wr0ng" not in refused.output + str(refused.exception)
    away = section(spare.model_copy(update={"port": 1}))
    assert isinstance(command(tmp_path, settings, away, "--to", str(end), "--dry-run").exception, TargetUnavailable)
    planned = command(tmp_path, settings, away, "--to", str(end), "--plan-only")
    assert planned.exit_code == 0, planned.output
    assert "server" not in planned.output
    looked = command(tmp_path, settings, section(spare), "--to", str(end), "--dry-run")
    assert looked.exit_code == 0
    assert "it holds nothing that is dropped" in looked.output


@pytest.mark.row("R2")
def test_a_target_with_data_needs_its_name_typed(
    settings: Settings, spare: TargetSettings, on_spare: TargetConnection, source: MadeSource, end: Tso, tmp_path: Path
) -> None:
    on_spare.execute("CREATE DATABASE d")
    on_spare.execute("CREATE TABLE d.precious AS SELECT 1 AS id")
    there = section(spare)
    name = server_name(spare)
    for args in ((), ("--replace", "127.0.0.1:1")):
        refused = command(tmp_path, settings, there, "--to", str(end), *args)
        assert isinstance(refused.exception, RestoreError)
        assert f"--replace {name}" in str(refused.exception)
        assert on_spare.query("SHOW TABLES IN d") == [("precious",)]
    assert "d (1 table, about" in refused.output
    done = command(tmp_path, settings, there, "--to", str(end), "--replace", name)
    assert done.exit_code == 0, done.output
    assert target_rows(on_spare) == source.snapshot()


@pytest.mark.row("R2")
@pytest.mark.parametrize("seen", [True, False])
def test_a_database_of_routines_and_events_alone_holds_something_whoever_may_see_them(
    settings: Settings, spare: TargetSettings, on_spare: TargetConnection, source: MadeSource, end: Tso, seen: bool
) -> None:
    on_spare.execute("CREATE DATABASE d")
    on_spare.execute("CREATE PROCEDURE d.total() SELECT 1")
    on_spare.execute("CREATE EVENT d.nightly ON SCHEDULE EVERY 1 YEAR DO SELECT 1")
    mariadb.new_user(on_spare.execute, "limited@'%'")
    on_spare.execute(
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, CREATE VIEW ON *.* TO limited@'%'"
    )
    user = {} if seen else {"user": "limited", "password": SecretStr("pw")}
    mine = spare.model_copy(update=user)
    said = "event d.nightly, procedure d.total" if seen else "maybe events of d.*maybe routines of d"
    with pytest.raises(RestoreError, match=f"data that would be dropped: .*{said}"):
        restore.run(to(settings, restore_target=mine), to=end, dry_run=False)
    with pytest.raises(LoadError, match=r"no checkpoint but has .*procedure d\.total"):
        load.run(to(settings, target=mine))
    assert on_spare.value("SELECT COUNT(*) FROM information_schema.routines WHERE routine_schema = 'd'") == 1
    restore.run(to(settings, restore_target=mine), to=end, dry_run=False, replace=server_name(spare))
    assert target_rows(on_spare) == source.snapshot()


@pytest.mark.row("R2", "L5")
@pytest.mark.usefixtures("end")
def test_a_first_load_says_which_rights_show_what_lies_in_a_database_that_is_there(
    settings: Settings, spare: TargetSettings, on_spare: TargetConnection, source: MadeSource
) -> None:
    on_spare.execute("CREATE DATABASE d")
    mariadb.new_user(on_spare.execute, "limited@'%'")
    on_spare.execute(f"GRANT {', '.join(LOADING)} ON *.* TO limited@'%'")
    into = to(settings, target=spare.model_copy(update={"user": "limited", "password": SecretStr("pw")}))
    with pytest.raises(LoadError, match="does not see what lies there: events of d: it takes EVENT") as refused:
        load.run(into)
    assert "GRANT EVENT, EXECUTE" in refused.value.hint
    assert "--equal-at" not in refused.value.hint
    on_spare.execute("GRANT EVENT, EXECUTE ON `d`.* TO limited@'%'")
    load.run(into)
    assert target_rows(on_spare) == source.snapshot()


@pytest.mark.row("R2")
def test_a_plan_that_the_target_cannot_take_is_refused_with_every_reason_before_anything_is_dropped(
    settings: Settings, spare: TargetSettings, on_spare: TargetConnection, source: MadeSource, end: Tso
) -> None:
    on_spare.execute("CREATE DATABASE d")
    on_spare.execute("CREATE TABLE d.precious AS SELECT 1 AS id")
    mariadb.new_user(on_spare.execute, "limited@'%'")
    on_spare.execute("GRANT SELECT, INSERT, CREATE ON `d`.* TO limited@'%'")
    on_spare.execute("GRANT ALL ON `pump\\_%`.* TO limited@'%'")
    on_spare.execute("SET GLOBAL local_infile = OFF")
    try:
        limited = spare.model_copy(update={"user": "limited", "password": SecretStr("pw")})
        with pytest.raises(RestoreError) as refused:
            restore.run(to(settings, restore_target=limited), to=end, dry_run=False, replace=server_name(spare))
        first, second, third = refused.value.problems
        assert "SET GLOBAL local_infile = ON" in first
        assert "GRANT SELECT, INSERT, UPDATE, DELETE" in second
        assert "ON `pumphouse`.*" in second, "the pattern of a grant is not taken for the name"
        assert "lacks UPDATE, DELETE, DROP, ALTER, INDEX, CREATE VIEW there" in third
        assert "ON `d`.*" in third
        assert on_spare.query("SHOW TABLES IN d") == [("precious",)]
        on_spare.execute("SET GLOBAL local_infile = ON")
        on_spare.execute("GRANT ALL ON `d`.* TO limited@'%'")
        on_spare.execute("GRANT ALL ON `pumphouse`.* TO limited@'%'")
        restore.run(to(settings, restore_target=limited), to=end, dry_run=False, replace=server_name(spare))
        assert target_rows(on_spare) == source.snapshot()
    finally:
        on_spare.execute("SET GLOBAL local_infile = ON")


@pytest.mark.row("R2")
def test_collations_and_ddl_that_the_target_lacks_are_named_before_anything_is_dropped(
    settings: Settings, spare: TargetSettings, on_spare: TargetConnection, source: MadeSource, end: Tso
) -> None:
    name = [column(1, "id", flag=3), column(2, "name", MysqlType.VARCHAR, collate="utf8mb4_klingon_ci")]
    source.create_table("greek", name)
    source.create_table("odd", [column(1, "id", flag=3)], partition={"enable": True, "type": 9})
    after = source.cut()
    mine = to(settings, restore_target=spare)
    with pytest.raises(RestoreError) as refused:
        restore.run(mine, to=after, dry_run=True)
    said = " ".join(refused.value.problems)
    assert "unknown partition type 9" in said
    assert "no collation utf8mb4_klingon_ci" in said
    assert ("d",) not in on_spare.query("SHOW DATABASES")
    restore.run(mine, to=end, dry_run=True)


def test_a_schema_of_ours_that_the_source_has_too_is_named_by_the_dry_run(
    settings: Settings, spare: TargetSettings, on_spare: TargetConnection, source: MadeSource, end: Tso
) -> None:
    del on_spare
    source.create_database("Pumphouse")
    after = source.cut()
    with pytest.raises(RestoreError, match=r"database 'Pumphouse'.*schema_name"):
        restore.run(to(settings, restore_target=spare), to=after, dry_run=True)


def test_no_job_after_its_moment_stops_a_restore_and_what_later_loads_made_is_dropped(
    settings: Settings, spare: TargetSettings, on_spare: TargetConnection, source: MadeSource, end: Tso
) -> None:
    mine = to(settings, restore_target=spare)
    rows = source.snapshot()
    source.create_database("later")
    after = source.cut()
    restore.run(mine, to=after, dry_run=False, task="apply")
    assert ("later",) in on_spare.query("SHOW DATABASES")
    source.create_database("pumphouse")  # as an import from a target made it
    source.create_database("elsewhere")  # where nobody has a right
    source.create_table("odd", [column(1, "id", flag=3)], partition={"enable": True, "type": 9})
    source.rewrite_job(lambda raw: raw.update(table_id=999, type=11))  # a TRUNCATE of a table that nobody knows
    newest = source.cut()
    with pytest.raises(BinlogError):
        restore.run(mine, to=newest, dry_run=True)
    shown = restore.run(mine, to=end, dry_run=True, task="apply")
    assert shown.check is not None
    assert [each.database for each in shown.check.holds] == ["d"]
    mariadb.new_user(on_spare.execute, "limited@'%'")
    for name in ("d", "later", "pumphouse"):
        on_spare.execute(f"GRANT ALL ON `{name}`.* TO limited@'%'")
    limited = to(settings, restore_target=spare.model_copy(update={"user": "limited", "password": SecretStr("pw")}))
    restore.run(limited, shown=shown.shown, dry_run=False, replace=server_name(spare), task="apply")
    assert target_rows(on_spare) == rows
    assert ("later",) not in on_spare.query("SHOW DATABASES"), "a load that reached further had made it"
    assert read_checkpoint(spare, "apply") == end, "the state of the loads there is in its place"
    done = restore.run(mine, to=after, dry_run=False, replace=server_name(spare), task="apply")
    assert done.plan.to == after


def test_privileges_are_read_as_the_server_means_them() -> None:
    every = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, CREATE VIEW"

    def missing(grants: list[str], database: str) -> list[str]:
        return missing_privileges(grants, database, every.split(", "))

    assert missing(["GRANT ALL PRIVILEGES ON *.* TO `root`@`%` WITH GRANT OPTION"], "d") == []
    assert missing([f"GRANT {every} ON `shop\\_%`.* TO `u`@`%`"], "shop_1") == []
    assert missing([f"GRANT {every} ON `shop\\_%`.* TO `u`@`%`"], "shopx1") != []
    assert missing([f"GRANT {every} ON `d`.`t` TO `u`@`%`"], "d") != [], "one table is not the database"
    two = ["GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO `u`@`%`",
           "GRANT CREATE, DROP, ALTER, INDEX, CREATE VIEW ON `d`.* TO `u`@`%`"]  # fmt: skip
    assert missing(two, "d") == []
    assert missing(two, "e") == ["CREATE", "DROP", "ALTER", "INDEX", "CREATE VIEW"]
    some = ["GRANT SELECT (`a`, `b b`), INSERT ON `d`.`t` TO `u`@`%`", "GRANT SELECT ON `d`.`u` TO `u`@`%`"]
    assert in_columns_alone(some) == [("d", "t")]
    assert in_columns_alone([*some, "GRANT SELECT ON `d`.* TO `u`@`%`"]) == []
