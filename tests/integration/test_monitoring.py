"""The dashboards and the alert rules, evaluated by a real Prometheus on a running Pump."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pumphouse.registry.file import FileCluster
from pumphouse.settings import Settings
from pumphouse.status.look import look
from pumphouse.status.report import CaptureStatus, CopyStatus, DrillStatus, HeldBy, RedProof, Status, TargetStatus
from tests.support.madearchive import MadeSource
from tests.support.prometheus import Prometheus, watched
from tests.support.pumpserver import PumpServer
from tests.support.waiting import eventually

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
BOARDS = [json.loads(path.read_text()) for path in sorted((DEPLOY / "grafana/dashboards").glob("*.json"))]
PANELS = [
    pytest.param(panel, id=f"{board['title']}, {panel['title']}") for board in BOARDS for panel in board["panels"]
]
RULES = {rule["alert"]: rule for rule in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]}


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PumpServer, Prometheus]]:
    """A Pump with a transaction and an archive as its consumer, two seconds old for Prometheus."""
    with _watched(tmp_path_factory.mktemp("monitoring")) as found:
        yield found


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The same, of which the exporter sees all that there can be."""
    with _watched(tmp_path_factory.mktemp("boards"), _with_all) as (_, prometheus):
        yield prometheus


def _with_all(seen: Status) -> Status:
    """A look, and what a cluster has whose every family of metrics has a value."""
    now = seen.now
    archive = replace(
        seen.archive, restorable_from=now, verified_to=now, copy=CopyStatus(url="", end=now), failed={"dump": "by a test"},
        drill=DrillStatus(verdict="equal", green=True, at=now, into="", age_s=1, why="", again=""),
        held_by=(HeldBy(who="p", why="", hint=""),), red=(RedProof(target="h:1", task="a", at=now, tables=("d.t",)),),
    )  # fmt: skip
    capture = CaptureStatus(
        capture_id="c", source="", host="", state="running", silent_s=0, gtid="", lag_s=1, transactions=1,
        semi_sync=None, reason="",
    )  # fmt: skip
    of = ("target", "restore_target.spare")
    targets = tuple(TargetStatus(section=each, address="h:1", task="a", at=now) for each in of)
    return replace(seen, archive=archive, targets=targets, captures=(capture,))


@contextmanager
def _watched(
    folder: Path, seen: Callable[[Status], Status] = lambda found: found
) -> Iterator[tuple[PumpServer, Prometheus]]:
    cluster = FileCluster(folder / "cluster")
    with PumpServer(folder, cluster) as pump:
        pump.transaction()
        source = MadeSource(folder / "archive", cluster.cluster_id())
        source.ts = int(cluster.tso())
        pump.consumer(source.genesis())
        where = {"cluster.url": f"file://{folder}/cluster", "archive.root": f"file://{folder}/archive"}
        settings = Settings.read(None, where)
        with watched(folder / "prometheus", pump.http, lambda: seen(look(settings))) as prometheus:
            yield pump, prometheus


