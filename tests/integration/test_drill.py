"""Drills on a real MariaDB: green, red, killed, two at once; nothing is left of any, and nothing else is touched."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pumphouse.archive.drills import Drill, estimate_s, read_drills
from pumphouse.archive.layout import DRILLS
from pumphouse.archive.proofs import newest_proof, read_proofs
from pumphouse.archive.verify import verify
from pumphouse.cli import cli
from pumphouse.errors import BinlogError, CorruptionError, LoadError, RestoreError, TargetBusy, UsageError
from pumphouse.executor.executor import Executor
from pumphouse.loader.target import TargetConnection
from pumphouse.model.tso import Tso
from pumphouse.restore.parts import Chosen
from pumphouse.runs import drill as job
from pumphouse.runs import load, restore_parts
from pumphouse.runs.drill import DrillReport, clean
from pumphouse.settings import LoadRule, Settings
from pumphouse.status.look import look
from pumphouse.status.report import Finding, Severity
from tests.integration.test_load_rules import ID, TEXT, put
from tests.integration.test_restore_parts import everything, live
from tests.support import formats
from tests.support.killedloads import KilledLoad
from tests.support.madearchive import Churn, MadeSource, column
from tests.support.mariadb import as_lines
from tests.unit.restore.test_parts import key

pytestmark = [pytest.mark.row("R4"), pytest.mark.usefixtures("target")]
LOAD = {"engine": "local", "buckets": 3}
OURS = "pumphouse_drill"


def drill(settings: Settings, **how: Any) -> DrillReport:
    return job.run(settings, into="target", named="target", **how)


def churned(source: MadeSource) -> None:
    """A history of every awkward kind, over tables with keys between them."""
    churn = Churn(source)
    churn.fill()
    source.create_table("parent", [ID, TEXT])
    source.create_table("child", [ID, TEXT], fk_info=[key("parent")])
    for table in ("parent", "child"):
        put(source, table, 1, 2)
    source.genesis()
    churn.work(5)
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    churn.work(5)
    source.cut()
    source.rename_table("u", "v")
    source.cut()


def first_finding(settings: Settings) -> Finding:
    return look(settings, within_s=20).findings[0]


def command(tmp_path: Path, settings: Settings, *words: str) -> Result:
    path = tmp_path / "pumphouse.toml"
    path.write_text(
        f'[cluster]\nurl = "{settings.cluster.url}"\n[archive]\nroot = "{settings.archive.root}"\n[load]\n'
        f'engine = "local"\n[drill]\ninto = "scratch"\n[targets.scratch]\nscratch = true\n{as_lines(settings.target)}'
    )
    return CliRunner().invoke(cli, ["--config", str(path), *words])


@pytest.mark.mysql
@pytest.mark.row("R1", "L6")
def test_a_drill_is_green_at_any_moment_and_leaves_a_server_on_which_others_work_as_it_was(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churned(source)
    load.run(settings)
    target.execute("CREATE DATABASE live")
    target.execute("CREATE TABLE live.t (id INT PRIMARY KEY)")
    before = everything(target)
    seen = set()
    for seed in range(8):
        done = drill(settings, seed=seed)
        assert done.drill.green, done.proof.to_dict()
        assert (done.drill.seed, done.drill.at, done.drill.tables) == (seed, done.proof.at, 5)
        assert everything(target) == before
        seen.add(done.drill.at)
    assert len(seen) > 4
    assert drill(settings, seed=3).drill.at == drill(settings, seed=3).drill.at
    at = sorted(seen)[2]
    again = drill(settings, at=at).drill
    assert (again.at, again.seed) == (at, None)
    assert again.again == f"pumphouse drill --into target --at {at}"
    assert again.rate
    assert again.rows > 80
    assert again.payload_bytes > 0
    found = read_drills(source.archive)
    assert len(found) == 11
    assert found[-1] == again
    planned = restore_parts.run(settings, chosen=Chosen(tables=("d.t",)), into="target", dry_run=True, plan_only=True)
    assert planned.estimate_s == estimate_s(source.archive, planned.plan.base_rows + planned.plan.rows) > 0
    assert newest_proof(source.archive) is None, "the rows of a drill are gone"
    assert verify(source.archive).sound
    shown = formats.Shown()
    for each in found:
        shown.check("drill", json.loads(source.archive.store.get(each.key)))
    assert shown.missing("drill") == ["/why", "/hint", "/whole"]


@pytest.mark.row("O3")
def test_a_row_that_is_another_before_the_proof_is_red_and_status_says_so_before_all_else(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    churned(source)
    before = everything(target)
    prove = job.prove_restored

    def changed(*args: Any, **how: Any) -> Any:
        name = next(
            name
            for (name,) in target.query(f"SHOW TABLES FROM {OURS} LIKE 'part%'")
            if ("n",) in [each[:1] for each in target.query(f"SHOW COLUMNS FROM {OURS}.{name}")]
        )
        target.execute(f"UPDATE {OURS}.{name} SET n = 4711 ORDER BY id LIMIT 1")
        return prove(*args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(job, "prove_restored", changed)
        answer = command(tmp_path, settings, "drill", "--seed", "1")
    assert answer.exit_code == 1, answer.output
    assert "DIFFERENT" in answer.output
    (found,) = read_drills(source.archive)
    assert (found.verdict, found.seed, found.proof) == ("DIFFERENT", 1, read_proofs(source.archive)[0].key)
    assert f"again: pumphouse drill --into scratch --at {found.at}" in answer.output
    assert everything(target) == before
    worst = first_finding(settings)
    assert (worst.severity, worst.who.split(" at ")[0]) == (Severity.ERROR, "drill into scratch")
    assert "DIFFERENT" in worst.what
    assert worst.next.startswith(f"pumphouse drill --into scratch --at {found.at}")
    told = command(tmp_path, settings, "status")
    assert told.exit_code == 4
    assert told.output.index("error: drill into scratch") == told.output.index("error: ")
    # The same moment, and this time nobody changes a row.
    answer = command(tmp_path, settings, *worst.next.split(";")[0].split()[1:])
    assert answer.exit_code == 0, answer.output
    assert not [each for each in look(settings, within_s=20).findings if "drill" in each.who]


@pytest.mark.row("O3")
def test_an_archive_that_cannot_be_read_fails_a_drill_by_name(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    churned(source)
    before = everything(target)
    segment = next(each for window in source.archive.windows() for each in window.segments if each.rows)
    data = bytearray(source.archive.store.get(segment.key))
    data[len(data) // 2] ^= 1
    source.archive.store.put(segment.key, bytes(data))
    answer = command(tmp_path, settings, "drill", "--at", str(source.archive.end()))
    assert isinstance(answer.exception, CorruptionError)
    (found,) = read_drills(source.archive)
    assert (found.verdict, found.proof, found.rate) == ("failed", "", None)
    assert segment.key in found.why
    formats.check("drill", json.loads(source.archive.store.get(found.key)))
    assert everything(target) == before
    assert segment.key in first_finding(settings).what


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_killed_anywhere_the_next_drill_or_a_clean_leaves_nothing_behind(
    source: MadeSource, settings: Settings, target: TargetConnection, part: int
) -> None:
    churned(source)
    live(target)
    before = everything(target)
    how: dict[str, Any] = {"into": "target", "named": "target", "seed": 2}
    whole = KilledLoad(settings, what="drill", **how).end()
    assert not whole.error, whole
    step = 1 if part else max(1, whole.moments // 8)
    for number, moment in enumerate(range(1, whole.moments, step)):
        ended = KilledLoad(settings, what="drill", at_moment=moment, **how).end()
        assert ended.killed, (moment, ended)
        if number % 2:
            clean(settings, "target", take_over=True)
        else:
            assert drill(settings, seed=number, take_over=True).drill.green, (moment, ended)
        assert everything(target) == before, (moment, ended)
        assert not clean(settings, "target")


def test_a_second_drill_on_the_server_is_refused_by_name_while_one_is_under_way(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    churned(source)
    applying = Executor._apply

    def meanwhile(self: Executor, *what: Any) -> None:
        monkeypatch.setattr(Executor, "_apply", applying)
        for act in (lambda: drill(settings), lambda: clean(settings, "target")):
            with pytest.raises(TargetBusy, match="by run the-nightly-one"):
                act()
        applying(self, *what)

    monkeypatch.setattr(Executor, "_apply", meanwhile)
    assert drill(settings, run_id="the-nightly-one").drill.green
    assert len(read_drills(source.archive)) == 1, "nothing was begun of the other"
    assert (OURS,) not in target.query("SHOW DATABASES")


def test_a_try_that_was_taken_for_dead_does_not_end_the_one_behind_it(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    churned(source)
    applying, proving = Executor._apply, job.prove_restored
    died: list[BaseException] = []

    def behind(*what: Any, **how: Any) -> Any:
        monkeypatch.setattr(job, "prove_restored", proving)
        goes_on.set()
        first.join()
        return proving(*what, **how)

    def until(self: Executor, *what: Any) -> None:
        monkeypatch.setattr(Executor, "_apply", applying)
        begun.set()
        assert goes_on.wait(60)
        applying(self, *what)

    def one() -> None:
        try:
            drill(settings, run_id="the-nightly-one")
        except BinlogError as error:
            died.append(error)

    begun, goes_on, first = threading.Event(), threading.Event(), threading.Thread(target=one)
    monkeypatch.setattr(Executor, "_apply", until)
    monkeypatch.setattr(job, "prove_restored", behind)
    first.start()
    assert begun.wait(60)
    assert drill(settings, run_id="the-nightly-one").drill.green
    assert len(died) == 1
    assert {each.verdict for each in read_drills(source.archive)} == {"not ended", "equal"}
    assert (OURS,) not in target.query("SHOW DATABASES")


def test_an_interrupted_or_failed_drill_cleans_up_by_itself(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    churned(source)
    before = everything(target)
    for error in (KeyboardInterrupt(), BinlogError("for a test", hint="nothing")):

        def fail(*_: Any, error: BaseException = error, **__: Any) -> Any:
            assert (OURS,) in target.query("SHOW DATABASES")
            raise error

        with monkeypatch.context() as patch, pytest.raises(type(error)):
            patch.setattr(job, "prove_restored", fail)
            drill(settings)
        assert everything(target) == before
    interrupted, failed = read_drills(source.archive)
    assert (interrupted.verdict, failed.verdict, failed.why, failed.hint) == (
        "not ended", "failed", "for a test", "nothing",
    )  # fmt: skip


def test_a_database_of_that_name_that_is_somebody_elses_stays(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churned(source)
    target.execute(f"CREATE DATABASE {OURS}")
    target.execute(f"CREATE TABLE {OURS}.theirs (id INT PRIMARY KEY)")
    before = everything(target)
    for act in (lambda: drill(settings), lambda: clean(settings, "target")):
        with pytest.raises(RestoreError, match=f"{OURS} that is none of a restore"):
            act()
    assert everything(target) == before


def test_which_tables_which_moments_and_how_many_are_kept(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    empty = source.genesis()
    source.tick(500)
    source.create_table("t", [ID, TEXT])
    source.create_table("gone", [ID, TEXT])
    for table in ("t", "gone"):
        put(source, table, 1, 2)
    source.cut()
    for seed in range(5):
        assert drill(settings, seed=seed).drill.at > empty, "there was no table for most of the time"
    rule = LoadRule(do="skip", table="d.gone", why="nobody needs it")
    of = {"load": settings.load.model_copy(update={"rules": (rule,)})}
    of["drill"] = settings.drill.model_copy(update={"tables": ("d.%",), "keep": 2})
    fewer = settings.model_copy(update=of)
    assert [each.name for each in drill(fewer).proof.tables] == ["d.t"]
    kept = read_drills(source.archive)
    assert len(kept) == 2
    assert {each.key for each in read_proofs(source.archive)} == {each.proof for each in kept}
    none = settings.model_copy(update={"drill": settings.drill.model_copy(update={"tables": ("d.gone",)})})
    with pytest.raises(UsageError, match="every table"):
        drill(none.model_copy(update={"load": of["load"]}))
    with pytest.raises(BinlogError, match="cannot be restored"):
        drill(settings, at=Tso(source.archive.end() + 1))
    assert read_drills(source.archive) == kept, "what was typed wrongly is no drill"


@pytest.mark.row("O3")
def test_the_commands_tell_the_trend_and_status_when_there_was_no_drill_for_long(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    churned(source)
    configured = settings.model_copy(update={"drill": settings.drill.model_copy(update={"into": "target"})})
    assert "no drills yet" in command(tmp_path, settings, "drills").output
    (late,) = [each for each in look(configured, within_s=20).findings if "drill" in each.who]
    assert (late.severity, late.what, late.next) == (
        Severity.WARNING, "none has ended yet", "pumphouse drill --into target",
    )  # fmt: skip
    for _ in range(2):
        done = command(tmp_path, settings, "drill", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["proven"]["verdict"] == "equal"
    assert not [each for each in look(configured, within_s=20).findings if "drill" in each.who]
    old = configured.model_copy(update={"drill": configured.drill.model_copy(update={"max_age_s": 0.001})})
    (late,) = [each for each in look(old, within_s=20).findings if "drill" in each.who]
    assert "the last one ended 0.0 days ago" in late.what
    told = command(tmp_path, settings, "drills").output
    assert told.count("equal") == 2
    assert "times the median of those before" in told
    assert [each["verdict"] for each in json.loads(command(tmp_path, settings, "drills", "--json").stdout)] == [
        "equal"
    ] * 2
    assert "drill      equal" in command(tmp_path, settings, "status").output
    assert "no drill has left anything" in command(tmp_path, settings, "drill", "--clean").output
    for wrong in (("--into", "source"), ("--at", "now", "--seed", "1")):
        assert isinstance(command(tmp_path, settings, "drill", *wrong).exception, UsageError)
    # A scratch server is none that is loaded.
    assert "scratch" not in settings.model_copy(
        update={"targets": {"scratch": Settings.model_validate(
            {"targets": {"scratch": {"host": "h", "user": "u", "scratch": True}}}
        ).targets["scratch"]}}
    ).loaded  # fmt: skip
    stored = next(iter(source.archive.store.list(DRILLS))).key
    whole = source.archive.store.get(stored)
    source.archive.store.put(stored, whole.replace(b'"equal"', b'"eqUal"'))
    assert len(read_drills(source.archive)) == 1
    assert [each.key for each in verify(source.archive).problems] == [stored]
    assert Drill.from_json(stored, whole).green


def test_a_moment_behind_a_ddl_that_cannot_be_carried_out_is_drawn_again(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID])
    put(source, "t", 1)
    source.genesis()
    for n in range(2, 6):
        put(source, "t", n)
        source.cut()
    before = source.archive.end()
    source.ddl(211, source.tables["t"].info.id, "SOMETHING NEW", TableInfo=source.tables["t"].info.raw)
    put(source, "t", 9)
    end = source.cut()
    for seed in range(12):
        found = drill(settings, seed=seed).drill
        assert found.green
        assert found.at <= before
    with pytest.raises(LoadError):
        drill(settings, at=end)
    assert read_drills(source.archive)[-1].verdict == "failed"


def several(source: MadeSource) -> None:
    """Everything of `churned`, and another database that comes in the middle."""
    churned(source)
    source.create_database("later")
    source.cut()
    source.tick(source.archive.end() - source.archive.genesis().ts >> 18)
    source.cut()


def whole(settings: Settings, **how: Any) -> DrillReport:
    return drill(settings, whole=True, **how)


@pytest.mark.mysql
@pytest.mark.row("R1")
def test_a_whole_drill_restores_every_database_proves_it_and_leaves_an_empty_server(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    several(source)
    before, prove, seen = everything(target), job.prove_restored, set()

    def watched(*args: Any, **how: Any) -> Any:
        seen.add(frozenset(name for (name,) in target.query("SHOW DATABASES")) - set(before["databases"]))
        return prove(*args, **how)

    monkeypatch.setattr(job, "prove_restored", watched)
    for seed in range(6):
        done = whole(settings, seed=seed).drill
        assert done.green
        assert everything(target) == before
    assert whole(settings, at=source.archive.end()).drill.green
    assert {frozenset({"d", OURS}), frozenset({"d", "later", OURS})} <= seen
    answer = command(tmp_path, settings, "drill", "--whole", "--at", str(source.archive.end()))
    assert answer.exit_code == 0, answer.output
    found = read_drills(source.archive)[-1]
    assert f"again: pumphouse drill --into scratch --whole --at {found.at}" in answer.output
    assert (found.whole, found.rows > 0, found.rate is not None) == (True, True, True)
    stored = json.loads(source.archive.store.get(found.key))
    formats.check("drill", stored)
    assert stored["whole"] is True
    assert newest_proof(source.archive) is None
    assert "scratch, whole" in command(tmp_path, settings, "drills").output
    refused = command(tmp_path, settings, "drill", "--whole", "--into", "restore_target")
    assert isinstance(refused.exception, UsageError)
    assert everything(target) == before


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_a_whole_drill_that_was_killed_anywhere_is_cleaned_up_by_the_next_one_of_either_kind(
    source: MadeSource, settings: Settings, target: TargetConnection, part: int
) -> None:
    several(source)
    before = everything(target)
    how: dict[str, Any] = {"into": "target", "named": "target", "at": source.archive.end(), "whole": True}
    ended = KilledLoad(settings, what="drill", **how).end()
    assert not ended.error, ended
    step = 1 if part else max(1, ended.moments // 10)
    left = set()
    for number, moment in enumerate(range(1, ended.moments, step)):
        killed = KilledLoad(settings, what="drill", at_moment=moment, **how).end()
        assert killed.killed, (moment, killed)
        left.add(len(target.query("SHOW DATABASES")))
        if number % 3 == 0:
            clean(settings, "target", take_over=True)
        else:
            # Of a moment at which some of the databases were not there.
            assert drill(settings, seed=1, whole=number % 3 == 1, take_over=True).drill.green, (moment, killed)
        assert everything(target) == before, (moment, killed)
        assert not clean(settings, "target")
    assert len(left) > 2, "nothing was left anywhere"


def test_a_whole_drill_never_begins_on_a_server_that_has_anything(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    several(source)
    for name in ("d", "live"):
        target.execute(f"CREATE DATABASE {name}")
        before = everything(target)
        with pytest.raises(RestoreError, match=f"databases that are no drill's: {name}"):
            whole(settings)
        assert everything(target) == before
        target.execute(f"DROP DATABASE {name}")
    owning = job.own_target

    def meanwhile(*args: Any, **how: Any) -> Any:
        monkeypatch.setattr(job, "own_target", owning)
        target.execute("CREATE DATABASE d")
        return owning(*args, **how)

    monkeypatch.setattr(job, "own_target", meanwhile)
    with pytest.raises(RestoreError, match="databases that are no drill's: d"):
        whole(settings)
    assert ("d",) in target.query("SHOW DATABASES")
    assert (OURS,) not in target.query("SHOW DATABASES")


def test_what_a_killed_drill_left_makes_nothing_else_a_drills(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    several(source)
    # Of a drill of tables, on a server on which somebody works: its databases are called as those of the source.
    live(target)
    before = everything(target)
    how: dict[str, Any] = {"into": "target", "named": "target", "at": source.archive.end()}
    moments = KilledLoad(settings, what="drill", **how).end().moments
    assert KilledLoad(settings, what="drill", at_moment=moments // 2, **how).end().killed
    with pytest.raises(RestoreError, match="databases that are no drill's: d"):
        whole(settings, take_over=True)
    clean(settings, "target", take_over=True)
    assert everything(target) == before
    target.execute("DROP DATABASE d")
    # Of a whole one, on a server that somebody uses since.
    moments = KilledLoad(settings, what="drill", whole=True, **how).end().moments
    assert KilledLoad(settings, what="drill", whole=True, at_moment=moments // 2, **how).end().killed
    target.execute("CREATE DATABASE live")
    before = everything(target)
    for act in (whole, drill, lambda settings, **more: clean(settings, "target", **more)):
        with pytest.raises(RestoreError, match="databases that are no drill's: live"):
            act(settings, take_over=True)
        assert {name: each for name, each in everything(target).items() if not name.startswith(OURS)} == {
            name: each for name, each in before.items() if not name.startswith(OURS)
        }
    target.execute("DROP DATABASE live")
    assert whole(settings, take_over=True).drill.green


def test_a_whole_drill_that_fails_or_is_interrupted_cleans_up_by_itself(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    several(source)
    before = everything(target)
    for error in (KeyboardInterrupt(), BinlogError("for a test", hint="nothing")):

        def fail(*_: Any, error: BaseException = error, **__: Any) -> Any:
            assert ("d",) in target.query("SHOW DATABASES")
            target.execute("CREATE DATABASE live")  # by somebody else
            raise error

        with monkeypatch.context() as patch, pytest.raises(type(error)):
            patch.setattr(job, "prove_restored", fail)
            whole(settings)
        target.execute("DROP DATABASE live")
        assert everything(target) == before
    assert [each.verdict for each in read_drills(source.archive)] == ["not ended", "failed"]
