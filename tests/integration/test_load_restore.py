"""Restores on a real MariaDB: to any moment, over whatever is there; killed ones leave the target incomplete."""

import functools
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pumphouse.archive.manifest import Declaration
from pumphouse.cli import cli
from pumphouse.errors import (
    CorruptionError,
    LoadError,
    RestoreError,
    TargetIncomplete,
    TargetUnreachable,
    UnknownTable,
    UsageError,
)
from pumphouse.executor.executor import Executor
from pumphouse.loader import state
from pumphouse.loader.apart import server_name
from pumphouse.loader.target import TargetConnection
from pumphouse.model.tso import Tso, show
from pumphouse.runs import load, restore
from pumphouse.settings import Settings
from tests.support.killed import Killed
from tests.support.loading import read_checkpoint, restored
from tests.support.madearchive import Churn, MadeSource, column, target_rows


@pytest.mark.mysql
@pytest.mark.row("R1")
def test_a_restore_brings_back_every_marked_moment_also_in_the_middle_of_a_window(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    genesis = source.genesis()
    marks = [(genesis, source.snapshot())]
    churn.work(5)
    marks.append((Tso(source.tick()), source.snapshot()))
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    churn.work(5)
    source.cut()
    marks.append((Tso(source.tick()), source.snapshot()))
    churn.work(5)
    source.drop_table("k")
    marks.append((Tso(source.tick()), source.snapshot()))
    source.create_table("k", [column(1, "a"), column(2, "b")])
    source.drop_table("k")
    end = source.cut()
    # What is there before, of another load and beyond the moment, is thrown away.
    load.run(settings)
    target.execute("CREATE TABLE d.stray (id INT)")
    target.execute("INSERT INTO pumphouse.failed (task, error, message, hint) VALUES ('apply', 'LoadError', 'm', '')")
    for at, rows in marks:
        report = restored(settings, to=at, dry_run=False, task="apply")
        assert target_rows(target) == rows
        assert read_checkpoint(settings.restore_target, "apply") == at
        assert report.to_dict()["to"] == at
        assert target.query("SELECT task FROM pumphouse.failed") == []
    assert load.run(settings, task="apply").to_ts == end
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("R2")
def test_a_dry_run_shows_the_plan_and_touches_nothing(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(5)
    source.truncate("k")
    middle = Tso(source.tick())
    churn.work(2)
    source.cut()
    shown = restored(settings, to=middle, dry_run=True).to_dict()
    assert shown["plan"]["windows"] == 1
    assert shown["plan"]["last_window_cut"] is True
    assert shown["plan"]["rows"] > 0
    assert shown["plan"]["bytes"] > 0
    assert [ddl["action"] for ddl in shown["plan"]["ddls"]] == ["TRUNCATE_TABLE"]
    assert shown["plan"]["databases"] == ("d",)
    assert "root@127.0.0.1" in shown["target"]
    assert ("pumphouse",) not in target.query("SHOW DATABASES")


@pytest.mark.row("R1")
def test_a_killed_restore_leaves_the_target_incomplete_and_runs_again(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(5)
    end = source.cut()

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(state, "set_state", die)
        with pytest.raises(Killed):
            restored(settings, to=end, dry_run=False)
    with pytest.raises(TargetIncomplete, match="has not ended"):
        load.run(settings)
    restored(settings, to=end, dry_run=False)
    assert target_rows(target) == source.snapshot()
    assert load.run(settings).plans == 0


@pytest.mark.row("R1", "R2")
def test_what_a_restore_that_has_not_ended_put_there_needs_no_name_and_all_else_does(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(5)
    first = source.cut()
    churn.work(5)
    end = source.cut()
    unnamed = functools.partial(restore.run, settings, into="target", dry_run=False)

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(state, "set_state", die)
        unnamed(to=end)
    for other in ({"to": first}, {"to": end, "anew": True}):
        with pytest.raises(RestoreError, match="has data that would be dropped"):
            unnamed(**other)
    own_target = restore.own_target

    def ended_by_another(*args: Any, **more: Any) -> Any:
        patch.undo()
        restored(settings, to=end, dry_run=False)
        return own_target(*args, **more)

    target.execute("CREATE TABLE d.others (id INT)")
    with monkeypatch.context() as patch, pytest.raises(RestoreError, match="has data that would be dropped"):
        patch.setattr(restore, "own_target", ended_by_another)
        unnamed(to=end)
    assert target.query("SHOW TABLES IN d LIKE 'others'")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(state, "set_state", die)
        restored(settings, to=end, dry_run=False)
    assert unnamed(to=end).load.resumed
    assert target_rows(target) == source.snapshot()
    with pytest.raises(RestoreError, match="has data that would be dropped"):
        unnamed(to=end)


@pytest.mark.row("R1", "L6")
def test_a_restore_forgets_what_the_target_knew_of_its_load_before_it_drops_anything(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(5)
    first, then = source.cut(), source.snapshot()
    load.run(settings)
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    churn.work(5)
    source.cut()

    def known() -> tuple[list[tuple[str, str]], dict[str, int]]:
        rows = target.query("SELECT state, reason FROM pumphouse.checkpoint")
        kept = ("plan", "applied", "ddl")
        return rows, {name: target.value(f"SELECT COUNT(*) FROM pumphouse.{name}") for name in kept}

    execute = TargetConnection.execute
    dropped: list[str] = []
    seen: list[tuple[list[tuple[str, str]], dict[str, int]]] = []

    def deadly(self: TargetConnection, statement: str, *args: Any) -> int:
        if "state = 'closed'" in statement:
            raise Killed
        if statement.startswith("DROP DATABASE"):
            seen.append(known())
            execute(self, statement, *args)
            dropped.append(statement)
            raise Killed
        return execute(self, statement, *args)

    with monkeypatch.context() as patch:
        patch.setattr(TargetConnection, "execute", deadly)
        # All of a plan is done but its end: an open plan, units and a DDL that were done.
        with pytest.raises(Killed):
            load.run(settings)
        rows, kept = known()
        assert rows == [("ready", "")]
        assert all(count > 0 for count in kept.values()), kept
        with pytest.raises(Killed):
            restored(settings, to=first, dry_run=False)
    assert len(dropped) == 1
    ((rows, kept),) = seen
    assert [(state, reason.startswith("a restore to")) for state, reason in rows] == [("incomplete", True)]
    assert kept == {"plan": 0, "applied": 0, "ddl": 0}
    # What is left of the databases is nothing that a load may go on from.
    with pytest.raises(TargetIncomplete, match="has not ended"):
        load.run(settings)
    restored(settings, to=first, dry_run=False)
    assert target_rows(target) == then
    load.run(settings)
    assert target_rows(target) == source.snapshot()


def settings_file(directory: Path, settings: Settings, section: str = "restore_target") -> Path:
    """What a command needs of these settings; a restore refuses a server that is [target], too."""
    path = directory / "pumphouse.toml"
    to = getattr(settings, section)
    path.write_text(
        f'[cluster]\nurl = "{settings.cluster.url}"\n[archive]\nroot = "{settings.archive.root}"\n'
        f'[{section}]\nhost = "127.0.0.1"\nport = {to.port}\nuser = "root"\n'
        f'password = "{to.password.get_secret_value()}"\n[load]\nengine = "local"\n'
    )
    return path


@pytest.mark.row("R1", "L6")
@pytest.mark.parametrize("damaged", ["SET digest = 'x'", "SET spec = REPLACE(spec, '\"version\":2', '\"version\":9')"])
def test_a_restore_goes_past_an_open_plan_that_cannot_be_read(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    load.run(settings)
    with source.txn() as t:
        t.insert("t", id=1)
    end = source.cut()

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Executor, "_tell", killed)
        load.run(settings)
    assert target.execute(f"UPDATE pumphouse.plan {damaged} WHERE state = 'open'") == 1
    with pytest.raises(CorruptionError):
        load.run(settings)
    restored(settings, to=end, dry_run=False)
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("R1")
def test_a_moment_outside_the_archive_is_refused_with_what_there_is(source: MadeSource, settings: Settings) -> None:
    at = source.genesis()
    for wrong in (Tso(at - 1), Tso(at + 1)):
        with pytest.raises(TargetUnreachable) as unreachable:
            restored(settings, to=wrong, dry_run=True)
        assert (unreachable.value.have_from, unreachable.value.have_to) == (at, at)


@pytest.mark.row("R1", "R2", "A2")
def test_a_restore_over_a_declared_loss_names_it_and_must_be_told_to_accept_it(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    before = source.cut()
    with source.txn() as t:
        t.insert("t", id=2)
    lost = Declaration(
        node_id="pump-7", incarnation="i", from_ts=before, to_ts=Tso(source.ts + 1), reason="its disk died", who="ops"
    )
    end = source.cut(declared=(lost,), binlog_skipped=True)
    shown = restored(settings, to=end, dry_run=True).to_dict()["plan"]
    assert [each["node_id"] for each in shown["declared"]] == ["pump-7"]
    assert shown["binlog_skipped"] == ({"start": before, "end": end},)
    with pytest.raises(RestoreError, match=r"pump-7.*its disk died.*--accept-losses"):
        restored(settings, to=end, dry_run=False)
    assert ("d",) not in target.query("SHOW DATABASES")
    assert restored(settings, to=before, dry_run=False).to_dict()["plan"]["declared"] == ()
    # A load takes what the archive took, and says so.
    loaded = load.run(settings)
    assert (loaded.declared, loaded.to_ts) == ([lost], end)
    done = restored(settings, to=end, dry_run=False, accept_losses=True)
    assert done.load.declared == [lost]

    config = settings_file(tmp_path, settings)

    def command(*more: str) -> Result:
        return CliRunner().invoke(cli, ["--config", str(config), "restore", "--to", str(end), *more])

    assert "pump-7" in command("--dry-run").output
    name = server_name(settings.restore_target)
    refused = command("--replace", name)
    assert isinstance(refused.exception, RestoreError)
    assert "pump-7" in refused.output
    accepted = command("--replace", name, "--accept-losses")
    assert accepted.exit_code == 0
    assert "pump-7" in accepted.output.split("restored to")[1]


@pytest.mark.row("L6")
def test_a_load_goes_to_a_moment_or_to_latest_and_resyncs_one_table_a_run(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    for row in (1, 2):
        with source.txn() as t:
            t.insert("t", id=row)
        end = source.cut()
        if row == 1:
            first, then = end, source.snapshot()
    config = settings_file(tmp_path, settings, "target")

    def command(*more: str) -> Result:
        return CliRunner().invoke(cli, ["--config", str(config), "load", *more])

    assert command("--to", str(first)).exit_code == 0
    assert (read_checkpoint(settings.target, "main"), target_rows(target)) == (first, then)
    both = command("--to", "latest", "--resync", "d.t", "--resync", "d.u")
    assert isinstance(both.exception, UsageError)
    assert "one table" in str(both.exception)
    assert command("--to", "latest").exit_code == 0
    assert (read_checkpoint(settings.target, "main"), target_rows(target)) == (end, source.snapshot())


@pytest.mark.row("R1", "R2")
def test_latest_says_which_moment_it_is_before_anything_is_dropped_and_now_is_refused(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    end = source.cut()
    config = settings_file(tmp_path, settings)

    def command(*more: str) -> Result:
        return CliRunner().invoke(cli, ["--config", str(config), "restore", *more])

    moment = f"moment    {show(end)}, the end of the archive"
    assert moment in command("--to", "latest", "--dry-run").output
    target.execute("CREATE DATABASE d")
    target.execute("CREATE TABLE d.mine (id INT)")
    unasked = command("--to", "latest")
    assert moment in unasked.output
    assert f"as of {show(end)}" in unasked.stderr, "also with --json, which prints no plan before"
    assert isinstance(unasked.exception, RestoreError)
    assert target.query("SHOW TABLES IN d") == [("mine",)]
    for refused in (command("--to", "now"), command("--to", "2999-01-01T00:00:00Z")):
        assert isinstance(refused.exception, TargetUnreachable)
        assert "--to latest" in refused.exception.hint
        assert ("in the future" in str(refused.exception)) is ("2999" in str(refused.exception))
    assert target.query("SHOW TABLES IN d") == [("mine",)]
    done = command("--to", "latest", "--replace", server_name(settings.restore_target))
    assert done.exit_code == 0, done.output
    assert f"restored to {show(end)}" in done.output
    assert target_rows(target) == source.snapshot()
    assert read_checkpoint(settings.restore_target, "main") == end


@pytest.mark.row("R1", "S1")
def test_of_a_row_of_an_unknown_table_only_what_lies_before_it_can_be_had(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    unknown = source.create_table("t", [column(1, "id", flag=3)]) + 1
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    source.cut()
    load.run(settings)
    loaded = target_rows(target)
    with source.txn() as t:
        t.insert("t", id=2)
    before, rows = Tso(source.tick()), source.snapshot()
    with source.txn() as t:
        t.builder.insert(unknown, b"\x08\x02\x00")
    source.cut()
    with pytest.raises(UnknownTable) as refused:
        load.run(settings)
    assert before < refused.value.commit_ts <= source.ts
    assert target_rows(target) == loaded, "nothing of the plan was done"
    assert load.run(settings, to=before).to_ts == before, "the plan that could not be carried out is in nobody's way"
    assert target_rows(target) == rows
    # The table's DDL comes too late for rows that were written before it.
    assert source.create_table("late", [column(1, "id", flag=3)]) == unknown
    end = source.cut()
    with pytest.raises(UnknownTable):
        load.run(settings)
    with pytest.raises(UnknownTable):
        restored(settings, to=end, dry_run=False)
    restored(settings, to=before, dry_run=False)
    assert target_rows(target) == rows
    with pytest.raises(UnknownTable):
        load.run(settings)


@pytest.mark.row("R1")
def test_a_restore_replaces_what_was_loaded_from_another_clusters_archive(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    end = source.cut()
    load.run(settings)
    target.execute("UPDATE pumphouse.checkpoint SET cluster_id = 1234")
    with pytest.raises(LoadError, match="cluster 1234"):
        load.run(settings)
    restored(settings, to=end, dry_run=False)
    assert load.run(settings).to_ts == end


def test_an_archive_without_a_dump_cannot_restore(source: MadeSource, settings: Settings) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    at = source.genesis(base=False)
    with pytest.raises(RestoreError, match="no dump of the tables") as refused:
        restored(settings, to=at, dry_run=True)
    assert "pumphouse archive dump" in str(refused.value)


@pytest.mark.row("R1")
def test_an_archive_that_was_begun_when_there_were_no_tables_needs_no_dump(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.genesis(base=False)
    source.create_table("t", [column(1, "id", flag=3)])
    with source.txn() as t:
        t.insert("t", id=1)
    middle, rows = Tso(source.tick()), source.snapshot()
    with source.txn() as t:
        t.insert("t", id=2)
    source.cut()
    load.run(settings)
    assert target_rows(target) == source.snapshot()
    restored(settings, to=middle, dry_run=False)
    assert target_rows(target) == rows
