"""Operators, sensors and the factory in DAGs of others, by Airflow's own runner; triggers run in line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.failed import read_failed
from pumphouse.loader.apart import server_name
from pumphouse.loader.target import TargetConnection
from pumphouse.model import tso
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.registry.open import open_cluster
from tests.support import mariadb
from tests.support.connections import connection_variables
from tests.support.madearchive import MadeSource, column, target_rows

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.row("O1", "O2"), pytest.mark.timeout(600)]

# Operators of a DAG, each with what its task ended as, its tries, and what its log said.
_DAG = """
from datetime import datetime
from airflow.sdk import DAG
from binlog_airflow.operators import *
from binlog_airflow.sensors import *
with DAG("own", schedule=None, start_date=datetime(2026, 1, 1), default_args=%(args)r) as dag:
    %(make)s
"""
_RUN = """
import json
from types import SimpleNamespace
import airflow.settings
from airflow.dag_processing.dagbag import DagBag
from binlog_airflow import operators, retry, tasks
said = []
say = lambda event, **facts: said.append(event)
retry.log = operators.log = tasks.log = SimpleNamespace(info=say, warning=say, error=say, debug=lambda *_, **__: None)
operators.EVERY_S, operators.PATIENCE_S = 0.2, 0.3
airflow.settings.DAGS_FOLDER = %r
bag = DagBag(airflow.settings.DAGS_FOLDER)
assert not bag.import_errors, bag.import_errors
run = bag.dags["own"].test(logical_date=None)
found = run.get_task_instances()
print(json.dumps([{t.task_id: t.state for t in found}, said, {t.task_id: t.try_number for t in found}]))
"""


class World:
    """A made archive of an installation that is not the first, and a server."""

    def __init__(self, folder: Path, in_airflow: Callable[..., Any], server: Any) -> None:
        url = f"file://{folder}/cluster"
        self.cluster = open_cluster(url, create=True)
        self.source = MadeSource(folder / "archive", self.cluster.cluster_id())
        self.source.create_table("t", [column(1, "id", flag=3), column(2, "v")])
        self.source.genesis()
        with self.source.txn() as txn:
            txn.insert("t", id=1, v=1)
        self.first = self.source.cut()
        self.then = self.source.snapshot()
        with self.source.txn() as txn:
            txn.insert("t", id=2, v=2)
        self.end = self.source.cut()
        self.server = server
        self._in_airflow = in_airflow
        self._dags = folder / "dags"
        self._dags.mkdir()
        self._connections = connection_variables(
            {
                "mine": {"conn_type": "pumphouse_archive", "extra": {"root": self.source.settings.root}},
                "pumps": {"conn_type": "pumphouse_cluster", "extra": {"url": url, "history": "http://127.0.0.1:1"}},
                "there": {
                    "conn_type": "pumphouse_downstream", "host": server.host, "port": server.port,
                    "login": server.user, "password": server.password.get_secret_value(),
                },
            }
        )  # fmt: skip

    def run(self, *makes: str, retries: int = 0, **settings: str) -> tuple[dict[str, str], list[str], dict[str, int]]:
        """States, lines and tries of the tasks that these lines make."""
        args = {
            "archive_conn_id": "mine",
            "cluster_conn_id": "pumps",
            "retries": retries,
            "retry_delay": 1,
            "targets": ["there"],
        }
        (self._dags / "own.py").write_text(_DAG % {"args": args, "make": "\n    ".join(makes)})
        states, said, tries = self.in_airflow(_RUN % str(self._dags), **settings)
        return states, said, tries

    def in_airflow(self, code: str, **settings: str) -> Any:
        """What a process with the connections prints."""
        return self._in_airflow(
            code,
            AIRFLOW__CORE__DAGS_FOLDER=str(self._dags),
            **self._connections,
            PUMPHOUSE_LOAD__ENGINE="local",
            PUMPHOUSE_ARCHIVE__POLL_INTERVAL_S="0.05",
            **settings,
        )

    def rows(self) -> Any:
        with TargetConnection.open(self.server) as connection:
            return target_rows(connection)


@pytest.fixture
def world(tmp_path: Path, in_airflow: Callable[..., Any]) -> Any:
    with mariadb.in_memory() as server:
        yield World(tmp_path, in_airflow, server)


@pytest.mark.row("R1", "R3", "R4")
def test_a_restore_drops_data_for_the_servers_name_alone_and_tables_come_beside_it(world: World) -> None:
    to = f"to={str(int(world.first))!r}, conn_id='there', task_id='restore'"
    states, said, _ = world.run(f"PumphouseRestoreOperator({to}, verify=True)")
    assert states == {"restore": "success"}, said
    assert world.rows() == world.then
    again = f"to='latest', conn_id='there', task_id='restore', replace={server_name(world.server)!r}"
    states, said, _ = world.run(f"PumphouseRestoreOperator({again.partition(', replace')[0]})")
    assert states == {"restore": "failed"}
    assert f"replace='{server_name(world.server)}'" in said[-1]
    assert world.rows() == world.then
    assert world.run(f"PumphouseRestoreOperator({again})")[0] == {"restore": "success"}
    assert set(world.rows()["t"]) == {(1, 1), (2, 2)}
    beside = f"{to}, tables=['d.t'], called='d.t_then', verify=True"
    states, said, _ = world.run(f"PumphouseRestoreOperator({beside})")
    assert states == {"restore": "success"}, said
    assert world.rows()["t_then"] == world.then["t"]


def test_sensors_wait_in_triggers_until_the_archive_and_a_target_are_there(world: World) -> None:
    """A target behind its moment is waited for, not taken."""
    end = str(int(world.end))
    restore = f"PumphouseRestoreOperator(task_id='restore', conn_id='there', to={str(int(world.first))!r})"
    sense = f"PumphouseTargetSensor(task_id='sense', conn_id='there', moment={end!r}, poke_interval=0.2, timeout=2, retries=0)"
    states, _, _ = world.run(f"{restore} >> {sense}")
    assert states == {"restore": "success", "sense": "failed"}
    load = "PumphouseLoadOperator(task_id='load', conn_id='there')"
    archived = f"PumphouseArchiveSensor(task_id='archived', moment={end!r})"
    states, said, _ = world.run(f"{archived} >> {load} >> {sense}")
    assert states == dict.fromkeys(("archived", "load", "sense"), "success"), said
    for mode in ("poke", "reschedule"):
        states, said, _ = world.run(
            f"PumphouseArchiveSensor(task_id='a', moment={end!r}, deferrable=False, mode={mode!r})"
        )
        assert states == {"a": "success"}, said


@pytest.mark.row("R1", "A5")
def test_what_a_template_leaves_empty_or_unclear_changes_and_deletes_nothing(world: World) -> None:
    """As does a deletion from an archive of which nobody says who needs it."""
    restore = f"conn_id='there', replace={server_name(world.server)!r}, to={str(int(world.first))!r}"
    assert world.run(f"PumphouseRestoreOperator(task_id='restore', {restore})")[0] == {"restore": "success"}
    later = restore.replace(str(int(world.first)), "latest")
    states, said, _ = world.run(
        f"PumphouseRestoreOperator(task_id='empty', tables='{{{{ \"\" }}}}', {later})",
        f"PumphouseRestoreOperator(task_id='text', tables='{{{{ [1] }}}}', {later})",
        f"PumphouseRestoreOperator(task_id='unclear', accept_losses='{{{{ none }}}}', {later})",
        "PumphouseArchiveSensor(task_id='moment', moment='{{ \"\" }}')",
        "PumphouseExpireOperator(task_id='expire')",
    )
    assert states == dict.fromkeys(("empty", "text", "unclear", "moment", "expire"), "failed")
    for part in (
        "tables came out empty",
        "tables came as the text '[1]', not as a list",
        "accept_losses came as 'None', which is neither true nor false",
        "'' is no time",
        "nobody says which servers still need the archive of connection 'mine': nothing expires",
    ):
        assert [line for line in said if line.startswith(part)], (part, said)
    assert world.rows() == world.then


_BUSY = """
import json, time
from types import SimpleNamespace
from airflow.sdk.exceptions import TaskDeferred
from binlog_airflow import tasks
from binlog_airflow.operators import PumphouseRestoreOperator
from pumphouse.errors import TargetBusy
moments = []
def busy(form, *_, **__):
    moments.append(form.to)
    raise TargetBusy("another run")
