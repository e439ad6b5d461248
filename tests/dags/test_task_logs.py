"""What tasks leave for people: bounded reports, errors as one sentence, a silent Pump by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pumphouse.model import tso
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.registry.file import FileCluster

_BOUNDED = """
import json
from binlog_airflow import xcom
print(json.dumps(xcom.bounded({
    "to": 470659592355840000, "cluster_id": 7301234567890123456, "rows": 12, "ready": True, "seconds": 1.5, "none": None,
    "long": list(range(1000)), "text": "x" * 10_000, "tables": {str(n): "left out" for n in range(1000)},
})))
"""
_LINES = """
import json, structlog
from binlog_airflow import lines, retry
kept = []
def keep(_, __, event):
    kept.append(dict(event))
    raise structlog.DropEvent
structlog.configure(processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(20),
    cache_logger_on_first_use=True)
library = structlog.get_logger("a library")
library.warning("before")
kept.clear()
@retry.one_sentence
def task():
    library.warning("done", to_ts=470659592355840000, id=7301234567890123456, held=True, open=False, none=None, rows=7,
        deep=[{"end": 470659592355840000}])
    told = lines.Told(every_s=60)
    for done in range(100):
        told("apply", done, 100)
for _ in range(2):
    task()
print(json.dumps(kept))
"""
_APPROVAL = """
import json
from types import SimpleNamespace
from airflow.providers.standard.operators import hitl
from airflow.sdk.exceptions import TaskAwaitingInput
from binlog_airflow import approval, retry, tasks
from pumphouse.errors import BinlogError
plan = {"plan": {"to": "5"}, "target": "root@db", "question": "q", "shown": "s", "server": "db:1", "loses": ""}
kept = {"plan": {"return_value": plan}, "approve": {}}
def push(name, value):
    kept["approve"][name] = value
def pull(task_ids, key="return_value"):
    return kept[task_ids].get(key)
ti = SimpleNamespace(xcom_push=push, xcom_pull=pull, id="i")
context = {"ti": ti, "task_instance": ti, "params": {"dry_run": False}}
hitl.upsert_hitl_detail = lambda **_: None
def outcome(call):
    try:
        return call()
    except retry.TaskEnded as ended:
        return str(ended.error)
    except TaskAwaitingInput:
        return "asked"
    except BinlogError as error:
        return str(error)
    except hitl.HITLTriggerEventError as error:
        return type(error).__name__
asks = lambda: outcome(lambda: approval.RestoreApproval(task_id="approve").execute(context))
def answers(event):
    done = approval.RestoreApproval(task_id="approve").execute_complete
    return outcome(lambda: done(context, event) and "approved")
from datetime import datetime
yes = {"chosen_options": ["Approve"], "params_input": {}, "responded_by_user": None, "responded_at": datetime.now()}
def restore():
    yes = pull("approve", approval.APPROVED)
    tasks.require_answered(pull("plan"), yes)
    tasks.require_approved(pull("plan"), yes["plan"])
restores = lambda: outcome(restore)
found = [restores(), asks(), answers({"error": "x", "error_type": "unknown"}), answers(yes), restores() or "restored"]
kept["plan"]["return_value"] = plan | {"loses": "shop (1 table, about 5 rows)"}
found += [answers(yes), restores()]
kept["plan"]["return_value"] = {"plan": {"to": "5"}, "target": "root@db"}
found += [asks(), answers(yes), restores()]
print(json.dumps(found))
"""
_FORM = """
import json
from types import SimpleNamespace
from binlog_airflow import tasks
from pumphouse.errors import UsageError
form = dict.fromkeys(tasks._FIELDS) | {"to": "latest", "target": "pumphouse_restore"}
def said(call):
    try:
        return call().to
    except UsageError as error:
        return str(error)
def of(params, conf):
    return tasks.RestoreForm.of(tasks.form_of({"params": params, "dag_run": SimpleNamespace(conf=conf)}))
print(json.dumps([said(lambda: of(*each)) for each in (
    (form, {"to": "latest"}), (form, None), (form, {"to": "yesterday"}), (form | {"moment": "x"}, {"moment": "x"}),
)]))
"""
_SENTENCE = """
import json, sys
from binlog_airflow import retry
from pumphouse.errors import GapError, WindowHeld
said = []
retry.log.error = lambda event, **facts: said.append([event, facts])
retry.log.debug = lambda *_, **__: None
def task(error):
    @retry.one_sentence
    def run():
        raise error
    try:
        run()
    except SystemExit as ended:
        return retry.BinlogRetryPolicy().evaluate(ended, 1, 3).action.value, ended.__context__ is None or ended.__suppress_context__
    except ValueError:
        return "stack"
