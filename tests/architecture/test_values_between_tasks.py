"""What one step of a snapshot hands to the next is a typed value; JSON of it is made and read in plugins/ alone."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path

import pytest

import pumphouse
from pumphouse.archive import snapshot, window

ARCHIVE = Path(pumphouse.__path__[0]) / "archive"
# Objects of the archive are JSON by their format, and `archive verify --json` prints its report.
_DOCUMENTS = {
    "base", "copyof", "declare", "drills", "failed", "genesis", "manifest", "objects", "packs", "proofs", "range",
    "schema_parts", "verified", "verify",
}  # fmt: skip


def _speaks_json(path: Path) -> set[str]:
    """Functions of a module that make or read JSON objects, or whose like it calls."""
    tree = ast.parse(path.read_text())
    defined = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
    named = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
    return (defined | named) & {"to_dict", "from_dict"}


def test_only_what_lies_on_disk_becomes_json_in_the_archive() -> None:
    found = {path.stem for path in ARCHIVE.glob("*.py") if _speaks_json(path)}
    assert found == _DOCUMENTS


@pytest.mark.parametrize(
    "step", [snapshot.plan_window, snapshot.pull_node, snapshot.commit_window, snapshot.run_snapshot]
)
def test_a_step_of_a_snapshot_takes_and_returns_no_dicts(step: object) -> None:
    assert callable(step)
    signature = inspect.signature(step)
    shown = {name: str(each.annotation) for name, each in signature.parameters.items()}
    shown["return"] = str(signature.return_annotation)
    assert [name for name, annotation in shown.items() if "dict" in annotation or "Any" in annotation] == []


def test_the_values_of_a_window_are_frozen() -> None:
    values = [
        each for each in vars(window).values() if dataclasses.is_dataclass(each) and each.__module__ == window.__name__
    ]
    assert {"WindowPlan", "PlannedPump", "PullReport", "PublishedWindow"} <= {each.__name__ for each in values}
    assert [each.__name__ for each in values if not each.__dataclass_params__.frozen] == []