tasks.restore_at_once = busy
context = {"run_id": "one", "ti": SimpleNamespace(dag_id="own")}
def told(method, *event):
    restore = PumphouseRestoreOperator(
        task_id="restore", conn_id="there", to="1 second ago", archive_conn_id="mine", cluster_conn_id="pumps")
    try:
        getattr(restore, method)(context, *event)
    except TaskDeferred as wait:
        return wait.trigger.told
first = told("execute")
time.sleep(0.1)
told("go_on", first)
print(json.dumps(moments))
"""


def test_a_restore_that_waits_for_its_target_keeps_the_moment_that_it_was_asked_for(world: World) -> None:
    first, later = world.in_airflow(_BUSY)
    assert first == later
    assert first.isdigit()


@pytest.mark.row("R4")
def test_the_documented_copy_of_every_night_is_a_table_of_its_own_as_of_the_runs_moment(world: World) -> None:
    page = (ROOT / "docs" / "airflow.md").read_text()
    sample = page.split("PumphouseRestoreOperator(\n", 1)[1].split("\n    )\n", 1)[0]
    there = sample.replace("shop.orders", "d.t").replace("pumphouse_source", "there")
    world.source.ts = int(tso.compose(int((time.time() + 600) * 1000)))  # the runs' moments are archived
    world.source.cut()
    for count in (1, 2):
        time.sleep(1)  # the names of the tables have seconds
        states, said, _ = world.run(f"PumphouseRestoreOperator(\n{there}\n    )")
        assert states == {"copy": "success"}, said
        copies = {name: rows for name, rows in world.rows().items() if re.fullmatch(r"t_\d{8}T\d{6}", name)}
        assert len(copies) == count
        assert all(set(rows) == {(1, 1), (2, 2)} for rows in copies.values())


_AGAIN = """
import json
from datetime import datetime, UTC
from binlog_airflow import tasks
from binlog_airflow.installation import Installation
said = []
tasks._say = said.append
done, _ = tasks.extend_archive(datetime(2020, 1, 1, tzinfo=UTC), Installation(archive="mine", cluster="pumps"))
print(json.dumps([done, said]))
"""


def test_a_snapshot_that_finds_the_archive_there_already_says_where_it_is(world: World) -> None:
    """What follows it in a DAG, a load above all, is not skipped."""
    done, said = world.in_airflow(_AGAIN)
    assert done["end"] == str(int(world.end))
    wanted = tso.show(tso.from_datetime(datetime(2020, 1, 1, tzinfo=UTC)))
    assert said == [f"nothing to do: the archive is at {tso.show(world.end)} already, past {wanted}"]


@pytest.mark.row("A2")
def test_a_held_window_fails_once_it_was_waited_for_and_the_error_says_who_holds_it(world: World) -> None:
    """A Pump that is registered as running and does not answer: nothing of it is skipped, and nothing is tried twice."""
    now = world.cluster.tso()
    silent = NodeStatus(
        node_id="pump-9",
        host="127.0.0.1:1",
        state=NodeState.ONLINE,
        update_ts=tso.compose(tso.physical_ms(now) - 60_000),
    )
    world.cluster.update_node(NodeKind.PUMP, silent.node_id, lambda _: silent)
    states, said, tries = world.run(
        "PumphouseSnapshotOperator(task_id='snapshot')",
        retries=2,
        PUMPHOUSE_ARCHIVE__PULL_TIMEOUT_S="5",
    )
    assert (states, tries) == ({"snapshot": "failed"}, {"snapshot": 1}), said
    waits = [line.partition("; waiting in a trigger, for at most ")[2] for line in said if "; waiting in a" in line]
    assert waits
    assert {each.partition(" s more")[0] for each in waits} <= {str(s) for s in range(6)}, "the setting's 5 s"
    assert said[-1].startswith("Go Pump pump-9 holds the window after ") or said[-1].startswith("Pump pump-9 holds ")
    (failed,) = read_failed(world.source.archive)
    assert (failed.what, failed.error) == ("snapshot", "WindowHeld")
    assert world.source.archive.end() == world.end


_READ = """
import json
from binlog_airflow.hooks import settings_from
from pumphouse.errors import ConfigError
def of(archive, cluster):
    try:
        s = settings_from(archive=archive, cluster=cluster)
    except ConfigError as error:
        return str(error)
    return [s.archive.root, s.archive.copy_root, s.archive.archive_id, s.archive.s3_access_key, s.cluster.url,
        s.history.history, s.history.history_password.get_secret_value(), s.cluster.operator_tokens, s.archive.ddl_wait_s,
        s.cluster.user, s.cluster.password.get_secret_value()]
