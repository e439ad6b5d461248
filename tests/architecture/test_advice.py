"""What errors advise exists: every kind has its words at both doors, and every command line is one that click takes."""

from __future__ import annotations

import ast
import dataclasses
import pickle
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from pumphouse import advice
from pumphouse.advice import (
    ANY,
    Accept,
    Advice,
    CompareTable,
    DeclareLost,
    Do,
    Dump,
    ImportSchema,
    Load,
    Restore,
    Rule,
    Section,
    Settle,
    ShowPump,
    ShowSchema,
    Unregister,
    command_line,
)
from pumphouse.errors import LoadError, naming
from tests.architecture.test_docs import _parse

ROOT = Path(__file__).resolve().parents[2]
# Each field of each kind has a value in one of them.
EACH: tuple[Advice, ...] = (
    *Do,
    Dump(),
    Dump(("shop.orders", "shop.two words")),
    ImportSchema(),
    ImportSchema(drop="mysql"),
    ShowSchema(),
    ShowSchema(at="470592258683437056"),
    Load(),
    Load(table="shop.orders", target="eu"),
    Load(equal_at="now"),
    Restore(),
    Restore(to="latest", into="target", dry_run=True),
    Restore(table="shop.orders", objects="FILE"),
    CompareTable("shop.orders"),
    DeclareLost("pump-1"),
    Accept("pump-1", 1, 2),
    Settle("1"),
    Settle("1", rolled_back=True),
    ShowPump("pump-1"),
    Unregister("archive"),
    Unregister(),
    Rule("park", table="shop.orders", target="eu"),
    Rule("skip", ddl=7),
    Rule("route", database="shop", to="shop2"),
    Section(),
    Section("restore_target"),
)


def test_every_kind_and_every_field_is_among_those_that_are_tried() -> None:
    assert {type(each) for each in EACH} == set(get_args(Advice))
    for kind in set(get_args(Advice)) - {Do}:
        for field in dataclasses.fields(kind):
            tried = {getattr(each, field.name) for each in EACH if type(each) is kind}
            assert tried - {field.default}, f"{kind.__name__}.{field.name}"


@pytest.mark.row("O3")
@pytest.mark.parametrize("each", EACH, ids=str)
def test_the_command_line_takes_what_it_is_told_to_type(each: Advice) -> None:
    said = command_line(each)
    if isinstance(each, Rule | Section):
        assert "pumphouse " not in said
        return
    assert re.fullmatch("`pumphouse [^`]+`", said)
    _parse(shlex.split(said.strip("`").replace(ANY, "x")))


def test_an_option_that_there_is_not_would_be_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        _parse(["pumphouse", "load", "--no-such-option"])


@pytest.mark.parametrize("each", EACH, ids=str)
def test_advice_arrives_whole_in_another_process(each: Advice) -> None:
    hint = ("do this: ", each)
    assert advice.of_json(advice.to_json(hint)) == hint
    assert pickle.loads(pickle.dumps(LoadError("no", hint=hint))).advice == hint


def test_an_error_advises_for_the_target_that_it_is_of() -> None:
    hint = (Load(table="a.b"), "; ", Restore(into="target"), "; check ", Section(), "; ", Rule("park", table="a.b"))
    with pytest.raises(LoadError) as caught, naming("eu"):
        raise LoadError("no", hint=hint)
    said = caught.value.hint
    assert said.startswith(
        "`pumphouse load --target eu --resync a.b`; `pumphouse restore --into eu --to …`; check [targets.eu]; "
    )
    assert "\n[[targets.eu.rules]]\n" in said


def _texts(path: Path) -> Iterator[ast.Constant]:
    """Texts of a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node


@pytest.mark.row("O3")
def test_no_room_below_the_commands_writes_a_command_line_of_its_own() -> None:
    """It would name a command that nobody parses, and Airflow would say what it says."""
    own = ("cli.py", "settings.py", "commands/", "status/")
    found = []
    for path in sorted((ROOT / "include" / "pumphouse").rglob("*.py")):
        name = str(path.relative_to(ROOT / "include" / "pumphouse"))
        if name.startswith(own):
            continue
        found += [f"{name}:{each.lineno}" for each in _texts(path) if re.search(r"`pumphouse [a-z]", each.value)]
    assert [each for each in found if not each.startswith("advice.py:")] == []


def test_every_hint_with_places_has_as_many_parts() -> None:
    """Nobody would see it before the error is raised."""
    wrong, seen = [], 0
    for path in sorted((ROOT / "include" / "pumphouse").rglob("*.py")):
        tree = ast.parse(path.read_text())
        texts = {
            node.targets[0].id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "saying":
                first, *parts = node.args
                text = texts[first.id] if isinstance(first, ast.Name) else ast.literal_eval(first)
                seen += 1
                wrong += [f"{path.name}:{node.lineno}"] if text.count("{}") != len(parts) else []
    assert seen
    assert wrong == []


def test_no_hint_is_patched_as_text() -> None:
    wrong = [
        f"{path.name}: {line}"
        for folder in ("include", "plugins", "spark_tasks", "dags", "pump_service")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in re.findall(r".*hint\.replace\(.*|.*\.hint \+?= .*", path.read_text())
    ]
    assert wrong == []
