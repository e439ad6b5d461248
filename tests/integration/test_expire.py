"""Retention as a user has it: commands, a real MariaDB, an S3 server; every kept moment is restored (rows A5, O1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pumphouse.archive.archive import Archive
from pumphouse.archive.retention import Policy
from pumphouse.archive.verify import verify
from pumphouse.cli import cli
from pumphouse.errors import BinlogError, TargetUnreachable, UsageError
from pumphouse.executor.executor import Executor
from pumphouse.loader.plan import Mode
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.work import Work
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.open import open_store
from pumphouse.runs import drill, expire, load, proof
from pumphouse.settings import Settings, TargetSettings
from pumphouse.status.look import look
from tests.support import formats
from tests.support.agedarchive import Aged, grown, require_restorable
from tests.support.dumpedsource import DumpedSource
from tests.support.loading import read_checkpoint, restored
from tests.support.madearchive import MadeSource, column, target_rows
from tests.support.mariadb import as_lines
from tests.support.motoserver import s3_server

pytestmark = [pytest.mark.row("A5"), pytest.mark.usefixtures("target")]
SOURCE = DumpedSource


def command(tmp_path: Path, settings: Settings, *words: str) -> Result:
    path = tmp_path / "pumphouse.toml"
    path.write_text(
        f'[cluster]\nurl = "{settings.cluster.url}"\n[archive]\nroot = "{settings.archive.root}"\n[load]\n'
        f'engine = "local"\n[target]\n{as_lines(settings.target)}'
    )
    return CliRunner().invoke(cli, ["--config", str(path), *words])


def said(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.exception or result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def set_checkpoint(target: TargetConnection, ts: Tso) -> None:
    target.execute("UPDATE pumphouse.checkpoint SET ts = %s", (int(ts),))


@pytest.fixture
def made(source: MadeSource) -> Aged:
    assert isinstance(source, DumpedSource)
    return grown(source)


@pytest.mark.mysql
@pytest.mark.row("R1")
def test_every_kept_moment_is_restored_as_it_was_and_one_before_is_refused_by_name(
    made: Aged, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    load.run(settings)
    dry = said(command(tmp_path, settings, "archive", "expire", "--keep-bases", "2", "--dry-run", "--json"))
    assert (dry["dry_run"], dry["restorable_from_ts"]) == (True, made.dumps[-2])
    assert "restorable_from_time" in dry
    refused = command(tmp_path, settings, "archive", "expire", "--keep-bases", "2")
    assert isinstance(refused.exception, UsageError), "nobody said yes"
    done = said(command(tmp_path, settings, "archive", "expire", "--keep-bases", "2", "--yes", "--json"))
    assert done["objects"] == dry["objects"]
    formats.check("expire-output", done)
    for each in made.source.archive.store.list("range/"):
        formats.check("range", json.loads(made.source.archive.store.get(each.key)))
    kept = [(at, rows) for at, rows in made.moments if at >= made.dumps[-2]]
    assert len(kept) >= 4
    for at, rows in kept:
        restored(settings, to=at, dry_run=False, task="apply")
        assert target_rows(target) == rows, show(at)
    with pytest.raises(TargetUnreachable, match=f"keeps moments from {made.dumps[-2]}"):
        restored(settings, to=made.moments[0][0], dry_run=False, task="apply")
    listed = command(tmp_path, settings, "archive", "ls").stdout
    assert f"restorable from {show(made.dumps[-2])}" in listed
    assert "expired at" in listed
    status = look(settings, within_s=20).archive
    assert status.restorable_from == made.dumps[-2]
    assert "expired at" in status.expired
    assert f"kept       {status.expired}" in command(tmp_path, settings, "status").stdout


def test_loads_proofs_drills_and_find_go_on_behind_the_range(
    made: Aged, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    load.run(settings)
    said(command(tmp_path, settings, "archive", "expire", "--keep-bases", "1", "--yes", "--json"))
    with made.source.txn() as txn:
        txn.insert("new0", id=77)
    made.source.drop_column("t", "n")
    made.source.cut()
    assert load.run(settings).to_ts == made.source.archive.end()
    assert target_rows(target) == made.source.snapshot()
    proven = proof.prove(settings, on="target")
    assert proven.verdict == "equal"
    assert proven.base == made.dumps[-1]
    for seed in range(3):
        done = drill.run(settings, into="target", named="target", seed=seed)
        assert done.drill.green
        assert done.drill.at >= made.dumps[-1]
    found = said(command(tmp_path, settings, "archive", "find", "--from", str(made.dumps[-1]), "--json"))
    assert found["found"]
    expired = command(tmp_path, settings, "archive", "find", "--from", str(made.dumps[0]), "--json")
    assert "was before expired at" in str(expired.exception)
    for words in (["archive", "verify"], ["archive", "verify", "--quick"], ["schema", "rebuild"], ["schema", "show"]):
        assert command(tmp_path, settings, *words).exit_code == 0
    assert command(tmp_path, settings, "archive", "show", str(made.source.archive.end())).exit_code == 0
    assert verify(made.source.archive).problems == []


def test_a_target_that_is_behind_holds_its_windows_and_is_named_until_it_is_left_out(
    made: Aged, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    behind = Tso(made.dumps[1] + 1)
    load.run(settings)
    set_checkpoint(target, behind)
    shown = command(tmp_path, settings, "archive", "expire", "--keep-bases", "1", "--dry-run")
    assert f"held by target ({settings.target.user}@" in shown.stdout
    done = said(command(tmp_path, settings, "archive", "expire", "--keep-bases", "1", "--yes", "--json"))
    assert done["start_ts"] <= behind
    assert done["restorable_from_ts"] == made.dumps[-1]
    free = said(
        command(tmp_path, settings, "archive", "expire", "--keep-bases", "1", "--without", "target", "--yes", "--json")
    )
    assert free["start_ts"] > behind
    with pytest.raises(BinlogError, match="expired at"):
        load.run(settings)
    assert read_checkpoint(settings.target, "main") == behind
    wrong = command(tmp_path, settings, "archive", "expire", "--without", "targt", "--yes")
    assert "no server of the settings is called 'targt'" in str(wrong.exception)


@pytest.mark.row("L7")
def test_a_table_that_is_made_anew_holds_the_dump_that_it_is_filled_from(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(source, DumpedSource)
    source.create_table("t", [column(1, "id", flag=3)])
    with source.txn() as txn:
        txn.insert("t", id=1)
    first = source.genesis()
    source.cut()
    load.run(settings)
    tell, seen = Executor._tell, list[expire.ExpireReport]()

    def meanwhile(self: Executor, work: Work) -> None:
        """The next dump, and an expiry, while the dump before is read."""
        tell(self, work)
        if work.plan.mode is Mode.BASE:
            low = source.cut()
            source.publish(low, [source.read("t", low, low)])
            for _ in range(3):
                source.cut()
            seen.append(expire.run(settings, Policy(bases=1)))

    with monkeypatch.context() as patch:
        patch.setattr(Executor, "_tell", meanwhile)
        load.run(settings, resync="d.t")
    (done,) = seen
    assert done.restorable_from == first
    assert "is filling d.t from the dump of" in done.held[0]
    load.run(settings)
    assert target_rows(target) == source.snapshot()
    freed = expire.run(settings, Policy(bases=1))
    assert freed.restorable_from == source.archive.bases(source.archive.end())[-1].ts


def test_a_server_that_was_restored_holds_what_a_backfill_needs_whatever_is_loaded(
    made: Aged, settings: Settings, target: TargetConnection
) -> None:
    load.run(settings)
    behind = Tso(made.dumps[1] + 1)
    set_checkpoint(target, behind)
    elsewhere = settings.airflow.model_copy(update={"load_targets": ("another",)})
    there = settings.model_copy(update={"restore_target": settings.target, "target": TargetSettings()})
    there = there.model_copy(update={"airflow": elsewhere})
    done = expire.run(there, Policy(bases=1))
    assert done.start <= behind
    assert any(each.startswith("restore_target ") for each in done.held)
    assert expire.run(there, Policy(bases=1), without=("restore_target", "another")).start > behind


def test_a_target_that_only_airflow_knows_holds_everything_until_it_is_left_out(made: Aged, settings: Settings) -> None:
    def named(**names: tuple[str, ...]) -> Settings:
        return settings.model_copy(update={"airflow": settings.airflow.model_copy(update=names)})

    of = named(
        load_targets=("warehouse", "reporting"),
        gc_targets=("warehouse", "late"),
        restore_targets=("spare", "pumphouse_source", "more"),
    )
    done = expire.run(of, Policy(bases=1), dry_run=True)
    assert done.why_nothing == "it is held"
    assert [each.split()[0] for each in done.held] == ["warehouse", "reporting", "late", "spare", "more"]
    assert "--without late" in done.held[2]
    shown = expire.run(of, Policy(bases=1), without=("warehouse", "reporting", "late"), dry_run=True)
    assert [each.split()[0] for each in shown.held] == ["spare", "more"]
    # One name alone is that of the section, as GC takes it; and what nobody has set names nobody.
    there = {"target": settings.target, "restore_target": settings.target}
    alone = named(load_targets=("warehouse",), restore_targets=("spare", "pumphouse_source")).model_copy(update=there)
    assert expire.run(alone, Policy(bases=1), dry_run=True).moves
    assert expire.run(settings.model_copy(update={"target": TargetSettings()}), Policy(bases=1), dry_run=True).moves
    free = expire.run(of, Policy(bases=1), without=("warehouse", "reporting", "late", "spare", "more"))
    assert free.restorable_from == made.dumps[-1]


def test_a_wish_that_is_not_given_is_that_of_the_settings(made: Aged, settings: Settings, tmp_path: Path) -> None:
    words = ("--set", "retention.keep_days=20000", "archive", "expire", "--keep-bases", "1", "--dry-run", "--json")
    dry = said(command(tmp_path, settings, *words))
    assert dry["policy"] == "1 bases and 20000 days"
    assert not dry["windows_gone"]


def test_a_server_that_does_not_answer_or_is_being_filled_holds_what_it_may_need(
    made: Aged, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    restored(settings, to=made.moments[1][0], dry_run=False, task="main")
    target.execute("UPDATE pumphouse.checkpoint SET state = 'incomplete', reason = 'a restore has not ended'")
    set_checkpoint(target, made.dumps[0])
    filled = said(command(tmp_path, settings, "archive", "expire", "--keep-bases", "1", "--yes", "--json"))
    assert filled["restorable_from_ts"] == made.dumps[0]
    assert "is being filled" in filled["held"][0]
    away = settings.model_copy(update={"target": settings.target.model_copy(update={"port": 1, "unix_socket": ""})})
    held = said(command(tmp_path, away, "archive", "expire", "--keep-bases", "1", "--yes", "--json"))
    assert held["why_nothing"] == "it is held"
    assert "target does not say what it needs" in held["held"][0]


def test_marks_are_listed_and_keep_their_moment(made: Aged, settings: Settings, tmp_path: Path) -> None:
    at, rows = made.moments[2]
    assert command(tmp_path, settings, "archive", "marks").stdout.startswith("no moment is marked")
    marked = said(command(tmp_path, settings, "archive", "mark", str(at), "--reason", "before the move", "--json"))
    assert marked["ts"] == at
    assert "before the move" in command(tmp_path, settings, "archive", "marks").stdout
    assert "before the move" in command(tmp_path, settings, "archive", "ls").stdout
    held = said(command(tmp_path, settings, "archive", "expire", "--keep-bases", "1", "--yes", "--json"))
    assert held["restorable_from_ts"] == made.dumps[1]
    restored(settings, to=at, dry_run=False, task="apply")
    with TargetConnection.open(settings.target) as connection:
        assert target_rows(connection) == rows
    assert command(tmp_path, settings, "archive", "unmark", str(at)).exit_code == 0
    done = said(command(tmp_path, settings, "archive", "expire", "--keep-bases", "1", "--yes", "--json"))
    assert done["restorable_from_ts"] == made.dumps[-1]


@pytest.mark.row("O1")
def test_on_s3_it_is_the_same(made: Aged, settings: Settings, tmp_path: Path) -> None:
    with s3_server() as server:
        of = server.archive_settings()
        store = open_store(of)
        for each in made.source.archive.store.list(""):
            store.put(f"{made.source.cluster_id}/{each.key}", made.source.archive.store.get(each.key))
        there = settings.model_copy(update={"archive": of})
        done = expire.run(there, Policy(bases=1))
        assert done.restorable_from == made.dumps[-1]
        archive = Archive.open(of, made.source.cluster_id)
        require_restorable(archive, [at for at, _ in made.moments if at >= made.dumps[-1]])
        assert expire.run(there, Policy(bases=1)).count == 0
