"""DAGs of others on a real scheduler: two installations by the factory, the pages' DAGs and commands, a silent Pump."""

from __future__ import annotations

import contextlib
import email.policy
import importlib.util
import json
import os
import re
import signal
import socketserver
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.archive import Archive
from pumphouse.archive.init import init_archive
from pumphouse.codec import payload
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import Job, MysqlType
from pumphouse.registry.file import FileCluster
from pumphouse.runs import load
from pumphouse.settings import Settings, TargetSettings
from pumphouse.status.look import look
from tests.e2e import airflow_watch as watch
from tests.stack.airflow import AirflowServer
from tests.stack.supervisor import Supervisor
from tests.support import mariadb
from tests.support.frozen import freeze
from tests.support.madearchive import MadeSource, Txn, column
from tests.support.nojobs import status_api
from tests.support.prometheus import watched
from tests.support.pumpserver import PumpServer
from tests.support.shellpage import Shell, blocks
from tests.support.waiting import eventually

pytestmark = [pytest.mark.row("O1", "O2"), pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
_US = """
from binlog_airflow.factory import pumphouse_dags

pumphouse_dags(
    prefix="us_", cluster="american_pumps", archive="american_archive", targets=["american_copy"], pool="america"
)
"""
_EU = """
from binlog_airflow.factory import pumphouse_dags

pumphouse_dags(prefix="eu_", targets=["reporting"], settings_file={settings!r})
"""
_BROKEN = """
from binlog_airflow.factory import pumphouse_dags

pumphouse_dags(prefix="broken_", settings_file={settings!r})
"""


class Site:
    """A cluster with one Pump, its archive, and a target that is equal to it at genesis."""

    def __init__(self, folder: Path, target: TargetSettings, stack: contextlib.ExitStack) -> None:
        folder.mkdir()
        self.cluster = FileCluster(folder / "cluster")
        self.pump = PumpServer(folder, self.cluster)
        self.target = target
        # Of the made source only the schema and its jobs.
        self._source = MadeSource(folder / "made")
        self._source.create_table("t", [column(1, "id", flag=3), column(2, "v", MysqlType.VARCHAR, flen=40)])
        history = stack.enter_context(status_api(lambda: self.jobs()))
        stack.enter_context(self.pump)
        root = f"file://{folder}/archive"
        self.settings = Settings.model_validate(
            {
                "cluster": {"url": self.cluster.url},
                "archive": {"root": root},
                "target": target,
                "load": {"engine": "local"},
            }
        )
        self.archive = Archive.open(self.settings.archive, self.cluster.cluster_id())
        init_archive(self.archive, self.cluster, self, settings=self.settings)
        with TargetConnection.open(target) as connection:
            connection.execute("CREATE DATABASE d")
            connection.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(40) COLLATE utf8mb4_bin)")
        load.run(self.settings, equal_at=self.archive.genesis().ts)
        self.of_archive = {"conn_type": "pumphouse_archive", "extra": {"root": root}}
        self.of_cluster = {"conn_type": "pumphouse_cluster", "extra": {"url": self.cluster.url, "history": history}}
        self.of_target = {
            "conn_type": "pumphouse_downstream", "host": target.host, "port": target.port, "login": target.user,
            "password": target.password.get_secret_value(),
        }  # fmt: skip

    def job(self, job_id: int) -> Job | None:
        return next((each for each in self.jobs() if each.id == job_id), None)

    def jobs(self, *, after_id: int = 0) -> Iterator[Job]:
        return (each.job for each in self._source.jobs if each.job.id > after_id)

    def write(self, number: int, value: str) -> None:
        """A row, committed on the Pump."""
        txn = Txn(self._source, payload.PrewriteValueBuilder(self._source.schema_version))
        txn.insert("t", id=number, v=value.encode())
        self.pump.transaction(txn.builder.build())

    def rows(self) -> dict[int, str]:
        with TargetConnection.open(self.target) as connection:
            return {int(number): str(value) for number, value in connection.query("SELECT id, v FROM d.t")}