@pytest.mark.row("P14", "O3")
@pytest.mark.parametrize("panel", PANELS)
def test_each_panel_has_values_of_what_runs(shown: Prometheus, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        found = shown.series(target["expr"])
        # A Pump that has refused nothing has no series of refusals.
        assert found or panel["title"] == "Refused", target
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert all(named <= set(each["metric"]) for each in found), target
        # What is gone stands red for as long as the board looks back, unless only the last scrape is asked.
        assert panel["type"] != "stat" or target["instant"]
        if "behind the clock" in panel["title"] and "GC" not in panel["title"] and "time()" in target["expr"]:
            assert 0 <= float(found[0]["value"][1]) < 300, target  # seconds, on a busy machine too


@pytest.mark.row("O3", "O5")
def test_boards_are_told_apart_and_ask_the_prometheus_that_is_provisioned() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    for name in ("uid", "title"):
        assert len({board[name] for board in BOARDS}) == len(BOARDS)
    for board in BOARDS:
        assert {(each["datasource"]["type"], each["datasource"]["uid"]) for each in board["panels"]} == {
            (source["type"], source["uid"])
        }


@pytest.mark.row("P14")
def test_rules_are_read_and_none_fires_on_a_healthy_pump(scraped: tuple[PumpServer, Prometheus]) -> None:
    eventually(lambda: all(each["health"] == "ok" for each in _rules(scraped[1])), within_s=120)
    assert {each["name"] for each in _rules(scraped[1])} == set(RULES)
    for name, rule in RULES.items():
        assert scraped[1].values(rule["expr"]) == [], name


@pytest.mark.row("O3", "P14")
def test_a_pump_that_dies_fires_within_a_minute_and_is_named(tmp_path: Path) -> None:
    with _watched(tmp_path) as (pump, prometheus):
        assert prometheus.values("pumphouse_pump_silent") == [0.0]
        pump.kill()
        eventually(lambda: "PumpSilent" in prometheus.firing(), within_s=150)
        (alert,) = (each for each in prometheus.ask("alerts")["alerts"] if each["labels"]["alertname"] == "PumpSilent")
        assert pump.node_id in alert["annotations"]["summary"]


@pytest.mark.row("O3")
def test_an_archive_that_is_gone_fires(tmp_path: Path) -> None:
    with _watched(tmp_path) as (_, prometheus):
        (tmp_path / "archive").rename(tmp_path / "elsewhere")
        eventually(lambda: prometheus.values(RULES["ArchiveUnknown"]["expr"]), within_s=60)
        eventually(lambda: prometheus.values(RULES["StandsStill"]["expr"]), within_s=60)


def test_each_alert_has_a_runbook_that_is_there() -> None:
    for name, rule in RULES.items():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        text = (DEPLOY.parent / page).read_text()
        heads = (each.lstrip("# ").lower() for each in text.splitlines() if each.startswith("#"))
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", each).replace(" ", "-") for each in heads}, name


def _rules(prometheus: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]


# What makes each alert fire: series as promtool takes them, one sample a minute from 1970 on. Timestamps of the Pump are
# milliseconds: one that stands still at 0 is as old as the test's clock.
FIRES = {
    "PumpDown": {'up{job="pumps", instance="p"}': "0x180"},
    "ArchiveBehind": {'binlog_pump_consumer_checkpoint_ts{consumer="a", instance="p"}': "0x180"},
    "NoConsumer": {'up{job="pumps", instance="p"}': "1x180"},
    "WatermarkBehind": {'binlog_pump_storage_max_commit_ts{instance="p"}': "0x180"},
    "PrewriteUnanswered": {'binlog_pump_unanswered_prewrites{instance="p"}': "1x180"},
    "LateCommit": {'binlog_pump_late_commits{instance="p"}': "1x180"},
    "OrphanCommit": {'binlog_pump_orphan_commits{instance="p"}': "1x180"},
    "PumpReadOnly": {'binlog_pump_read_only{instance="p"}': "1x180"},
    "PumpWriterFailed": {'binlog_pump_writer_failed{instance="p"}': "1x180"},
    "WindowHeld": {'pumphouse_archive_held{who="pump-1"}': "1x180"},
    "ArchiveLate": {
        'pumphouse_archive_seconds{what="end", instance="n"}': "0x3000",
        'pumphouse_archive_late_after_seconds{instance="n"}': "300x3000",
    },
    "PumpSilent": {'pumphouse_pump_silent{pump="p"}': "1x180"},
    "SnapshotFailed": {'pumphouse_archive_failed{what="snapshot"}': "1x180"},
    "DrillFailed": {"pumphouse_drill_failed": "1x180"},
    "ProofRed": {'pumphouse_proof_red{target="h:1", task="main"}': "1x180"},
    "TargetBehind": {'pumphouse_target_at_seconds{target="target", task="a"}': "-7200x180"},
    "LoadFailed": {'pumphouse_target_trouble{target="target", task="a"}': "1x180"},
    "CaptureStopped": {'pumphouse_capture_running{capture="main"}': "0x180"},
    "CaptureBehind": {'pumphouse_capture_lag_seconds{capture="main"}': "400x180"},
    "NothingRestorable": {'pumphouse_archive_seconds{what="end", instance="n"}': "1x3000"},
    "ArchiveUnknown": {'pumphouse_looked_seconds{instance="n"}': "0+60x180"},
    "StandsStill": {"pumphouse_severity": "2x180"},
    "ExporterDown": {'up{job="pumphouse", instance="n"}': "0x180"},
    "StatusStale": {"pumphouse_looked_seconds": "0x180"},
}


@pytest.mark.row("P14")
def test_each_alert_fires_on_its_trouble_and_on_no_health(tmp_path: Path) -> None:
    healthy = {
        'up{job="pumps", instance="p"}': "1x180",
        'binlog_pump_consumer_checkpoint_ts{consumer="a", instance="p"}': "0+60000x180",
        'binlog_pump_storage_max_commit_ts{instance="p"}': "0+60000x180",
        'pumphouse_target_at_seconds{target="target", task="a"}': "0+60x180",
        'pumphouse_target_trouble{target="target", task="a"}': "0x180",
        'pumphouse_capture_running{capture="main"}': "1x180",
        'pumphouse_capture_lag_seconds{capture="main"}': "1x180",
        'pumphouse_archive_seconds{what="end", instance="n"}': "0+60x3000",
        'pumphouse_archive_seconds{what="restorable_from", instance="n"}': "0x3000",
        'pumphouse_archive_late_after_seconds{instance="n"}': "300x3000",
        'pumphouse_pump_silent{pump="p"}': "0x180",
        "pumphouse_drill_failed": "0x180",
        'pumphouse_looked_seconds{instance="n"}': "0+60x180",
        "pumphouse_severity": "1x180",
        'up{job="pumphouse", instance="n"}': "1x180",
    }
    assert set(FIRES) == set(RULES)
    cases = []
    for name, trouble in FIRES.items():
        without = {"NoConsumer": "consumer", "NothingRestorable": "restorable_from", "ArchiveUnknown": "_archive_"}.get(
            name, "\0"
        )
        series = {key: value for key, value in healthy.items() if without not in key} | trouble
        cases.append(_case(series, name, fires=True))
        cases.append(_case(healthy, name, fires=False))
    for case in cases:
        expected = case.pop("fires")
        (tmp_path / "test.yaml").write_text(
            yaml.safe_dump({"rule_files": [str(DEPLOY / "alerts.yaml")], "tests": [case]})
        )
        done = subprocess.run(["promtool", "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True)
        # The case expects no alert: promtool names the one that fires.
        assert (done.returncode != 0) is expected, (case["alert_rule_test"], done.stdout + done.stderr)


def _case(series: dict[str, str], name: str, *, fires: bool) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": key, "values": value} for key, value in series.items()],
        "alert_rule_test": [
            {"eval_time": "40h" if name == "NothingRestorable" else "2h", "alertname": name, "exp_alerts": []}
        ],
        "fires": fires,
    }
