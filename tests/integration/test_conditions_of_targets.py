"""A server that is full, read-only or at a limit, and an account without a right, are not blamed on a row or a DDL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from pumphouse.diff.compare import compare
from pumphouse.dump.source import execute, session
from pumphouse.errors import AccessDenied, ConfigError, DdlRefused, LoadError, RowRejected
from pumphouse.loader import fence
from pumphouse.loader.grants import LOADING
from pumphouse.loader.plan import Phase, UnitId
from pumphouse.loader.target import StatementFailed, TargetConnection
from pumphouse.loader.unit import Claim, UnitHead, apply_units
from pumphouse.mysql.dsn import Dsn
from pumphouse.replay import Dml, Replay, Txn
from pumphouse.runs import load
from pumphouse.schema.history import open_history
from pumphouse.settings import Settings, TargetSettings
from tests.integration.test_load_schema_edges import create_view
from tests.integration.test_load_units import ids
from tests.stack.mariadb import MariaDbServer
from tests.support import mariadb
from tests.support.kind import is_mysql
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column, target_rows

ID, TEXT = column(1, "id", flag=3), column(2, "v", 15)
LOAD = {"engine": "local", "buckets": 1}
WHO = "loader@'127.0.0.1'"


def in_mode(settings: Settings, mode: str) -> Settings:
    return settings.model_copy(update={"load": settings.load.model_copy(update={"mode": mode})})


@pytest.fixture
def loaded(source: MadeSource, settings: Settings, target: TargetConnection) -> MadeSource:
    """A target that was loaded, and a window with rows and a DDL that it has not."""
    source.create_table("t", [ID, TEXT])
    source.genesis()
    source.cut()
    load.run(settings)
    with source.txn() as t:
        t.insert("t", id=2, v=b"b")
    source.cut()
    return source


@pytest.fixture
def as_user(target: TargetConnection, settings: Settings) -> Iterator[Callable[..., Settings]]:
    """Settings whose user may do what is said, and no more."""

    def made(*grants: str, more: str = "") -> Settings:
        mariadb.new_user(target.execute, WHO)
        for grant in grants:
            target.execute(f"GRANT {grant} TO {WHO}")
        if more:
            target.execute(more)
        user = settings.target.model_copy(update={"user": "loader", "password": SecretStr("pw")})
        return settings.model_copy(update={"target": user})

    yield made
    target.execute(f"DROP USER IF EXISTS {WHO}")


def refused(settings: Settings, **how: Any) -> LoadError:
    with pytest.raises(LoadError) as caught:
        load.run(settings, **how)
    assert not isinstance(caught.value, RowRejected | DdlRefused)
    assert "park" not in str(caught.value)
    return caught.value


_SOME = "SELECT, CREATE, DELETE, DROP, INDEX, ALTER, CREATE TEMPORARY TABLES, TRIGGER ON d.*"


@pytest.mark.row("L4")
@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_a_privilege_that_the_user_lacks_is_no_rows_fault(
    loaded: MadeSource, as_user: Callable[..., Settings], target: TargetConnection, mode: str
) -> None:
    told = in_mode(as_user(_SOME, "ALL ON pumphouse.*"), mode)
    error = refused(told)
    assert "INSERT command denied" in error.message
    assert "GRANT" in error.hint
    assert not error.retryable
    target.execute(f"GRANT INSERT ON d.* TO {WHO}")
    load.run(told)
    assert target_rows(target) == loaded.snapshot()


@pytest.mark.row("L4")
@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_a_server_that_is_read_only_for_now_is_tried_again(
    loaded: MadeSource, as_user: Callable[..., Settings], target: TargetConnection, mode: str
) -> None:
    anyway = "CONNECTION_ADMIN" if is_mysql() else "READ ONLY ADMIN"
    told = in_mode(as_user("ALL ON *.*", more=f"REVOKE {anyway}, SUPER ON *.* FROM {WHO}"), mode)
    target.execute("SET GLOBAL read_only = 1")
    try:
        error = refused(told)
        assert "read-only" in error.message
        assert "read_only = OFF" in error.hint
        assert error.retryable
    finally:
        target.execute("SET GLOBAL read_only = 0")
    load.run(told)
    assert target_rows(target) == loaded.snapshot()


@pytest.mark.row("L4")
def test_a_limit_of_the_user_is_no_rows_fault(
    loaded: MadeSource, as_user: Callable[..., Settings], target: TargetConnection
) -> None:
    told = as_user("ALL ON *.*", more=f"ALTER USER {WHO} WITH MAX_UPDATES_PER_HOUR 6")
    error = refused(told)
    assert "max_update" in error.message
    assert error.retryable
    target.execute(f"ALTER USER {WHO} WITH MAX_UPDATES_PER_HOUR 0")
    load.run(told)
    assert target_rows(target) == loaded.snapshot()


@pytest.mark.row("L6")
@pytest.mark.parametrize("right", ["ALTER", "CREATE"])
def test_a_privilege_that_a_ddl_lacks_offers_no_rule_to_go_past_it(
    loaded: MadeSource, as_user: Callable[..., Settings], target: TargetConnection, right: str
) -> None:
    if right == "ALTER":
        loaded.alter("t", 5, {**loaded.tables["t"].info.raw, "comment": "other"})
    else:
        loaded.create_table("new", [ID])
    loaded.cut()
    rights = "SELECT, INSERT, DELETE, DROP, INDEX, CREATE TEMPORARY TABLES, TRIGGER ON d.*"
    told = as_user(rights, "ALL ON pumphouse.*")
    error = refused(told)
    assert f"{right} command denied" in error.message
    assert "skip" not in error.hint
    target.execute(f"GRANT ALTER, CREATE ON d.* TO {WHO}")
    load.run(told)
    assert target_rows(target) == loaded.snapshot()


@pytest.mark.row("L6")
def test_a_view_over_what_the_user_may_not_read_is_left_out_by_name(
    source: MadeSource, settings: Settings, as_user: Callable[..., Settings], target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    # A server says of a database that is gone what it says of one that the user may not read.
    create_view(source, "v", "SELECT `gone`.`t`.`id` AS `id` FROM `gone`.`t`")
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1, v=b"a")
    source.cut()
    rights = f"{', '.join(LOADING)}, CREATE TEMPORARY TABLES, TRIGGER ON d.*"
    report = load.run(as_user(rights, "ALL ON pumphouse.*"))
    assert ["the view `d`.`v` is left out" in note for note in report.notes] == [True]
    assert target_rows(target) == source.snapshot()


@pytest.fixture(scope="module")
def small() -> Iterator[TargetSettings]:
    """A server whose tablespace takes no more than some MB."""
    arguments = (
        "--innodb-file-per-table=OFF",
        "--innodb-data-file-path=ibdata1:12M:autoextend:max:18M",
        "--innodb-autoextend-increment=1",
        "--innodb-undo-tablespaces=0",
    )
    with mariadb.directory_in_memory() as directory, MariaDbServer(directory, arguments=arguments) as server:
        yield mariadb.settings_of(server)


@pytest.mark.row("L4")
@pytest.mark.parametrize("how", ["merge", "replay", "restore"])
def test_a_target_that_is_full_is_no_rows_fault(
    source: MadeSource, settings: Settings, small: TargetSettings, how: str
) -> None:
    source.create_table("big", [ID, column(2, "v", 15, flen=3000)])
    source.genesis()
    with source.txn() as t:
        for number in range(5000):
            t.insert("big", id=number, v=b"x" * 2500)
    end = source.cut()
    with TargetConnection.open(small) as connection:
        connection.execute("DROP DATABASE IF EXISTS d")
        connection.execute("DROP DATABASE IF EXISTS pumphouse")
    told = settings.model_copy(update={"target": small, "restore_target": small})
    with pytest.raises(LoadError, match="full") as caught:
        if how == "restore":
            restored(told, to=end, dry_run=False)
        else:
            load.run(in_mode(told, how))
    assert not isinstance(caught.value, RowRejected)
    assert "big" in caught.value.message
    assert "free or add" in caught.value.hint
    assert "park" not in str(caught.value)
    assert caught.value.retryable


@pytest.mark.row("L3")
def test_a_stream_says_the_same(target: TargetConnection, as_user: Callable[..., Settings]) -> None:
    target.execute("CREATE DATABASE d")
    target.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
    told = as_user(_SOME, "ALL ON pumphouse.*").target
    with pytest.raises(StatementFailed, match="INSERT command denied") as caught, Replay(told) as replay:
        replay.input.put(Txn(dmls=[Dml(kind="insert", db="d", table="t", values={"id": 1})], commit_ts=1))
        replay.close()
        replay.run()
    assert "GRANT" in caught.value.hint


def _dump(settings: Settings) -> None:
    with session(settings.source):
        pass


def _history(settings: Settings) -> None:
    source = open_history(settings.history)
    assert source is not None
    source.job(1)


def _diff(settings: Settings) -> None:
    server, password = settings.source, settings.source.password.get_secret_value()
    side = Dsn(
        host=server.host, port=server.port, user=server.user, password=password,
        tls_ca=str(server.tls_ca or ""), tls_check_name=server.tls_check_name,
    )  # fmt: skip
    compare(side, side)


DOORS: dict[str, Callable[[Settings], Any]] = {
    "load": load.run,
    "restore": lambda settings: restored(settings, dry_run=True),
    "dump": _dump,
    "history": _history,
    "diff": _diff,
}


@pytest.mark.row("L6")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("why", ["password", "locked"])
@pytest.mark.usefixtures("loaded")
def test_a_user_that_is_not_let_in_is_not_tried_again(
    as_user: Callable[..., Settings], target: TargetConnection, door: str, why: str
) -> None:
    """And not called a server that does not answer."""
    told = as_user("ALL ON *.*")
    if why == "password":
        wrong = told.target.model_copy(update={"password": SecretStr("wr0ng")})
        told = told.model_copy(update={"target": wrong})
    else:
        target.execute(f"ALTER USER {WHO} ACCOUNT LOCK")
    asked = {"source": mariadb.as_source(told.target), "history": mariadb.as_history(told.target, "d.jobs")}
    with pytest.raises(AccessDenied, match="does not let us in") as caught:
        DOORS[door](told.model_copy(update=asked))
    assert not caught.value.retryable
    assert "check " in caught.value.hint
    assert "wr0ng" not in str(caught.value)
    assert "does not answer" not in str(caught.value)


@pytest.mark.row("W6")
@pytest.mark.mysql
# caching_sha2_password asks for the password itself; no plugin of a MariaDB does that by default.
@pytest.mark.skipif(not is_mysql(), reason="a MariaDB takes a digest of each password")
@pytest.mark.parametrize("door", DOORS)
def test_a_password_that_the_server_has_not_seen_yet_is_told_by_tls_alone(
    loaded: MadeSource, as_user: Callable[..., Settings], target: TargetConnection, door: str
) -> None:
    """By the certificates that MySQL makes for itself."""
    told = as_user("ALL ON *.*")

    def enter(server: TargetSettings) -> None:
        more = {
            "load": {"target": server},
            "restore": {"target": server},
            "dump": {"source": mariadb.as_source(server)},
            "history": {"history": mariadb.as_history(server, "d.jobs")},
            "diff": {"source": mariadb.as_source(server)},
        }
        DOORS[door](told.model_copy(update=more[door]))

    target.execute("CREATE TABLE d.jobs (job_id BIGINT PRIMARY KEY, job LONGBLOB)")
    with pytest.raises(ConfigError, match="asks for the password itself") as caught:
        enter(told.target.model_copy(update={"tls_ca": None}))
    assert "ca.pem" in caught.value.hint
    enter(told.target)
    target.execute("DROP TABLE d.jobs")
    load.run(told)
    assert target_rows(target) == loaded.snapshot()


@pytest.mark.row("A3")
@pytest.mark.usefixtures("loaded")
def test_a_dump_without_the_right_to_read_is_not_tried_again(as_user: Callable[..., Settings]) -> None:
    told = as_user("USAGE ON *.*").target
    refused_ = pytest.raises(AccessDenied, match="SELECT command denied")
    with refused_ as caught, session(mariadb.as_source(told)) as connection:
        execute(connection, "SELECT * FROM d.t")
    assert not caught.value.retryable
    assert "SELECT" in caught.value.hint


@pytest.mark.row("L5")
def test_a_duplicate_of_another_table_is_no_unit_that_was_applied(target: TargetConnection) -> None:
    """Whatever its name is."""
    with mariadb.owned(target.settings) as (owner, owned):
        target.execute("CREATE DATABASE d")
        target.execute("CREATE TABLE d.applied (id BIGINT PRIMARY KEY)")
        target.execute("CREATE TABLE d.log (id INT PRIMARY KEY)")
        target.execute("INSERT INTO d.applied VALUES (1)")
        target.execute("INSERT INTO d.log VALUES (1)")
        target.execute("CREATE TRIGGER d.ad AFTER DELETE ON d.applied FOR EACH ROW INSERT INTO d.log VALUES (OLD.id)")
        head = UnitHead(unit=UnitId(0, Phase.DELETE, 7, 0), db="d", table="applied", key=("id",))
        with pytest.raises(StatementFailed, match="Duplicate entry"):
            apply_units(owner, Claim(task="main", plan=1, fence=owned.number), [(head, [ids(1)])])
        assert target.query("SELECT id FROM d.applied") == [(1,)]
        fence.check_lock(owner)
