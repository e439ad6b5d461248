"""Runs that are triggered by hand, without a logical date, on a Pump, an archive and Airflow's own runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive import consumer
from pumphouse.archive.archive import Archive
from pumphouse.archive.init import init_archive
from pumphouse.codec.payload import PrewriteValueBuilder
from pumphouse.loader.target import TargetConnection
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import show
from pumphouse.objectstore.open import open_store
from pumphouse.registry.file import FileCluster
from pumphouse.settings import ArchiveSettings, ClusterSettings, Settings
from tests.support import kafkabroker, mariadb
from tests.support.connections import connection_variables
from tests.support.kafkabroker import KafkaBroker
from tests.support.loading import read_checkpoint
from tests.support.nojobs import NoJobHistory, status_api
from tests.support.pumpserver import PumpServer

ROOT = Path(__file__).resolve().parents[2]
# What `airflow dags trigger` and the API with "logical_date": null make of a run, in this process.
_RUN = """
import json
from types import SimpleNamespace
from airflow.dag_processing.dagbag import DagBag
from binlog_airflow import tasks
said = []
say = lambda event, **facts: said.append([event, facts])
tasks.log = SimpleNamespace(info=say, warning=say, error=say)
dag, conf, retries = DagBag(%r).dags[%r], %r, %r
for task in dag.tasks:
    task.retries = task.retries if retries is None else retries
run = dag.test(logical_date=None, run_conf=conf)
assert run.logical_date is None and run.data_interval_end is None
found = run.get_task_instances()
print(json.dumps([run.state, {t.task_id: t.state for t in found}, said, {t.task_id: t.try_number for t in found}]))
"""
# The task of `pump_gc` under several settings, and the DAG under one at which it fails.
_GC = """
import json, os
from types import SimpleNamespace
from airflow.dag_processing.dagbag import DagBag
from binlog_airflow import tasks
from pumphouse.errors import GapError
enough = tasks.collect_pumps()["pumps"]
os.environ["PUMPHOUSE_ARCHIVE__ARCHIVE_ID"] = "other"
try:
    tasks.collect_pumps()
    unknown = ""
except GapError as error:
    unknown = str(error)
del os.environ["PUMPHOUSE_ARCHIVE__ARCHIVE_ID"]
# Go Pumps that keep a second: no archive is ahead of that.
os.environ |= {"PUMPHOUSE_ARCHIVE__GO_PUMP_GC_S": "1", "PUMPHOUSE_ARCHIVE__GO_PUMP_MARGIN_S": "0.999"}
said = []
tasks.log = SimpleNamespace(info=lambda event, **facts: said.append([event, facts]))
run = DagBag(%r).dags["pump_gc"].test(logical_date=None)
print(json.dumps([enough, unknown, run.state, [t.try_number for t in run.get_task_instances()], said]))
"""

# The task of `pump_gc` where it follows the load of two targets.
_FOLLOWS = """
import json
from binlog_airflow import tasks
from pumphouse.errors import BinlogError
try:
    print(json.dumps([tasks.collect_pumps()["published"], "", False]))
except BinlogError as error:
    print(json.dumps([None, str(error), error.retryable]))
