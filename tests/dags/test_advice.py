"""What errors advise, as a task's log says it: DAGs and connections that there are, fields and values of their forms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pumphouse import advice
from pumphouse.advice import RESTORE_TARGET, SOURCE, TARGET, THIS, Part, Rule, Section
from tests.architecture.test_advice import ABOUT, EACH

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = ROOT / "plugins" / "binlog_airflow" / "operators.py"
_OPERATOR = re.compile(r"class PumphouseRestoreOperator.*?super\(\)", re.DOTALL)
_WORDS = """
import json
from binlog_airflow.advice import in_airflow, naming
from pumphouse.advice import of_json
from pumphouse.errors import LoadError

def said(conn_id, hint):
    try:
        with naming(conn_id):
            raise LoadError("no", hint=tuple(hint))
    except LoadError as error:
        return [in_airflow(part) for part in error.advice]

print(json.dumps([said(conn_id, of_json(hint)) for conn_id, hint in json.loads({asked!r})]))
"""
_FORMS = """
import json
from airflow.dag_processing.dagbag import DagBag
bag = DagBag({dags!r})
print(json.dumps({{id: {{param.schema["title"]: param.schema for param in map(dag.params.get_param, dag.params)}}
                  for id, dag in bag.dags.items()}}))
"""
# `eu` has a section; `pumphouse_restore` and `new` are connections that Airflow alone knows.
_SETTINGS = """
[targets.eu]
host = "10.0.0.9"
user = "me"
[airflow]
load_targets = ["pumphouse_downstream", "eu", "new"]
restore_targets = ["pumphouse_restore", "eu"]
"""


class Airflow:
    """What is said there of the target of a connection."""

    def __init__(self, run: Callable[..., Any], config: Path) -> None:
        self._run = run
        self.config = str(config)

    def said(self, conn_id: str, *hint: Part) -> str:
        """One hint."""
        return "".join(self.each(conn_id, *hint))

    def each(self, conn_id: str, *hint: Part) -> list[str]:
        """Its parts."""
        asked = json.dumps([(conn_id, advice.to_json(hint))])
        found: list[list[str]] = self._run(_WORDS.format(asked=asked), PUMPHOUSE_CONFIG=self.config)
        return found[0]

    def forms(self) -> dict[str, dict[str, Any]]:
        """DAG -> title of a field -> its schema."""
        found: dict[str, dict[str, Any]] = self._run(
            _FORMS.format(dags=str(ROOT / "dags")), PUMPHOUSE_CONFIG=self.config
        )
        return found


@pytest.fixture
def airflow(in_airflow: Callable[..., Any], tmp_path: Path) -> Airflow:
    config = tmp_path / "pumphouse.toml"
    config.write_text(_SETTINGS)
    return Airflow(in_airflow, config)


@pytest.mark.row("O1")
def test_the_forms_take_what_a_log_says(airflow: Airflow) -> None:
    forms, seen = airflow.forms(), set()
    for conn_id in ("pumphouse_downstream", "eu", "pumphouse_restore", "new", "pumphouse_source"):
        for said in airflow.each(conn_id, *EACH):
            for dag, fields in re.findall(r"the DAG (\w+)(?: \((.*?)\))?", said):
                seen.add(dag)
                for field in filter(None, fields.split("; ")):
                    title, _, value = field.partition(": ")
                    assert title in forms[dag], said
                    assert value in forms[dag][title].get("enum", [value]), said
    assert seen == {"binlog_snapshot", "binlog_schema", "binlog_dump", "binlog_load", "binlog_restore"}


@pytest.mark.row("R4")
def test_a_taken_name_names_the_field_of_the_form_and_the_argument_of_the_operator(airflow: Airflow) -> None:
    titles, arguments = airflow.forms()["binlog_restore"], _OPERATOR.search(OPERATORS.read_text())
    assert arguments is not None
    for option in (advice.NAME_THERE, advice.DATABASE_THERE):
        found = re.fullmatch(r'"(.+)" \(of the operator: `(\w+)`\)', airflow.said("eu", option))
        assert found is not None
        assert found[1] in titles
        assert re.search(rf"^        {found[2]}: str", arguments[0], re.MULTILINE)
    assert advice.worded((advice.NAME_THERE,)) == "--as DATABASE.TABLE"


def test_the_ordinary_target(airflow: Airflow) -> None:
    said = airflow.said("pumphouse_downstream", *ABOUT)
    # Its form does not offer that one.
    assert said.startswith(
        "`pumphouse load --resync a.b`; `pumphouse restore --into target --to …`; "
        "check [target] or the connection pumphouse_downstream; "
    )
    assert "[[load.rules]]" in said
    assert airflow.said("pumphouse_downstream", advice.load()) == "the DAG binlog_load"


def test_a_target_with_a_section(airflow: Airflow) -> None:
    said = airflow.said("eu", *ABOUT)
    assert said.startswith(
        "`pumphouse load --target eu --resync a.b`; the DAG binlog_restore (Target: eu; Moment: …); "
        "check [targets.eu] or the connection eu; "
    )
    assert "[[targets.eu.rules]]" in said
    assert airflow.said("eu", Section(TARGET)) == "[target] or the connection pumphouse_downstream"


def test_a_connection_without_a_section_gets_no_rules_and_no_section_of_its_own(airflow: Airflow) -> None:
    said = airflow.said("pumphouse_restore", *ABOUT)
    assert said.startswith(
        "`pumphouse load --resync a.b`, with the server of the connection pumphouse_restore as [target]; "
        "the DAG binlog_restore (Target: pumphouse_restore; Moment: …); check the connection pumphouse_restore; "
    )
    assert "[[load.rules]]" in said
    assert airflow.said("pumphouse_restore", Section(RESTORE_TARGET)) == "the connection pumphouse_restore"
    assert airflow.said("new", advice.load()) == "the DAG binlog_load"
    assert airflow.said("new", advice.restore(into=THIS)) == (
        "`pumphouse restore --into target --to …`, with the server of the connection new as [target]"
    )


def test_what_is_of_no_target(airflow: Airflow) -> None:
    parts = (advice.dump("a.b", "c.d"), advice.restore("latest"), advice.restore(table="…", dry_run=True))
    assert airflow.each("eu", *parts) == [
        "the DAG binlog_dump (Tables: a.b and c.d)",
        "the DAG binlog_restore (Moment: latest)",
        "the DAG binlog_restore (Tables: …; Moment: …)",
    ]
    assert airflow.said("pumphouse_source", Section(SOURCE)) == "[source] or the connection pumphouse_source"
    assert "[[dump.without]]" in airflow.said("eu", Rule("", table="a.b"))


_TASKS = """
import json
from binlog_airflow import tasks
from binlog_airflow.advice import in_airflow
from binlog_airflow.hooks import DownstreamHook
from binlog_airflow.installation import Installation
from pumphouse.advice import THIS, Section, restore
from pumphouse.errors import LoadError
from pumphouse.runs import drill, load

