"""Promises about the code as a whole: errors travel, rows exist, generated code is fresh, settings are described."""

from __future__ import annotations

import ast
import importlib
import pickle
import pkgutil
from pathlib import Path

import pytest
from pydantic import BaseModel

import pumphouse
from pumphouse import errors
from pumphouse.settings import Settings
from tests.support import rows

ROOT = Path(__file__).resolve().parents[2]


def _all_errors(cls: type[errors.BinlogError] = errors.BinlogError) -> list[type[errors.BinlogError]]:
    found = [cls]
    for sub in cls.__subclasses__():
        found += _all_errors(sub)
    return found


@pytest.mark.parametrize("cls", _all_errors(), ids=lambda c: c.__name__)
def test_every_error_survives_pickling_with_its_facts(cls: type[errors.BinlogError]) -> None:
    error = cls("what happened", hint="what to type", path="/x", start_ts=5)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == "what happened (what to type)"
    assert (again.path, again.start_ts) == ("/x", 5)


def test_the_error_tree_in_the_docstring_names_every_class_and_marks_the_retryable() -> None:
    text = errors.__doc__ or ""
    for cls in _all_errors():
        if cls.__module__ != errors.__name__:
            continue  # a room's own, which tells callers nothing that its base does not
        assert cls.__name__ in text, f"{cls.__name__} is missing in the tree"
        starred = f"{cls.__name__}*" in text
        assert starred == ("retryable" in vars(cls) and cls.retryable), cls.__name__


def test_every_module_of_the_library_imports_alone_and_has_a_docstring() -> None:
    for module in pkgutil.walk_packages(pumphouse.__path__, "pumphouse."):
        if "_pb2" in module.name or module.name == "pumphouse.__main__":
            continue
        loaded = importlib.import_module(module.name)
        if not module.ispkg:
            assert loaded.__doc__, f"{module.name} does not say what it owns"


def _sections(model: type[BaseModel]) -> list[tuple[str, str | None]]:
    return [
        (f"{name}.{field}", info.description)
        for name, part in model.model_fields.items()
        if isinstance(part.annotation, type) and issubclass(part.annotation, BaseModel)
        for field, info in part.annotation.model_fields.items()
    ]


def test_every_setting_has_a_description() -> None:
    assert [name for name, text in _sections(Settings) if not text] == []


def test_tests_name_rows_that_exist() -> None:
    assert sorted(set(rows.collect()) - set(rows.ROWS)) == []


@pytest.mark.row("O1")
def test_no_log_line_has_a_fact_that_ends_a_task_of_airflow() -> None:
    """Its supervisor hands a line's facts on as arguments beside these, and dies of one of the same name."""
    taken, found = {"target", "level", "msg", "event"}, []
    for path in (
        each for folder in ("include", "plugins", "spark_tasks", "dags") for each in (ROOT / folder).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log."):
                found += [f"{path.relative_to(ROOT)}:{each.lineno}" for each in node.keywords if each.arg in taken]
    assert found == []