class World:
    """Two sites, and an Airflow whose DAG folder has a file for each, one with a mistake, and the documented samples."""

    def __init__(self, work: Path, stack: contextlib.ExitStack, **more: Any) -> None:
        self.work = work
        self.stack = stack
        self.eu, self.us = (self.site(name) for name in ("eu", "us"))
        dags = work / "dags"
        dags.mkdir()
        (work / "eu.toml").write_text(
            '[load]\nengine = "local"\n[archive]\npull_timeout_s = 300\n[airflow]\nsnapshot_cron = "0 0 1 1 *"\n'
        )
        (work / "broken.toml").write_text('[airflow]\ndrill_cron = "at noon"\n')
        (dags / "eu.py").write_text(_EU.format(settings=str(work / "eu.toml")))
        (dags / "us.py").write_text(_US)
        (dags / "broken.py").write_text(_BROKEN.format(settings=str(work / "broken.toml")))
        (dags / "own.py").write_text(documented("nightly_reporting"))
        (dags / "copy.py").write_text(documented("nightly_copy"))
        # A wait that is over at once is taken for a killed task by a scheduler that is late, and tried again.
        watch_archive = documented("watch_archive").replace("15 minutes ago", "1 second ago").replace("=60", "=20")
        (dags / "watch.py").write_text(watch_archive)
        supervisor = Supervisor(work / "run")
        stack.callback(supervisor.stop_all, timeout_s=0)
        self.airflow = AirflowServer(
            work / "airflow",
            supervisor,
            # Of another installation: nothing of it may be taken for these two's.
            environment=more.pop("environment", {})
            | {
                "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
                "PUMPHOUSE_LOAD__ENGINE": "local",
                "PUMPHOUSE_ARCHIVE__ROOT": f"file://{work}/nowhere",
                "PUMPHOUSE_SCHEMA__HISTORY": "http://127.0.0.1:1",
                "PUMPHOUSE_AIRFLOW__LOAD_TARGETS": "nobody",
            },
            connections={
                "eu_pumphouse_archive": self.eu.of_archive,
                "eu_pumphouse_cluster": self.eu.of_cluster,
                "reporting": self.eu.of_target,
                "american_archive": self.us.of_archive,
                "american_pumps": self.us.of_cluster,
                "american_copy": self.us.of_target,
            }
            | more.pop("connections", {}),
            **more,
        )
        self.airflow.start()
        self.api = self.airflow.api()
        self.api.call("POST", "/pools", {"name": "america", "slots": 2})

    def site(self, name: str) -> Site:
        """One more, as long as the world is there."""
        return Site(self.work / name, self.stack.enter_context(mariadb.in_memory()), self.stack)

    def wait_for(self, dag_ids: set[str]) -> None:
        limit = time.monotonic() + 180
        while not dag_ids <= set(self.api.dags()):
            assert time.monotonic() < limit, (self.api.dags(), self.api.import_errors())
            time.sleep(0.5)

    def run(self, dag_id: str) -> str:
        self.api.unpause(dag_id)
        return self.api.trigger(dag_id)

    def ended(self, dag_id: str, run_id: str) -> None:
        state = self.api.wait_for_run(dag_id, run_id, timeout_s=240)["state"]
        assert state == "success", watch.failure(self.api, dag_id, run_id)

    def followed(self, dag_id: str) -> dict[str, Any]:
        """The first run that an asset has started, when it has ended."""
        limit = time.monotonic() + 240
        while not (found := self.api.runs(dag_id)) or found[0]["state"] not in ("success", "failed"):
            assert time.monotonic() < limit, found
            time.sleep(0.5)
        assert found[0]["state"] == "success", watch.failure(self.api, dag_id, found[0]["dag_run_id"])
        return found[0]

    def loaded(self, *more: str) -> dict[str, dict[str, Any]]:
        """A row of each installation, when a snapshot and the load behind it have brought it; the loads by prefix.

        ``more``: DAGs to wait for besides.
        """
        prefixes = ("eu_", "us_")
        self.wait_for(
            {f"{prefix}binlog_{name}" for prefix in prefixes for name in ("snapshot", "schema", "load", *more)}
        )
        self.eu.write(1, "Europe")
        self.us.write(1, "America")
        for prefix in prefixes:
            for name in ("schema", "load"):
                self.api.unpause(f"{prefix}binlog_{name}")
        runs = {prefix: self.run(f"{prefix}binlog_snapshot") for prefix in prefixes}
        for prefix, run in runs.items():
            self.ended(f"{prefix}binlog_snapshot", run)
        loads = {prefix: self.followed(f"{prefix}binlog_load") for prefix in prefixes}
        # A run by the schedule may have been first, whose window ends before these rows.
        eventually(lambda: self.eu.rows() and self.us.rows(), within_s=240)
        return loads


