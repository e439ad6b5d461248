"""`restore --follow` on a real MariaDB: the restored server goes on as a replica, by one command."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive import consumer
from pumphouse.archive.proofs import read_proofs
from pumphouse.errors import ConfigError, LoadError, RestoreError, UsageError
from pumphouse.loader import decode, state
from pumphouse.loader.apart import server_name
from pumphouse.loader.target import TargetConnection
from pumphouse.model.tso import Tso
from pumphouse.registry.file import FileCluster
from pumphouse.runs import load, restore
from pumphouse.runs.proof import prove, prove_restored
from pumphouse.settings import LoadRule, Settings
from tests.integration.test_several_targets import Site
from tests.integration.test_steps import everything, killing, small_plans, states
from tests.support.checkpoints import set_checkpoint
from tests.support.killed import Killed
from tests.support.loading import read_checkpoint, restored
from tests.support.madearchive import Churn, MadeSource, column, target_rows

pytestmark = pytest.mark.row("R1", "L6")


def history(source: MadeSource) -> Tso:
    """Windows with rows and DDL; a moment amid transactions that overlap, within the second one.

    The table that these change has no key, and nothing else changes it: a row that comes twice or never is seen.
    """
    churn = Churn(source)
    churn.fill()
    source.create_table("once", [column(1, "n")], pk_is_handle=False)
    source.genesis()
    churn.work(10)
    source.cut()
    churn.work(10)
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    with source.txn() as behind, source.txn() as too:
        behind.insert("once", n=1)
        too.insert("once", n=2)
        with source.txn() as before:
            before.insert("once", n=3)
        at = Tso(source.tick())
    source.truncate("k")
    churn.work(10)
    source.cut()
    churn.work(10)
    source.cut()
    return at


def more(source: MadeSource) -> Tso:
    """A window behind all."""
    with source.txn() as t:
        t.insert("t", id=random.randrange(10_000, 1 << 30))
    return source.cut()


@pytest.mark.mysql
@pytest.mark.row("L7", "P11", "R4")
def test_a_named_target_is_restored_and_goes_on_as_a_replica_by_one_command(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    at, site, cluster = history(source), Site(tmp_path, settings), FileCluster(tmp_path / "cluster")
    set_checkpoint(cluster, "main", source.archive.genesis().ts)
    site.done("load")
    command = ("restore", "--to", str(at), "--into", "copy", "--follow")
    before = everything(target)
    shown = site.done(*command, "--dry-run")
    assert everything(target) == before
    assert "make the target ready, and go on with its load from" in shown
    assert shown.rstrip().splitlines()[-1].lstrip().startswith("apply (")
    end = source.archive.end()
    done = site.done(*command)
    assert f"is at {end}" in done
    assert target_rows(target, "theirs") == source.snapshot()
    copy = settings.target.model_copy(update={"schema_name": "second"})
    assert read_checkpoint(copy, "main") == end
    assert target.query("SELECT * FROM second.step") == []
    # GC waits for it, as for every target.
    site.done("gc")
    assert consumer.checkpoint(cluster, "main") == end

    end = more(source)
    site.done("load")
    site("gc")
    assert consumer.checkpoint(cluster, "main") < end
    site.done("load", "--target", "copy")
    assert target_rows(target, "theirs") == source.snapshot()
    # Proved where the load has come to.
    site.done(*command, "--verify", "--replace", server_name(settings.target))
    assert [(proof.at, proof.equal) for proof in read_proofs(source.archive)] == [(end, True)]
    assert target_rows(target, "theirs") == source.snapshot()


@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_killed_in_its_load_the_same_command_goes_on_with_that_and_needs_no_name(
    source: MadeSource, settings: Settings, target: TargetConnection, mode: str
) -> None:
    at = history(source)
    settings = small_plans(settings, mode=mode)
    with killing(state, "close_plan", at=4):  # the dump, two windows of the restore; the first of the load
        restored(settings, to=at, follow=True, dry_run=False)
    assert target.value("SELECT state FROM pumphouse.checkpoint") == "ready"
    assert target.query("SELECT kind, state FROM pumphouse.step") == [("follow", "planned")]
    before = everything(target)
    shown = restore.run(settings, into="target", to=at, follow=True, dry_run=True)
    assert everything(target) == before
    assert shown.before
    assert shown.followed is not None
    assert [step for step, _ in states(shown.followed)][-2:] == ["apply", "apply"]
    # A scheduled load comes between, to another moment, and goes on as if nothing were to come.
    load.run(settings, to=more(source))
    end = more(source)
    target.execute("CREATE TABLE d.kept (id INT)")
    done = restore.run(settings, into="target", to=at, follow=True, dry_run=False)
    assert done.before
    assert done.followed is not None
    assert (done.followed.to_ts, done.followed.plans) == (end, 1)
    assert target.query("SHOW TABLES IN d LIKE 'kept'")
    target.execute("DROP TABLE d.kept")
    assert target.query("SELECT * FROM pumphouse.step") == []
    assert target_rows(target) == source.snapshot()
    # What has ended begins again, as every restore does.
    with pytest.raises(RestoreError, match="data that would be dropped"):
        restore.run(settings, into="target", to=at, follow=True, dry_run=False)


def test_what_stops_its_load_is_passed_by_a_rule_without_another_restore(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    at, site = history(source), Site(tmp_path, settings)
    command = ("restore", "--to", str(at), "--into", "copy", "--follow")
    with killing(state, "begin_plan", at=3):  # the dump, the restore; the load
        site(*command)
    target.execute("DROP TABLE theirs.t")
    stopped = site(*command)
    assert isinstance(stopped.exception, LoadError)
    assert '[[targets.copy.rules]]\ndo = "park"\ntable = "d.t"' in str(stopped.exception)
    site.write({"do": "park", "table": "d.t", "why": "a test"})
    ended = site(*command)
    assert ended.exit_code == 3, ended.output
    assert "restored by an earlier run; nothing is dropped" in ended.output
    assert target.value("SELECT COUNT(*) FROM second.plan WHERE mode = 'base'") == 1
    site.write()
    site.done("load", "--target", "copy", "--resync", "d.t")
    assert target_rows(target, "theirs") == source.snapshot()


def test_a_restore_that_was_killed_goes_on_with_follow_and_anew_restores_what_was_restored(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    settings, at = small_plans(settings), history(source)
    with killing(state, "close_plan", at=2):
        restored(settings, to=at, dry_run=False)
    with killing(state, "close_plan", at=3):
        restored(settings, to=at, follow=True, dry_run=False)
    assert target.query("SELECT kind FROM pumphouse.step") == [("follow",)]
    assert target.value("SELECT COUNT(*) FROM pumphouse.plan WHERE mode = 'base'") == 1
    target.execute("DELETE FROM d.t")
    done = restored(settings, to=at, follow=True, anew=True, dry_run=False)
    assert not done.before
    assert target_rows(target) == source.snapshot()
    # To another moment, or without the load: a restore as any other.
    for how in ({"to": Tso(at - 1), "follow": True}, {"to": at}):
        with killing(state, "close_plan", at=4):
            restored(settings, to=at, follow=True, dry_run=False)
        assert not restored(settings, dry_run=False, **how).before
        load.run(settings)
        assert target_rows(target) == source.snapshot()


def test_a_load_that_has_come_to_the_end_or_another_rule_makes_it_another_restore(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    writing = source.txn()
    with writing as t:
        t.insert("t", id=4711)
    at = source.cut()
    more(source)
    settings = small_plans(settings)

    def killed_in_its_load() -> None:
        with killing(state, "close_plan", at=3):
            restored(settings, to=at, follow=True, anew=True, dry_run=False)
        assert target.query("SELECT kind FROM pumphouse.step") == [("follow",)]

    def refused(settings: Settings) -> None:
        with pytest.raises(RestoreError, match="data that would be dropped"):
            restore.run(settings, into="target", to=at, follow=True, dry_run=False)

    killed_in_its_load()
    load.run(settings)
    refused(settings)
    killed_in_its_load()
    refused(small_plans(settings, rules=[LoadRule(do="skip", txn=writing.commit_ts, why="a test")]))
    assert restore.run(settings, into="target", to=at, follow=True, dry_run=False).before
    assert target_rows(target) == source.snapshot()


def test_what_an_earlier_proof_has_asked_says_nothing_of_a_server_that_was_restored_since(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = history(source)
    restored(settings, to=at, follow=True, dry_run=False)

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(decode.Decoder, "run", killed)  # the server has been asked for all
        prove(settings)
    (before,) = read_proofs(source.archive)
    done = restored(settings, to=at, follow=True, dry_run=False)
    proof = prove_restored(settings, done, into="target")
    assert proof.equal
    assert proof.attempt != before.attempt
    assert proof.fence != before.fence


def test_only_a_server_that_loads_keep_up_to_date_is_followed(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    at, site = history(source), Site(tmp_path, settings)
    before = everything(target)
    text = site.file.read_text()
    site.file.write_text(f'{text}[restore_target]\nhost = "10.0.0.9"\nport = 3307\nuser = "me"\npassword = "s3cret"\n')
    refused = site("restore", "--to", str(at), "--follow", "--dry-run").exception
    assert isinstance(refused, ConfigError)
    assert '[targets.replica]\nhost = "10.0.0.9"\nport = 3307\nuser = "me"\npassword = "…"\n' in str(refused)
    parts = site("restore", "--to", str(at), "--follow", "--into", "copy", "--table", "d.t", "--dry-run").exception
    assert isinstance(parts, UsageError)
    site.file.write_text(text.replace("[targets.copy]\n", "[targets.copy]\nscratch = true\n"))
    drills = site("restore", "--to", str(at), "--follow", "--into", "copy", "--dry-run").exception
    assert "take `scratch = true` out" in str(drills)
    assert everything(target) == before


def test_a_load_that_stands_there_is_forgotten_by_name_alone(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    at = history(source)
    load.run(settings, task="theirs")
    target.execute("DROP DATABASE d")

    def run(*, follow: bool = True, **how: Any) -> restore.RestoreReport:
        return restore.run(settings, into="target", to=at, follow=follow, dry_run=False, **how)

    for follow in (True, False):
        with pytest.raises(RestoreError, match="the state of the load theirs, ready at"):
            run(follow=follow)
    assert state.read_all(target)[0].task == "theirs"
    run(replace=server_name(settings.target))
    assert [each.task for each in state.read_all(target)] == ["main"]
    assert target_rows(target) == source.snapshot()