print(json.dumps([of("pumphouse_archive", "pumphouse_cluster"), of("other_archive", "other_cluster"),
    of("empty_archive", "other_cluster"), of("other_archive", "empty_cluster")]))
"""


def test_another_installations_connections_say_everything_of_their_part(in_airflow: Callable[..., Any]) -> None:
    """Its archive is never copied to the first one's copy, nor its Pumps shown the first one's token."""
    first, other, no_root, no_url = in_airflow(
        _READ,
        **connection_variables(
            {
                "pumphouse_archive": {"conn_type": "pumphouse_archive"},
                "pumphouse_cluster": {"conn_type": "pumphouse_cluster"},
                "other_archive": {"conn_type": "pumphouse_archive", "extra": {"root": "file:///other"}},
                "other_cluster": {"conn_type": "pumphouse_cluster", "extra": {"url": "file:///pumps"}},
                "empty_archive": {"conn_type": "pumphouse_archive"},
                "empty_cluster": {"conn_type": "pumphouse_cluster"},
            }
        ),
        PUMPHOUSE_ARCHIVE__ROOT="file:///first",
        PUMPHOUSE_ARCHIVE__COPY_ROOT="file:///copy",
        PUMPHOUSE_ARCHIVE__ARCHIVE_ID="first",
        PUMPHOUSE_ARCHIVE__S3_ACCESS_KEY="key",
        PUMPHOUSE_ARCHIVE__S3_SECRET_KEY="secret",
        PUMPHOUSE_ARCHIVE__DDL_WAIT_S="7",
        PUMPHOUSE_CLUSTER__URL="file:///first/pumps",
        PUMPHOUSE_CLUSTER__USER="etcd",
        PUMPHOUSE_CLUSTER__PASSWORD="secret",
        PUMPHOUSE_CLUSTER__OPERATOR_TOKEN="of-the-first-one-alone",
        PUMPHOUSE_SCHEMA__HISTORY="http://first",
        PUMPHOUSE_SCHEMA__HISTORY_PASSWORD="secret",
    )
    assert first == [
        "file:///first", "file:///copy", "first", "key", "file:///first/pumps", "http://first", "secret",
        ["of-the-first-one-alone"], 7.0, "etcd", "secret",
    ]  # fmt: skip
    assert other == ["file:///other", "", "main", "", "file:///pumps", "", "", [], 7.0, "", ""]
    assert no_root.startswith("connection 'empty_archive' names no root")
    assert no_url.startswith("connection 'empty_cluster' names no url")


_FACTORY = """
import json, time
from airflow.dag_processing.dagbag import DagBag
seconds = {}
import binlog_airflow.factory
def parsed(text):
    open("own.py", "w").write("from binlog_airflow.factory import pumphouse_dags\\n" + text)
    started = time.process_time()
    bag = DagBag("own.py")
    seconds[text] = time.process_time() - started
    (error,) = [*bag.import_errors.values(), ""][:1]
    return error.strip().splitlines()[-1] if error else {
        name: [dag.get_task(dag.task_ids[0]).pool, sorted({asset.name for task in dag.tasks for asset in task.outlets})]
        for name, dag in bag.dags.items()}