def named_on_the_page(world: World) -> dict[str, str]:
    """Who wants a hand by the page in Airflow's UI, and why; nobody while it has no look."""
    return {
        each["who"]: each["what"] for each in world.api.page("/pumphouse/status.json?cluster=eu_").get("findings", ())
    }


def state_of_pull(world: World, run: str) -> str | None:
    (pull,) = [each for each in world.api.tasks("eu_binlog_snapshot", run) if each["task_id"] == "pull"]
    state: str | None = pull["state"]
    return state


def documented(dag_id: str) -> str:
    """A sample of docs/airflow.md."""
    text = (ROOT / "docs" / "airflow.md").read_text()
    return next(part for part in text.split("```python\n")[1:] if f'"{dag_id}"' in part).split("```")[0]


class Mailbox(socketserver.ThreadingTCPServer):
    """A mail server that keeps what it gets."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Mail)
        self.mails: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.connection = {
            "conn_type": "smtp", "host": "127.0.0.1", "port": self.server_address[1],
            "extra": {"disable_ssl": True, "disable_tls": True},
        }  # fmt: skip


class _Mail(socketserver.StreamRequestHandler):
    server: Mailbox

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline().upper().strip():
            if line == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                self.server.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
            self.wfile.write(b"221 bye\r\n" if line == b"QUIT" else b"250 OK\r\n")


@pytest.fixture(scope="module")
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as server:
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, mailbox: Mailbox) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        work = tmp_path_factory.mktemp("own")
        transport = {"type": "file", "log_file_path": str(work / "lineage.jsonl"), "append": True}
        yield World(
            work,
            stack,
            connections={"smtp_default": mailbox.connection},
            environment={"AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport)},
        )


def test_two_installations_load_each_its_own_and_a_wrong_setting_stops_its_file_alone(world: World) -> None:
    loads = world.loaded()
    for prefix, loaded in loads.items():
        (task,) = world.api.tasks(f"{prefix}binlog_load", loaded["dag_run_id"])
        assert task["pool"] == ("america" if prefix == "us_" else "default_pool")
    assert world.eu.rows()[1] == "Europe"  # other tests write there, too
    # The first load may be of the interval that had ended when the DAG was unpaused.
    eventually(lambda: world.us.rows() == {1: "America"}, within_s=400, what="the row is on the target")
    names = {each["name"] for each in world.api.call("GET", "/assets?limit=100")["assets"]}
    assert names >= {f"{prefix}pumphouse_{what}" for prefix in loads for what in ("archive", "schema", "target")}
    (error,) = world.api.import_errors()
    assert "setting 'airflow.drill_cron': 'at noon' is no cron expression" in error
    assert "nightly_copy" in world.api.dags()
    search = f"{world.api.url}/pumphouse/search?cluster=eu_&since=1%20hour%20ago"
    request = urllib.request.Request(search, headers={"Authorization": f"Bearer {world.api._token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert re.search(r"the next snapshot, due 20\d\d-01-01 00:00:00Z, brings in", answer.read().decode())
    # Of a connection that nobody made, the page says so, and hides nothing else.
    eventually(lambda: "connection eu_pumphouse_restore" in named_on_the_page(world), within_s=60)


def test_the_documented_dag_brings_a_target_up_to_date(world: World) -> None:
    world.wait_for({"nightly_reporting"})
    world.eu.write(2, "by hand")
    run = world.run("nightly_reporting")
    world.ended("nightly_reporting", run)
    assert world.eu.rows()[2] == "by hand"
    told = world.api.result("nightly_reporting", run, "report")
    assert "rows, up to 20" in told


def told_of(world: World, run: str) -> dict[str, dict[str, Any]]:
    """By task, what OpenLineage was told of a run when the task had succeeded."""
    events = [json.loads(line) for line in (world.work / "lineage.jsonl").read_text().splitlines()]
    of_run = [
        each for each in events if each["run"]["facets"].get("airflow", {}).get("dagRun", {}).get("run_id") == run
    ]
    return {each["job"]["name"].partition(".")[2]: each for each in of_run if each["eventType"] == "COMPLETE"}


def names_of(datasets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["namespace"], each["name"]) for each in datasets]


# The provider is the user's to install; in the lock, its listener would run in every test of an Airflow.
@pytest.mark.skipif(
    importlib.util.find_spec("airflow.providers.openlineage") is None,
    reason="apache-airflow-providers-openlineage is not installed",
)
def test_openlineage_is_told_of_windows_and_of_a_targets_tables(world: World) -> None:
    world.wait_for({"nightly_reporting"})
    world.eu.write(5, "told")
    run = world.run("nightly_reporting")
    world.ended("nightly_reporting", run)
    told, site = told_of(world, run), world.eu
    archive = ("file", f"{world.work}/eu/archive/{site.cluster.cluster_id()}")
    snapshot, load = told["snapshot"], told["load"]
    assert names_of(snapshot["inputs"]) == [(f"pumphouse://{site.cluster.cluster_id()}", "binlogs")]
    assert names_of(snapshot["outputs"]) == names_of(load["inputs"]) == [archive]
    window, (written,) = site.archive.windows()[-1], snapshot["outputs"]
    assert written["facets"]["pumphouse_range"]["end"] == str(window.end)
    assert written["facets"]["pumphouse_range"]["end_time"].startswith("20")
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 1
    assert names_of(load["outputs"]) == [(f"mysql://{site.target.host}:{site.target.port}", "d.t")]
    (table,) = load["outputs"]
    assert table["outputFacets"]["outputStatistics"]["rowCount"] >= 1  # of what other tests wrote, too
    assert {name: load["run"]["facets"]["pumphouse_tables"][name] for name in ("total", "listed")} == {
        "total": 1,
        "listed": 1,
    }
    secret = site.target.password.get_secret_value()
    assert not secret or secret not in (world.work / "lineage.jsonl").read_text()


@pytest.mark.row("O3")
def test_the_documented_watch_writes_a_mail_when_the_archive_is_late(world: World, mailbox: Mailbox) -> None:
    world.wait_for({"watch_archive"})
    world.api.unpause("watch_archive")
    eventually(lambda: mailbox.mails, within_s=240, what="the mail is there")
    mail = str(email.message_from_string(mailbox.mails[0], policy=email.policy.default)["Subject"])
    assert re.match(r"The archive is late: after 20 s, it is at \S+ .*, not ", mail), mail


@pytest.mark.slow  # the factory's DAGs load above; here, the page's own words do it
@pytest.mark.row("O3")
def test_the_quick_start_makes_dags_that_load_what_was_committed(world: World) -> None:
    """docs/start-airflow.md, block by block, as it stands there."""
    site = world.site("shop")
    site.write(1, "Ada")
    told = {
        "file:///srv/pumphouse/cluster": site.cluster.url,
        "file:///srv/pumphouse/archive": site.settings.archive.root,
        "mysql://capture@db1:3306/history.jobs": site.of_cluster["extra"]["history"],
        '"db2"': f'"{site.target.host}"',
        "3307": str(site.target.port),
        '"loader"': f'"{site.target.user}"',
        "of-the-loader": site.target.password.get_secret_value(),
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with Shell(world.work, {**os.environ, **world.airflow.variables(), "PATH": path}, told) as shell:
        for block in blocks((ROOT / "docs" / "start-airflow.md").read_text()):
            if name := block.get("file"):
                (world.work / name).write_text(shell.mine(block.text))
            elif block.language == "sh" and not block.runs_elsewhere:
                for line in block.lines:
                    shell.run(line)
    assert not (world.work / "connections.json").exists()
    world.followed("shop_binlog_load")
    # The first load may be of the interval that had ended when the DAG was unpaused.
    eventually(lambda: site.rows() == {1: "Ada"}, within_s=400, what="the row is on the target")


@pytest.mark.row("A1", "A2")
def test_a_pump_that_is_stopped_is_waited_for_without_a_worker_and_published_when_it_is_back(world: World) -> None:
    dag_id = "eu_binlog_snapshot"
    world.wait_for({dag_id})
    world.eu.write(3, "meanwhile")
    freeze(world.eu.pump.pid, world.eu.cluster)
    try:
        run = world.run(dag_id)
        eventually(lambda: state_of_pull(world, run) == "deferred", within_s=300)
        held = time.monotonic() + 15
        while time.monotonic() < held:
            assert state_of_pull(world, run) == "deferred", "it holds no slot while the Pump is silent"
            time.sleep(1)
        assert "waiting in a trigger" in world.api.log(dag_id, run, "pull", 1, map_index=0)
    finally:
        os.kill(world.eu.pump.pid, signal.SIGCONT)
    world.ended(dag_id, run)
    (pull,) = [each for each in world.api.tasks(dag_id, run) if each["task_id"] == "pull"]
    assert pull["try_number"] == 1
    assert sum(each.rows for each in world.eu.archive.windows()[-1].segments) == 1


@pytest.mark.slow  # a quarter of a minute of it is above
@pytest.mark.row("A1", "O2", "O3")
def test_a_pump_that_is_stopped_for_five_minutes_is_named_everywhere_within_one(world: World) -> None:
    dag_id, pump = "eu_binlog_snapshot", world.eu.pump
    world.wait_for({dag_id})
    world.eu.write(4, "meanwhile")
    with watched(world.work / "prometheus", pump.http, lambda: look(world.eu.settings)) as prometheus:
        assert prometheus.values("pumphouse_pump_silent") == [0.0]
        freeze(pump.pid, world.eu.cluster)
        began = time.monotonic()
        try:
            run = world.run(dag_id)
            held = "it holds the archive"
            who = f"Pump {pump.node_id}"
            eventually(lambda: held in named_on_the_page(world).get(who, ""), within_s=60)
            assert held in {each.who: each.what for each in look(world.eu.settings).findings}[who]
            eventually(lambda: "PumpSilent" in prometheus.firing(), within_s=began + 75 - time.monotonic())
            eventually(lambda: state_of_pull(world, run) == "deferred", within_s=120)
            while time.monotonic() < began + 300:
                assert state_of_pull(world, run) == "deferred", "it holds no slot while the Pump is silent"
                time.sleep(1)
        finally:
            os.kill(pump.pid, signal.SIGCONT)
        world.ended(dag_id, run)
        assert sum(each.rows for each in world.eu.archive.windows()[-1].segments) == 1
        eventually(lambda: "PumpSilent" not in prometheus.firing(), within_s=60)