"""
_LOAD = {"PUMPHOUSE_AIRFLOW__GC_FOLLOWS": "load", "PUMPHOUSE_AIRFLOW__GC_TARGETS": "pumphouse_downstream,second"}


class World:
    """One Pump, an archive at its genesis, and a way to run a DAG on them."""

    def __init__(self, folder: Path, history: str, in_airflow: Callable[..., Any]) -> None:
        self.cluster = FileCluster(folder / "cluster")
        self.pump = PumpServer(folder, self.cluster)
        root = f"file://{folder / 'archive'}"
        self.settings = Settings(
            cluster=ClusterSettings(url=self.cluster.url), archive=ArchiveSettings(root=root, poll_interval_s=0.05)
        )
        self.archive = Archive(open_store(self.settings.archive), self.cluster.cluster_id())
        self._in_airflow = in_airflow
        self._connections = connection_variables(
            {
                "pumphouse_archive": {"conn_type": "pumphouse_archive", "extra": {"root": root}},
                "pumphouse_cluster": {
                    "conn_type": "pumphouse_cluster",
                    "extra": {"url": self.cluster.url, "history": history},
                },
                "pumphouse_restore": {
                    "conn_type": "pumphouse_downstream",
                    "host": "127.0.0.1",
                    "port": 1,
                    "login": "root",
                },
            }
        )

    def init(self) -> None:
        init_archive(self.archive, self.cluster, NoJobHistory(), settings=self.settings)

    def run(
        self, dag: str, conf: dict[str, str] | None = None, retries: int | None = None, **settings: str
    ) -> tuple[str, dict[str, str], list[Any]]:
        """State of the run, and of each task, and what the tasks logged.

        ``retries``: none where what fails is tried again after seconds, and fails again.
        """
        state, tasks, said, self.tries = self._in_airflow(
            _RUN % (str(ROOT / "dags"), dag, conf or {}, retries), **{**self._connections, **settings}
        )
        return state, tasks, said

    def follow(self, **targets: dict[str, Any]) -> list[Any]:
        """What the task of `pump_gc` says of these targets; see `_FOLLOWS`."""
        found: list[Any] = self._in_airflow(_FOLLOWS, **self._connections, **_LOAD, **connection_variables(targets))
        return found

    def collect(self) -> list[Any]:
        """What `pump_gc` reports and says; see `_GC`."""
        found: list[Any] = self._in_airflow(_GC % str(ROOT / "dags"), **self._connections)
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, in_airflow: Callable[..., Any]) -> Iterator[World]:
    with status_api() as history:
        made = World(tmp_path_factory.mktemp("by_hand"), history, in_airflow)
        with made.pump:
            made.init()
            yield made


@pytest.mark.row("A1", "O1")
def test_a_snapshot_that_is_triggered_by_hand_extends_the_archive_up_to_now(world: World) -> None:
    # Without a row: the history of this cluster knows no table, and other tests load what is archived here.
    _, committed = world.pump.transaction(PrewriteValueBuilder(1).build())
    before = world.cluster.tso()
    assert before > committed
    state, tasks, said = world.run("binlog_snapshot")
    assert (state, tasks) == ("success", dict.fromkeys(("plan", "nodes", "pull", "commit"), "success"))
    reached = show(world.archive.end())
    assert [line for line, _ in said] == [
        f"the next window goes up to {reached}, from 1 Pump",
        f"pulled 1 transaction, {said[1][0].split(', ')[1]}, from Pump pump-1: complete to {reached}",
        f"archived up to {reached}: 1 transaction, 0 row changes, 0 DDL jobs, {said[1][0].split(', ')[1]} in the last window",
    ]
    assert before < world.archive.end() < world.cluster.tso()
    assert sum(segment.rows for window in world.archive.windows() for segment in window.segments) == 1


@pytest.mark.row("A5", "O1")
def test_a_dump_is_taken_by_hand_from_the_source_of_the_connection(world: World) -> None:
    state, tasks, _ = world.run("binlog_dump", retries=0)
    assert (state, tasks) == ("failed", {"dump": "failed"}), "there is no such connection"
    with mariadb.in_memory() as server:
        connection = {
            "conn_type": "pumphouse_source", "host": server.host, "port": server.port, "login": server.user,
            "password": server.password.get_secret_value(),
        }  # fmt: skip
        state, tasks, said = world.run("binlog_dump", **connection_variables({"pumphouse_source": connection}))
    assert (state, tasks) == ("success", {"dump": "success"})
    assert said[-1][0].startswith("dumped 0 tables, 0 rows")
    assert len(world.archive.bases(world.archive.end())) == 1


@pytest.mark.row("R1", "R2")
def test_a_restore_by_hand_plans_one_to_the_end_of_the_archive_and_logs_the_moment(world: World) -> None:
    latest = {"to": "latest"}
    state, tasks, _ = world.run("binlog_restore", latest, retries=0)
    assert (state, tasks["plan"]) == ("failed", "failed"), "nothing listens where the connection points"
    with mariadb.in_memory() as server:
        connection = {
            "conn_type": "pumphouse_downstream", "host": server.host, "port": server.port, "login": server.user,
            "password": server.password.get_secret_value(),
        }  # fmt: skip
        there = connection_variables({"pumphouse_restore": connection})
        state, tasks, said = world.run("binlog_restore", latest, **there)
        assert (state, tasks) == (
            "success",
            dict.fromkeys(("approve", "restore", "verify"), "skipped") | {"plan": "success"},
        )
        loads = connection_variables({"pumphouse_downstream": connection})
        state, tasks, _ = world.run("binlog_restore", latest, **there, **loads)
        assert (state, tasks["plan"]) == ("failed", "failed"), "it is the server of loads"
    lines = [event for event, _ in said]
    assert f"moment    {show(world.archive.end())}, the end of the archive" in lines
    assert any(line.startswith("drops     ") and line.endswith("it holds nothing that is dropped") for line in lines)


@pytest.mark.row("A6", "O1")
# A Kafka is an optional tier: the reason says what is missing, and `make kafka` fetches it.
@pytest.mark.skipif(bool(kafkabroker.MISSING), reason=kafkabroker.MISSING)
def test_kafka_is_begun_by_hand_and_goes_on_by_itself(world: World, tmp_path: Path) -> None:
    with KafkaBroker(tmp_path) as kafka:
        topic, begin = kafka.create("topic"), world.archive.genesis().ts
        extra = {"bootstrap_servers": kafka.servers, "topic": topic}
        there = connection_variables({"pumphouse_kafka": {"conn_type": "pumphouse_kafka", "extra": extra}})
        state, tasks, _ = world.run("binlog_kafka", retries=0, **there)
        assert (state, tasks) == ("failed", {"send": "failed"}), "nobody said where the topic begins"
        for conf in ({"from": str(begin)}, {}):
            assert world.run("binlog_snapshot")[0] == "success"
            state, tasks, said = world.run("binlog_kafka", conf, **there)
            assert (state, tasks) == ("success", {"send": "success"})
        assert said[-1][0] == f"nothing to send: the topic {topic} has everything up to {show(world.archive.end())}"
        assert [len(each.dml_data.tables) for each in kafka.binlogs(topic)] == [0]


@pytest.mark.row("O1")
def test_an_apply_without_an_interval_fails_at_once(world: World) -> None:
    state, tasks, _ = world.run("binlog_apply")
    assert (state, tasks) == ("failed", {"apply": "failed"})
    assert world.tries == {"apply": 1}  # trying again gives it no interval


@pytest.mark.row("P11", "O1")
def test_gc_says_how_far_the_archive_is_ahead_of_a_go_pump_and_fails_at_once_where_it_is_not(world: World) -> None:
    go = NodeStatus(node_id="a-go-pump", host="127.0.0.1:1", state=NodeState.ONLINE)
    world.cluster.update_node(NodeKind.PUMP, go.node_id, lambda _: go)
    archived = consumer.checkpoint(world.cluster, "main")
    assert archived
    try:
        (of_go, of_ours), unknown, state, tries, said = world.collect()
    finally:
        world.cluster.update_node(NodeKind.PUMP, go.node_id, lambda _: None)
    assert of_go["archived"] == str(archived)
    assert 6 * 86_400 < of_go["left_s"] < 7 * 86_400
    assert show(archived) in of_go["note"]
    assert (of_ours["started"], of_ours["requested"]) == (True, of_ours["requested_by_retention"])
    assert of_ours["requested_by_checkpoints"] == str(archived)
    # An archive of another name than the one that is registered.
    assert "the archive has nothing yet" in unknown
    assert (state, tries) == ("failed", [1])
    about_go, about_ours = [event for event, _ in said]
    assert about_go.startswith("Pump a-go-pump: ")
    assert "is not ahead of this Go Pump's GC" in about_go
    assert about_ours.startswith("Pump pump-1: freed 0 files, 0 bytes, up to ")
    assert about_ours.endswith("; 1 file kept by retention")


@pytest.mark.row("P11", "O1")
def test_gc_that_follows_the_load_tells_the_pumps_what_every_target_has(world: World) -> None:
    before = consumer.checkpoint(world.cluster, "main")
    assert before is not None
    for _ in range(2):  # the second one's plan meets an archive that is ahead of the checkpoint
        assert world.run("binlog_snapshot", **_LOAD)[0] == "success"
    end = world.archive.end()
    assert end > before
    assert consumer.checkpoint(world.cluster, "main") == before
    with mariadb.in_memory() as server, TargetConnection.open(server) as connection:

        def of(schema: str) -> dict[str, Any]:
            return {
                "conn_type": "pumphouse_downstream", "host": server.host, "port": server.port, "login": server.user,
                "password": server.password.get_secret_value(), "extra": {"schema_name": schema, "task": schema},
            }  # fmt: skip

        def put(schema: str, ts: int) -> None:
            with TargetConnection.open(server.model_copy(update={"schema_name": schema})) as target:
                target.create_tables()
            connection.execute(
                f"REPLACE INTO `{schema}`.checkpoint (task, ts, state, reason, cluster_id, plan_number)"
                " VALUES (%s, %s, 'ready', '', %s, 0)",
                (schema, ts, world.cluster.cluster_id()),
            )

        put("one", end)
        targets = {"pumphouse_downstream": of("one"), "second": of("two")}
        done, error, _ = world.follow(**targets)
        assert done is None
        assert "second: it has no checkpoint of the task 'two'" in error
        _, error, again = world.follow(**{**targets, "second": {**of("two"), "port": 1}})
        assert "second: " in error
        assert "does not answer" in error
        assert again
        assert consumer.checkpoint(world.cluster, "main") == before
        put("two", before + 1)
        done, error, _ = world.follow(**targets)
        assert (done, error) == (
            {
                "archive_end": str(end), "archive_end_time": show(end)[20:-1], "checkpoint": str(before + 1),
                "checkpoint_time": show(before + 1)[20:-1], "held_by": ["second"], "unknown": {},
            },
            "",
        )  # fmt: skip
        assert consumer.checkpoint(world.cluster, "main") == before + 1


_LOADS = """
import json
from airflow.dag_processing.dagbag import DagBag
run = DagBag(%r).dags["binlog_load"].test(logical_date=None)
print(json.dumps({i.map_index: i.state for i in run.get_task_instances()}))
"""


@pytest.mark.row("O1", "L7")
def test_each_of_several_targets_is_loaded_by_a_task_of_its_own(world: World) -> None:
    def loads(targets: dict[str, Any]) -> Any:
        return world._in_airflow(
            _LOADS % str(ROOT / "dags"),
            **world._connections,
            **connection_variables(targets),
            PUMPHOUSE_AIRFLOW__LOAD_TARGETS="pumphouse_downstream,second",
            PUMPHOUSE_LOAD__ENGINE="local",
        )

    with mariadb.in_memory() as server:

        def of(schema: str) -> dict[str, Any]:
            return {
                "conn_type": "pumphouse_downstream", "host": server.host, "port": server.port, "login": server.user,
                "password": server.password.get_secret_value(), "extra": {"schema_name": schema},
            }  # fmt: skip

        def at(schema: str) -> Any:
            return read_checkpoint(server.model_copy(update={"schema_name": schema}), "main")

        targets = {"pumphouse_downstream": of("one"), "second": of("two")}
        wrong = {**targets, "second": {**of("two"), "extra": {"schema_name": "two", "shema": "x"}}}
        assert loads(wrong) == {"0": "success", "1": "failed"}
        assert (at("one"), at("two")) == (world.archive.end(), None)
        assert loads(targets) == {"0": "success", "1": "success"}
        assert at("one") == at("two") == world.archive.end()