print(json.dumps([[parsed(text) for text in %r], max(seconds.values())]))
"""


def test_the_factory_names_all_of_an_installation_and_says_what_is_wrong(
    in_airflow: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong.toml").write_text('[airflow]\nsnapshot_cron = "often"\n')
    (tmp_path / "unknown.toml").write_text("[airflow]\nsnapshot_corn = 1\n")
    (all_of_eu, some, *wrong), slowest = in_airflow(
        _FACTORY
        % [
            'pumphouse_dags(prefix="eu_", pool="eu")',
            'pumphouse_dags(only=["pump_gc"])',
            f'pumphouse_dags(prefix="x_", settings_file="{tmp_path}/wrong.toml")',
            f'pumphouse_dags(prefix="x_", settings_file="{tmp_path}/unknown.toml")',
            f'pumphouse_dags(prefix="x_", settings_file="{tmp_path}/none.toml")',
            'pumphouse_dags(prefix="a b")',
            'pumphouse_dags(prefix="x_", targets="reporting")',
            'pumphouse_dags(only=["binlog_snapshots"])',
        ]
    )
    names = {each.stem for each in (ROOT / "dags").glob("*.py")}
    assert {each.removeprefix("eu_") for each in all_of_eu} == names
    assert all(pool == "eu" for pool, _ in all_of_eu.values())
    assert {name for _, outlets in all_of_eu.values() for name in outlets} == {
        f"eu_pumphouse_{what}" for what in ("archive", "schema", "target", "kafka")
    }
    assert list(some) == ["pump_gc"]
    for said, named in zip(
        wrong,
        (
            "setting 'airflow.snapshot_cron': 'often' is no cron expression",
            "unknown setting 'airflow.snapshot_corn'",
            "there is no settings file",
            "'a b' is no prefix",
            "targets = 'reporting' is no list of names",
            "there is no DAG binlog_snapshots",
        ),
        strict=True,
    ):
        assert named in said
    assert slowest < 0.3, "seconds of CPU to parse a file with all DAGs of an installation"