print(json.dumps([task(GapError("a gap", hint="type this")), task(WindowHeld("held")), task(ValueError("x")), said]))
"""
_SILENCE = """
import json, time
from binlog_airflow import silence
from pumphouse.parts import Parts
from pumphouse.settings import Settings
said = []
silence.log.warning = lambda event, **facts: said.append(event)
settings = Settings.read(overrides={"cluster.url": %r})
for node_id in ("pump-1", "pump-2"):
    with silence.naming_silence(lambda: Parts(settings), node_id, every_s=0.2):
        time.sleep(0.7)
print(json.dumps(sorted(set(said))))
"""


@pytest.mark.row("O1")
def test_reports_are_bounded_and_hold_no_number_that_a_browser_rounds(in_airflow: Callable[..., Any]) -> None:
    found = in_airflow(_BOUNDED)
    assert (found["to"], found["to_time"]) == ("470659592355840000", "2026-11-23 08:51:00.000Z")
    assert found["cluster_id"] == "7301234567890123456"
    assert "cluster_id_time" not in found
    assert (found["rows"], found["ready"], found["seconds"], found["none"]) == (12, True, 1.5, None)
    assert len(found["long"]) == 51
    assert found["long"][-1] == "and 950 more"
    assert len(found["text"]) == 501
    assert len(found["tables"]) == 51


@pytest.mark.row("O1")
def test_every_line_of_a_task_is_one_that_a_browser_shows_as_it_is(in_airflow: Callable[..., Any]) -> None:
    at = "470659592355840000 (2026-11-23 08:51:00.000Z)"
    said = {
        "event": "done",
        "to_ts": at,
        "id": "7301234567890123456",
        "held": "yes",
        "open": "no",
        "rows": 7,
        "deep": [{"end": at}],
    }
    assert in_airflow(_LINES) == [said, {"event": "apply: 0 of 100"}] * 2


@pytest.mark.row("R2")
def test_a_yes_is_for_the_plan_that_was_shown_and_for_no_other(in_airflow: Callable[..., Any]) -> None:
    unasked, asked, broken, answered, restored, *changed, again, old, of_old = in_airflow(_APPROVAL)
    assert (asked, broken, answered, restored) == ("asked", "HITLTriggerEventError", "approved", "restored")
    assert unasked.startswith("nobody approved the plan: this task changes nothing on root@db")
    for said in changed:
        assert said.startswith("the plan changed since it was shown for approval")
    for said in (again, old, of_old):
        assert "of another release: it has no loses, question, server, shown" in said
        assert "clear the whole run" in said


@pytest.mark.row("R2", "O1")
def test_a_field_that_is_none_and_a_conf_that_airflow_passes_over_are_refused(in_airflow: Callable[..., Any]) -> None:
    as_typed, without, ignored, unknown = in_airflow(_FORM)
    assert (as_typed, without) == ("latest", "latest")
    assert ignored.startswith("Airflow passed over this run's conf: to")
    assert "dag_run_conf_overrides_params" in ignored
    assert unknown.startswith("binlog_restore has no field moment")
    assert "the moment is the field `to`" in unknown


@pytest.mark.row("O1")
def test_an_error_of_ours_is_one_sentence_and_still_decides_whether_to_retry(in_airflow: Callable[..., Any]) -> None:
    gap, held, foreign, said = in_airflow(_SENTENCE)
    assert gap == ["fail", True]
    assert held == ["retry", True]
    assert foreign == "stack"
    assert [facts["kind"] for _, facts in said] == ["GapError", "WindowHeld"]
    assert "type this" in said[0][0]


@pytest.mark.row("O1", "A1")
def test_a_pump_without_a_heartbeat_is_named_while_it_is_pulled(tmp_path: Path, in_airflow: Callable[..., Any]) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    now = cluster.tso()
    for node_id, age_ms in (("pump-1", -600_000), ("pump-2", 12_000)):
        status = NodeStatus(
            node_id=node_id,
            host=f"{node_id}:8250",
            state=NodeState.ONLINE,
            update_ts=tso.compose(tso.physical_ms(now) - age_ms),
        )
        cluster.update_node(NodeKind.PUMP, node_id, lambda _, status=status: status)
    (said,) = in_airflow(_SILENCE % cluster.url)
    assert said.startswith("Pump pump-2 at pump-2:8250 is silent")
