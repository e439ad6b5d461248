"""A real scheduler drives the apply DAG over intervals by `airflow backfill create`, onto a restored target (row R1).

The same scheduler runs restores of tables by the form, and drills.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pumphouse.archive import layout
from pumphouse.archive.drills import read_drills
from pumphouse.loader.apart import server_name
from pumphouse.loader.target import TargetConnection
from pumphouse.model import tso
from pumphouse.registry.open import open_cluster
from pumphouse.restore.parts import own_schema
from pumphouse.runs import restore
from pumphouse.settings import Settings, TargetSettings
from tests.e2e import airflow_watch as watch
from tests.stack.airflow import AirflowServer
from tests.stack.supervisor import Supervisor
from tests.support import mariadb
from tests.support.madearchive import MadeSource, column, target_rows
from tests.support.waiting import eventually

pytestmark = [pytest.mark.row("R1", "O1"), pytest.mark.timeout(600)]
_MINUTE = 60_000
# The process that asked has ended by then, as for a reader: LocalExecutor takes a task answered before for killed.
_READ_S = 5.0
ROOT = Path(__file__).resolve().parents[2]


class World:
    """An archive of four one-minute windows, a target restored to the end of the first, and a running Airflow."""

    def __init__(self, work: Path, target: TargetSettings, supervisor: Supervisor) -> None:
        url = f"file://{work / 'cluster'}"
        self.source = MadeSource(work / "archive", open_cluster(url).cluster_id())
        self.target = target
        self.moments = self._write()
        env = {
            "PUMPHOUSE_CLUSTER__URL": url,
            "PUMPHOUSE_ARCHIVE__ROOT": self.source.settings.root,
            "PUMPHOUSE_LOAD__ENGINE": "local",
            "PUMPHOUSE_AIRFLOW__APPLY_CRON": "* * * * *",
        }
        self.settings = Settings.read(
            overrides={"cluster.url": url, "archive.root": self.source.settings.root, "load.engine": "local"}
        )
        connections = {
            "pumphouse_archive": {"conn_type": "pumphouse_archive", "extra": {"root": self.source.settings.root}},
            "pumphouse_cluster": {"conn_type": "pumphouse_cluster", "extra": {"url": url}},
            "pumphouse_restore": {
                "conn_type": "pumphouse_downstream",
                "host": target.host,
                "port": target.port,
                "login": target.user,
                "password": target.password.get_secret_value(),
                "extra": {"task": "main"},
            },
        }
        self.airflow = AirflowServer(
            work / "airflow",
            supervisor,
            environment=env,
            connections=connections,
            parts=("api-server", "scheduler", "dag-processor"),
        )
        self.airflow.start()
        self.api = self.airflow.api()
        self.api.wait_for_dags({"binlog_apply", "binlog_restore", "binlog_drill", "binlog_maintenance"})

    def _write(self) -> list[int]:
        source = self.source
        # Windows end at full minutes, as those of a scheduled snapshot do.
        source.ts = tso.compose(tso.physical_ms(source.ts) // _MINUTE * _MINUTE)
        source.create_table("t", [column(1, "id", flag=3), column(2, "v")])
        with source.txn() as txn:
            txn.insert("t", id=1, v=1)
        source.genesis()
        moments = []
        self.then: dict[int, Any] = {}
        for minute in range(1, 5):
            edge = tso.compose((tso.physical_ms(source.ts) // _MINUTE + 1) * _MINUTE)
            with source.txn() as txn:
                txn.insert("t", id=10 * minute, v=minute)
                txn.update("t", 1, v=minute)
            if minute == 3:
                source.add_column("t", column(3, "w", default="7", origin_default="7"))
            self.then[source.ts] = source.snapshot()
            with source.txn() as txn:
                txn.insert("t", id=10 * minute + 1, v=-minute)
            self.last = source.ts
            source.ts = edge - (10 << 18)
            source.cut()
            moments.append(edge)
        return moments

    def command(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "airflow", *args],
            env={**os.environ, **self.airflow.variables()},
            cwd=self.airflow.home,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def backfill(self, *args: str) -> list[dict[str, Any]]:
        """`airflow backfill create` with these arguments; returns the runs that are new or ran again."""
        self._none_runs()
        before = self.runs()
        done = self.command("backfill", "create", *args)
        assert done.returncode == 0, done.stdout + done.stderr
        return self.ended(before)

    def over(self, first: int, last: int, conf: dict[str, str], **more: Any) -> list[dict[str, Any]]:
        """The same by the API, which takes no process: intervals that begin from `first` to `last`, also had they run."""
        self._none_runs()
        before = self.runs()
        self.api.backfill("binlog_apply", _iso(first), _iso(last), conf, reprocess_behavior="completed", **more)
        return self.ended(before)

    def _none_runs(self) -> None:
        """Airflow takes a moment to notice that the backfill before has ended, and refuses another one until then."""
        path = "/backfills?dag_id=binlog_apply&limit=100"
        eventually(lambda: all(each["completed_at"] for each in self.api.call("GET", path)["backfills"]), within_s=300)

    def restore(self) -> None:
        """The target at the end of the first window."""
        settings = self.settings.model_copy(update={"restore_target": self.target})
        restore.run(settings, to=tso.Tso(self.moments[0]), dry_run=False, replace=server_name(self.target))

    def runs(self) -> dict[str, Any]:
        """When each run of the DAG ended, by its id."""
        return {r["dag_run_id"]: r.get("end_date") for r in self.api.runs("binlog_apply")}

    def ended(self, before: dict[str, Any]) -> list[dict[str, Any]]:
        limit = time.monotonic() + 180
        while time.monotonic() < limit:
            found = [r for r in self.api.runs("binlog_apply") if r["run_type"] == "backfill"]
            runs = [r for r in found if before.get(r["dag_run_id"]) != r.get("end_date")]
            if runs and all(r["state"] in ("success", "failed") for r in found):
                return runs
            time.sleep(0.5)
        raise AssertionError(f"the backfill did not end: {self.api.runs('binlog_apply')}")

    def applied(self, run: dict[str, Any]) -> bool:
        """Whether a run had something to do."""
        return not self.api.result("binlog_apply", run["dag_run_id"], "apply").get("skipped")

    def tries(self, run: dict[str, Any]) -> list[Any]:
        """Tries of its task since the run was made or cleared."""
        (task,) = self.api.tasks("binlog_apply", run["dag_run_id"])
        path = f"/dags/binlog_apply/dagRuns/{quote(run['dag_run_id'])}/taskInstances/apply/tries"
        began = run["start_date"]
        found = self.api.call("GET", path)["task_instances"]
        return [each for each in found if each["start_date"] and each["start_date"] >= began] or [task]

    def checkpoint(self) -> int:
        with TargetConnection.open(self.target) as connection:
            return int(connection.query("SELECT ts FROM pumphouse.checkpoint WHERE task = 'main'")[0][0])

    def triggered(self, dag_id: str, **conf: Any) -> tuple[str, str, list[str]]:
        """A run by hand with these fields, whose questions are approved: its id, its state, and the questions."""
        self.api.unpause(dag_id)
        run_id, asked = self.api.trigger(dag_id, conf), list[str]()

        def approve(_task: str, question: str) -> str:
            asked.append(question)
            return "Approve"

        ended = self.api.wait_for_run(dag_id, run_id, timeout_s=240, asked=approve)
        # Airflow may ask once more (`wait_for_run`), and then the same.
        return run_id, str(ended["state"]), [*dict.fromkeys(asked)]

    def asking(self, to: int) -> tuple[str, dict[str, Any]]:
        """A whole restore by hand that waits for its answer: its run, and the question."""
        self.api.unpause("binlog_restore")
        run_id = self.api.trigger("binlog_restore", {"to": str(to), "dry_run": False})
        return run_id, self._question(run_id)

    def answer(self, run_id: str, option: str, **typed: str) -> None:
        """Press a button, once the process that asked has ended; returns when that is taken, or asked again."""
        time.sleep(_READ_S)
        self.api.call("PATCH", self._path(run_id), {"chosen_options": [option], "params_input": typed})
        limit = time.monotonic() + 120
        while self.states("binlog_restore", run_id)["approve"] not in ("success", "failed"):
            detail = self.api.call("GET", self._path(run_id))
            if self.states("binlog_restore", run_id)["approve"] == "awaiting_input" and not detail["response_received"]:
                return
            assert time.monotonic() < limit
            time.sleep(0.5)

    def refused(self, run_id: str, **typed: str) -> None:
        """Approve with a name that is wrong: it is asked for again.

        Where Airflow took the task for killed, it asks anew without having read the answer: then it gets that once more.
        """
        before = self._refusals(run_id)
        for _ in range(3):
            self.answer(run_id, "Approve", **typed)
            if self._refusals(run_id) > before:
                return
        raise AssertionError(watch.failure(self.api, "binlog_restore", run_id))

    def _refusals(self, run_id: str) -> int:
        tries = next(
            task["try_number"] for task in self.api.tasks("binlog_restore", run_id) if task["task_id"] == "approve"
        )
        logs = (self.api.log("binlog_restore", run_id, "approve", number) for number in range(1, tries + 1))
        return sum(log.count("asking again") for log in logs)

    def answered(self, run_id: str, option: str) -> str:
        """How a run ends that was answered; Airflow asks again where it took the task for killed (`wait_for_run`)."""
        found = self.api.wait_for_run("binlog_restore", run_id, timeout_s=240, asked=lambda *_: option)
        return str(found["state"])

    def _question(self, run_id: str) -> dict[str, Any]:
        limit = time.monotonic() + 120
        while self.states("binlog_restore", run_id)["approve"] != "awaiting_input":
            assert time.monotonic() < limit, watch.failure(self.api, "binlog_restore", run_id)
            time.sleep(0.5)
        return dict(self.api.call("GET", self._path(run_id)))

    def _path(self, run_id: str) -> str:
        return f"/dags/binlog_restore/dagRuns/{quote(run_id)}/taskInstances/approve/-1/hitlDetails"

    def states(self, dag_id: str, run_id: str) -> dict[str, str]:
        return {task["task_id"]: task["state"] for task in self.api.tasks(dag_id, run_id)}

    def databases(self) -> list[Any]:
        with TargetConnection.open(self.target) as connection:
            return list(connection.query("SHOW DATABASES"))

    def rows(self) -> Any:
        with TargetConnection.open(self.target) as connection:
            return target_rows(connection)


def _iso(ts: int) -> str:
    return tso.to_datetime(ts).isoformat()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    work = tmp_path_factory.mktemp("backfill")
    supervisor = Supervisor(work / "run")
    try:
        with mariadb.in_memory() as target:
            yield World(work, target, supervisor)
    finally:
        supervisor.stop_all(timeout_s=0)


def _documented() -> list[list[str]]:
    """The lines of docs/operations.md, as a shell would split them."""
    text = (ROOT / "docs" / "operations.md").read_text()
    block = next(part for part in text.split("```sh\n") if part.startswith("airflow dags unpause binlog_apply"))
    return [shlex.split(line) for line in block.split("```")[0].replace("\\\n", " ").splitlines()]


def test_the_documented_lines_apply_up_to_the_stop_and_once_more_change_nothing(world: World) -> None:
    world.restore()
    unpause, create = _documented()
    assert world.command(*unpause[1:]).returncode == 0

    stop = sorted(world.then)[2]
    minutes = world.moments
    assert minutes[1] < stop < minutes[2], "in the middle of the third window"
    assert create[:3] == ["airflow", "backfill", "create"]
    values = {
        "--from-date": _iso(minutes[0]),
        "--to-date": _iso(minutes[2]),
        "--dag-run-conf": json.dumps({"target": "pumphouse_restore", "stop": str(stop)}),
    }
    args = [values.get(before, each) for before, each in pairwise(create[2:])]
    for again in (False, True):
        runs = world.backfill(*args)
        assert [r["state"] for r in runs] == ["success"] * 3
        assert world.checkpoint() == stop
        assert world.rows() == world.then[stop]
        assert sum(world.applied(r) for r in runs) == (0 if again else 2), "the third begins behind the stop"
    # A schedule's run would have come at once: that of the last whole minute.
    assert {each["run_type"] for each in world.api.runs("binlog_apply")} == {"backfill"}


@pytest.mark.parametrize(
    ("first", "how"),
    [(1, {"run_backwards": True}), (0, {"max_active_runs": 3})],
    ids=["the newest first", "three at once"],
)
def test_the_order_is_ours_whatever_the_flags(world: World, first: int, how: dict[str, Any]) -> None:
    world.restore()
    world.api.unpause("binlog_apply")
    minutes, stop = world.moments, sorted(world.then)[3]
    runs = world.over(minutes[first], minutes[2], {"target": "pumphouse_restore", "stop": str(stop)}, **how)
    assert [(r["state"], len(world.tries(r))) for r in runs] == [("success", 1)] * (3 - first)
    assert world.checkpoint() == stop
    assert world.rows() == world.then[stop]


def test_a_backfill_without_conf_names_no_server_and_writes_to_none(world: World) -> None:
    world.restore()
    world.api.unpause("binlog_apply")
    minutes = world.moments
    runs = world.over(minutes[0], minutes[1], {})
    assert [r["state"] for r in runs] == ["failed"] * 2
    last = world.tries(runs[0])[-1]["try_number"]  # other backfills of the day may have had the runs before
    assert "no target is named" in world.api.log("binlog_apply", runs[0]["dag_run_id"], "apply", last)
    assert world.checkpoint() == minutes[0]


@pytest.mark.row("R3", "R4")
def test_tables_come_back_by_the_form_beside_what_the_target_has_and_are_proved(world: World) -> None:
    world.restore()
    at = sorted(world.then)[3]
    run, state, asked = world.triggered(
        "binlog_restore",
        to=str(at), tables=["d.t", " "], **{"as": "d.t_then"}, base=str(int(world.source.archive.genesis().ts)),
        verify=True, dry_run=False,
    )  # fmt: skip
    assert state == "success", watch.failure(world.api, "binlog_restore", run)
    moment = f"{tso.to_datetime(at):%Y-%m-%d %H:%M:%SZ}"
    assert asked == [f"Restore d.t as d.t_then as of {moment} -> pumphouse_restore"]
    assert world.rows()["t_then"] == world.then[at]["t"]
    assert world.checkpoint() == world.moments[0], "what was there stays where it is"
    proof = world.api.result("binlog_restore", run, "verify", key="proven")
    assert (proof["verdict"], proof["equal"], proof["different"]) == ("equal", 1, [])
    # Once more, when somebody has changed a row: the run is red, and the XCom says where.
    with TargetConnection.open(world.target) as connection:
        connection.execute("UPDATE d.t_then SET v = v + 1 LIMIT 1")
    again = {"dry_run": False, "only_failed": False, "dag_run_id": run, "task_ids": ["verify"]}
    world.api.call("POST", "/dags/binlog_restore/clearTaskInstances", again)
    assert world.api.wait_for_run("binlog_restore", run, timeout_s=120)["state"] == "failed"
    proof = world.api.result("binlog_restore", run, "verify", key="proven")
    assert (proof["verdict"], proof["different"]) == ("DIFFERENT", ["d.t"])
    assert world.states("binlog_restore", run) == {
        "plan": "success", "approve": "success", "restore": "success", "verify": "failed",
    }  # fmt: skip


@pytest.mark.row("R3", "R4")
def test_some_rows_of_a_table_come_back_by_the_form_and_are_proved(world: World) -> None:
    world.restore()
    at = sorted(world.then)[3]
    for called, fields, chosen in (
        ("d.t_keys", {"keys": ["1", "21", "", "  "]}, {1, 21}),
        ("d.t_range", {"key_from": "20", "key_to": "31"}, {20, 21, 30}),
    ):
        run, state, (question,) = world.triggered(
            "binlog_restore", to=str(at), tables=["d.t"], **{"as": called}, **fields, verify=True, dry_run=False
        )
        assert state == "success", watch.failure(world.api, "binlog_restore", run)
        assert f"Restore d.t as {called}, rows with " in question
        rows = {row: count for row, count in world.then[at]["t"].items() if row[0] in chosen}
        assert len(rows) == len(chosen)
        assert world.rows()[called.removeprefix("d.")] == rows
        assert world.api.result("binlog_restore", run, "verify", key="proven")["equal"] == 1


@pytest.mark.row("R2")
def test_data_goes_after_a_yes_with_the_servers_name_alone_and_a_no_is_a_failed_run(world: World) -> None:
    world.restore()
    server, at = server_name(world.target), sorted(world.then)[3]
    run, question = world.asking(at)
    assert question["subject"] == f"Restore to {tso.to_datetime(at):%Y-%m-%d %H:%M:%SZ} -> pumphouse_restore"
    assert "it holds d (1 table, about" in question["body"]
    assert question["params"]["server"]["schema"]["title"] == f"Type {server}"
    before = world.rows()
    for typed in ({"server": "127.0.0.1:3306"}, {}):
        world.refused(run, **typed)
        assert world.rows() == before
    world.answer(run, "Approve", server=f" {server} ")
    assert world.answered(run, "Approve") == "success"
    assert (world.rows(), world.checkpoint()) == (world.then[at], at)
    told = world.api.log("binlog_restore", run, "restore", 1)
    assert re.search(rf"restored 1 table, \d+ rows put, to {re.escape(tso.show(tso.Tso(at)))} in \d+ s on ", told), told
    assert "Returned value was" not in told

    run, _ = world.asking(world.moments[0])
    world.answer(run, "Reject")
    assert world.answered(run, "Reject") == "failed"
    states = world.states("binlog_restore", run)
    assert states == {"plan": "success", "approve": "failed"} | dict.fromkeys(("restore", "verify"), "upstream_failed")
    tries = next(task["try_number"] for task in world.api.tasks("binlog_restore", run) if task["task_id"] == "approve")
    assert "rejected by admin: nothing was changed on " in world.api.log("binlog_restore", run, "approve", tries)
    assert world.checkpoint() == at


@pytest.mark.row("R2")
def test_a_yes_counts_once_and_for_what_the_server_held_then(world: World) -> None:
    with TargetConnection.open(world.target) as connection:
        for name in ("d", "pumphouse"):
            connection.execute(f"DROP DATABASE IF EXISTS `{name}`")
    at = sorted(world.then)[3]

    def precious() -> bool:
        with TargetConnection.open(world.target) as connection:
            return bool(connection.query("SHOW TABLES IN d LIKE 'precious'"))

    def cleared(run: str, *task_ids: str) -> None:
        again = {"dry_run": False, "only_failed": False, "dag_run_id": run, "task_ids": task_ids}
        world.api.call("POST", "/dags/binlog_restore/clearTaskInstances", again)
        world.api.wait_for_run("binlog_restore", run, timeout_s=120)

    for _ in range(2):  # onto an empty server, and onto one whose name is typed
        run, state, _ = world.triggered("binlog_restore", to=str(at), dry_run=False)
        assert state == "success", watch.failure(world.api, "binlog_restore", run)
        with TargetConnection.open(world.target) as connection:
            connection.execute("CREATE TABLE d.precious (id INT)")
        cleared(run, "restore")
        assert world.states("binlog_restore", run)["restore"] == "success"
        assert "a yes counts once: nothing was changed" in world.api.log("binlog_restore", run, "restore", 2)
        assert precious()


@pytest.mark.row("O1", "R2")
def test_a_question_that_is_marked_a_success_is_no_yes(world: World) -> None:
    run, _ = world.asking(sorted(world.then)[3])
    before = world.databases()
    world.api.call("PATCH", f"/dags/binlog_restore/dagRuns/{run}/taskInstances/approve", {"new_state": "success"})
    world.api.wait_for_run("binlog_restore", run, timeout_s=120)
    assert world.states("binlog_restore", run)["restore"] == "failed"
    assert "nobody approved the plan" in world.api.log("binlog_restore", run, "restore", 1)
    assert world.databases() == before


@pytest.mark.row("R4")
def test_a_drill_restores_proves_and_leaves_nothing_also_of_one_that_was_killed(world: World) -> None:
    world.restore()
    before = world.databases()
    with TargetConnection.open(own_schema(world.target, drill=True)) as killed:
        killed.create_tables()
    run, state, _ = world.triggered("binlog_drill", into="restore_target", seed=7)
    assert state == "success", watch.failure(world.api, "binlog_drill", run)
    assert world.states("binlog_drill", run) == dict.fromkeys(("prepare", "drill", "clean"), "success")
    done = world.api.result("binlog_drill", run, "drill")
    assert (done["verdict"], done["seed"], done["into"], done["tables"]) == ("equal", 7, "restore_target", 1)
    proof = world.api.result("binlog_drill", run, "drill", key="proven")

    assert proof["equal"] == 1
    assert world.databases() == before
    (kept,) = read_drills(world.source.archive)
    assert str(int(kept.at)) == done["at"]
    # A moment that the archive does not have: the drill fails, and what comes behind it runs all the same.
    run, state, _ = world.triggered("binlog_drill", into="restore_target", at=str(world.source.archive.end() + 1))
    assert state == "failed"
    assert world.states("binlog_drill", run) == {"prepare": "success", "drill": "failed", "clean": "success"}
    assert world.databases() == before


@pytest.mark.row("O1", "A5")
def test_maintenance_verifies_keeps_what_is_named_and_deletes_what_a_killed_snapshot_left(world: World) -> None:
    store, window = world.source.archive.store, world.source.archive.windows()[0]
    before = {each.key for each in store.list("")}
    left = layout.segment_key(window.start, window.planned_end, "pump-0", "dead", 0)
    store.put(left, b"x")
    os.utime(Path(store.url.removeprefix("file://"), left), (1.0, 1.0))
    for turn in range(2):
        run, state, _ = world.triggered("binlog_maintenance")
        assert state == "success", watch.failure(world.api, "binlog_maintenance", run)
        assert world.states("binlog_maintenance", run) == dict.fromkeys(
            ("verify", "base", "copy", "expire", "compact", "orphans"), "success"
        )
        assert "no retention is set" in world.api.result("binlog_maintenance", run, "expire")["why_nothing"]
        found = world.api.result("binlog_maintenance", run, "orphans")
        assert found["orphans"] == ([left] if turn == 0 else [])
        assert {each.key for each in store.list("windows/")} == {each for each in before if each.startswith("windows/")}
        assert not list(store.list(left))