def fails(*args, **kwargs):
    raise LoadError("no", hint=("check ", Section(), "; ", restore(into=THIS)))

def said(conn_id, run):
    try:
        run()
    except LoadError as error:
        return error.said(in_airflow)

form = tasks.RestoreForm(
    to="latest", target={conn_id!r}, tables=(), called="", database="", keys=(), key_from=None, key_to=None, base="",
    verify=False, accept_losses=False,
)
for each in (drill, "clean"), (drill, "run"), (load, "run"), (tasks, "_restore_job"):
    setattr(*each, fails)
tasks.require_approved = tasks._shown = Installation.of_drill = lambda *args: (None, "target")
runs = [
    lambda: tasks.plan_restore(form),
    lambda: tasks.restore_target({{"server": ""}}, form, "r", "d"),
    lambda: tasks.verify_restore({{}}, form),
    lambda: tasks.clean_drill({conn_id!r}, "r"),
    lambda: tasks.drill_server({conn_id!r}, None, 1, "r", whole=False),
]
found = [said({conn_id!r}, run) for run in runs]
Installation.settings = fails
found.append(said({conn_id!r}, lambda: tasks.apply_interval(None, {conn_id!r}, None, "r")))
print(json.dumps([*found, DownstreamHook({conn_id!r}).test_connection()[1]]))
"""


@pytest.mark.parametrize(
    ("conn_id", "check"),
    [("eu", "[targets.eu] or the connection eu"), ("pumphouse_restore", "the connection pumphouse_restore")],
)
def test_every_task_that_writes_to_a_server_says_which_one(
    in_airflow: Callable[..., Any], airflow: Airflow, conn_id: str, check: str
) -> None:
    connection = {f"AIRFLOW_CONN_{conn_id.upper()}": "pumphouse-downstream://me:x@127.0.0.1:1/"}
    script = _TASKS.format(conn_id=conn_id)
    *said, button = in_airflow(script, PUMPHOUSE_CONFIG=airflow.config, **connection)
    assert set(said) == {f"no (check {check}; the DAG binlog_restore (Target: {conn_id}; Moment: …))"}
    assert button.endswith(f"(is it running? check host, port or unix_socket in {check})")
