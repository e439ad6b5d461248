"""The DAG files: they parse quickly, import nothing heavy, and are joined as the design says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

_PARSE = """
import json, sys, time
from airflow.dag_processing.dagbag import DagBag
before = set(sys.modules)
started = time.perf_counter()
bag = DagBag(%r)
seconds = time.perf_counter() - started
print(json.dumps({
    "errors": {k: str(v) for k, v in bag.import_errors.items()},
    "seconds": seconds,
    "heavy": sorted(m for m in set(sys.modules) - before if m in ("pyspark", "pyarrow", "grpc", "boto3", "numba", "plyvel")),
    "dags": {d.dag_id: {
        "file": d.fileloc, "tags": sorted(d.tags), "active": d.max_active_runs, "catchup": d.catchup,
        "timetable": type(d.timetable).__name__, "tasks": {t.task_id: {
            "owner": t.owner, "retries": t.retries, "policy": type(t.retry_policy).__name__,
            "shows": getattr(t.unmap({"pump_id": ""}) if t.is_mapped else t, "show_return_value_in_logs", False),
            "outlets": [o.name for o in t.outlets], "upstream": sorted(t.upstream_task_ids)} for t in d.tasks},
        "params": {k: v for k, v in d.params.dump().items()},
    } for d in bag.dags.values()},
}))
"""


@pytest.fixture(scope="module")
def parsed(fresh_airflow: Callable[..., Any]) -> Any:
    return fresh_airflow(_PARSE % str(ROOT / "dags"))


@pytest.mark.row("O1")
def test_every_dag_file_parses_and_is_named_as_its_dag(parsed: Any) -> None:
    assert parsed["errors"] == {}
    files = {p.stem for p in (ROOT / "dags").glob("*.py")}
    assert {name: Path(d["file"]).stem for name, d in parsed["dags"].items()} == {f: f for f in files}


@pytest.mark.row("O1")
def test_parsing_loads_no_heavy_library(parsed: Any) -> None:
    assert parsed["heavy"] == []


@pytest.mark.row("O1")
def test_every_task_has_an_owner_and_asks_the_error_whether_to_retry(parsed: Any) -> None:
    for name, dag in parsed["dags"].items():
        assert dag["tags"] == ["pumphouse"]
        # A restore that waits for its approval is in nobody's way.
        assert dag["active"] == (16 if name == "binlog_restore" else 1)
        assert not dag["catchup"], "a missed interval is covered by the next run, not by a run of its own"
        for task in dag["tasks"].values():
            assert task["owner"] == "pumphouse"
            assert task["retries"] == 3
            assert task["policy"] == "BinlogRetryPolicy"


@pytest.mark.row("O1", "A1")
def test_snapshot_maps_a_task_over_the_pumps_and_only_the_commit_moves_the_asset(parsed: Any) -> None:
    snapshot = parsed["dags"]["binlog_snapshot"]
    assert snapshot["timetable"] == "CronDataIntervalTimetable"
    assert snapshot["tasks"]["commit"]["upstream"] == ["plan", "pull"]
    assert {t: v["outlets"] for t, v in snapshot["tasks"].items() if v["outlets"]} == {"commit": ["pumphouse_archive"]}


@pytest.mark.row("O1")
def test_schema_load_and_gc_follow_assets(parsed: Any) -> None:
    dags = parsed["dags"]
    assert dags["binlog_schema"]["tasks"]["rebuild"]["outlets"] == ["pumphouse_schema"]
    for name in ("binlog_schema", "binlog_load", "pump_gc"):
        assert dags[name]["timetable"] == "AssetTriggeredTimetable"


@pytest.mark.row("A6")
def test_kafka_gets_windows_by_hand_until_a_setting_says_each_one(parsed: Any, in_airflow: Callable[..., Any]) -> None:
    dag = parsed["dags"]["binlog_kafka"]
    assert (dag["timetable"], dag["params"]) == ("NullTimetable", {"from": None, "anew": False})
    assert dag["tasks"]["send"]["outlets"] == ["pumphouse_kafka"]
    script = """
import json
from airflow.dag_processing.dagbag import DagBag
print(json.dumps(type(DagBag(%r).dags["binlog_kafka"].timetable).__name__))
""" % str(ROOT / "dags" / "binlog_kafka.py")  # noqa: UP031
    assert in_airflow(script, PUMPHOUSE_AIRFLOW__KAFKA="true") == "AssetTriggeredTimetable"


@pytest.mark.row("R1")
def test_restore_asks_for_a_moment_and_a_target_and_is_a_dry_run_as_it_opens(parsed: Any) -> None:
    params = parsed["dags"]["binlog_restore"]["params"]
    assert params == {
        "to": None, "target": "pumphouse_restore", "dry_run": True, "accept_losses": False,
        "tables": None, "as": None, "into_database": None, "base": None, "verify": False,
        "keys": None, "key_from": None, "key_to": None,
    }  # fmt: skip


@pytest.mark.row("R4")
def test_drills_run_by_hand_alone_until_a_setting_says_when_and_clean_up_however_they_end(
    parsed: Any, in_airflow: Callable[..., Any]
) -> None:
    dag = parsed["dags"]["binlog_drill"]
    assert dag["timetable"] == "NullTimetable"
    assert {name: each["upstream"] for name, each in dag["tasks"].items()} == {
        "prepare": [], "drill": ["prepare"], "clean": ["drill", "prepare"],
    }  # fmt: skip
    script = """
import json
from airflow.dag_processing.dagbag import DagBag
dag = DagBag(%r).dags["binlog_drill"]
print(json.dumps([dag.schedule, dag.get_task("clean").is_teardown, dag.get_task("prepare").is_setup, dag.params["into"],
    dag.params["whole"]]))
""" % str(ROOT / "dags" / "binlog_drill.py")  # noqa: UP031
    settings = {"PUMPHOUSE_AIRFLOW__DRILL_CRON": "0 3 * * *", "PUMPHOUSE_DRILL__INTO": "scratch"}
    assert in_airflow(script, **settings) == ["0 3 * * *", True, True, "scratch", False]
    assert in_airflow(script, **settings, PUMPHOUSE_DRILL__WHOLE="true")[-1] is True
    script = """
import json
from binlog_airflow import tasks
from pumphouse.errors import UsageError
try:
    tasks.drill_server("restore_target", None, 1, "r", whole=True)
except UsageError as error:
    print(json.dumps(error.message))
"""
    assert "restore_target is none" in in_airflow(script)


@pytest.mark.row("O1", "A5")
def test_maintenance_runs_by_hand_alone_until_a_setting_says_when_and_verifies_before_it_deletes(
    parsed: Any, in_airflow: Callable[..., Any]
) -> None:
    dag = parsed["dags"]["binlog_maintenance"]
    assert dag["timetable"] == "NullTimetable"
    assert {name: each["upstream"] for name, each in dag["tasks"].items()} == {
        "verify": [], "base": ["verify"], "copy": ["base"], "expire": ["base", "copy", "verify"],
        "compact": ["expire"], "orphans": ["compact"],
    }  # fmt: skip
    assert dag["params"] == {"full": False}
    script = """
import json
from airflow.dag_processing.dagbag import DagBag
dag = DagBag(%r).dags["binlog_maintenance"]
print(json.dumps([dag.schedule, dag.params["full"]]))
""" % str(ROOT / "dags" / "binlog_maintenance.py")  # noqa: UP031
    settings = {"PUMPHOUSE_AIRFLOW__MAINTENANCE_CRON": "0 4 * * *", "PUMPHOUSE_AIRFLOW__MAINTENANCE_FULL": "true"}
    assert in_airflow(script, **settings) == ["0 4 * * *", True]


@pytest.mark.row("R1")
def test_apply_has_real_data_intervals_for_backfill_and_a_form(parsed: Any) -> None:
    assert parsed["dags"]["binlog_apply"]["timetable"] == "BackfillTimetable"
    assert parsed["dags"]["binlog_apply"]["params"] == {"target": None, "stop": None}


@pytest.mark.row("R1")
def test_the_source_is_offered_for_tables_and_nowhere_else(in_airflow: Callable[..., Any]) -> None:
    script = """
import json
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(%r)
names = ("binlog_restore", "binlog_apply")
print(json.dumps([bag.dags[name].params.get_param("target").schema["enum"] for name in names]))
""" % str(ROOT / "dags")  # noqa: UP031
    both = ["pumphouse_restore", "pumphouse_source"]
    assert in_airflow(script, PUMPHOUSE_AIRFLOW__RESTORE_TARGETS=",".join(both)) == [both, [None, both[0]]]


@pytest.mark.row("O1", "A5")
def test_a_dump_moves_the_archive_and_may_be_of_some_tables(parsed: Any) -> None:
    dump = parsed["dags"]["binlog_dump"]
    assert dump["params"] == {"tables": None}
    assert dump["tasks"]["dump"]["outlets"] == ["pumphouse_archive"]


@pytest.mark.row("O1")
def test_no_task_ends_with_a_dictionary_in_its_log(parsed: Any) -> None:
    shown = {t["shows"] for dag in parsed["dags"].values() for t in dag["tasks"].values()}
    assert shown == {False}


@pytest.mark.row("O1")
def test_gc_follows_the_load_where_the_setting_says_so(in_airflow: Callable[..., Any]) -> None:
    script = """
import json
from airflow.dag_processing.dagbag import DagBag
dag = DagBag(%r).dags["pump_gc"]
print(json.dumps([a.name for a in dag.timetable.asset_condition.objects]))
""" % str(ROOT / "dags" / "pump_gc.py")  # noqa: UP031
    assert in_airflow(script, PUMPHOUSE_AIRFLOW__GC_FOLLOWS="load") == ["pumphouse_target"]
    assert in_airflow(script) == ["pumphouse_archive"]


@pytest.mark.row("O1", "O2")
def test_plugins_leave_the_standard_library_alone_and_no_module_has_two_names(
    fresh_airflow: Callable[..., Any],
) -> None:
    found = fresh_airflow("""
import json, sys
import queue, types, logging
before = {n: id(m) for n, m in sys.modules.items()}
from airflow import plugins_manager
plugins, errors = plugins_manager._get_plugins() if hasattr(plugins_manager, "_get_plugins") else ([], {})
import binlog_airflow.hooks
files = {}
for name, module in list(sys.modules.items()):
    path = getattr(module, "__file__", None) or ""
    if "plugins/" in path and "site-packages" not in path:
        files.setdefault(path, []).append(name)
print(json.dumps({
    "changed": [n for n, i in before.items() if n in sys.modules and id(sys.modules[n]) != i and n in sys.stdlib_module_names],
    "double": {p: n for p, n in files.items() if len(n) > 1}, "errors": {str(k): str(v) for k, v in errors.items()},
    "names": [p.name for p in plugins],
}))
""")
    assert found["changed"] == []
    assert found["double"] == {}
    assert found["errors"] == {}
    assert "pumphouse" in found["names"]
