"""What keeps the batch side right: one view, one composition root, no circles, no `include` in the wheel."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.archive.view import ArchiveView
from pumphouse.errors import ConfigError
from pumphouse.loader.plan import Mode, Plan
from pumphouse.loader.work import Work, works_between
from pumphouse.model.tso import Tso
from pumphouse.settings import LoadSettings
from tests.support.madearchive import MadeSource

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "include" / "pumphouse"
ROOTS = {"pumphouse": LIBRARY, "spark_tasks": ROOT / "spark_tasks", "binlog_airflow": ROOT / "plugins/binlog_airflow"}
PUMP = {"pump_service": ROOT / "pump_service"}
# These plan, decode or carry out: what they see of the archive is handed to them.
TAKES_A_VIEW = [*sorted((LIBRARY / "loader").glob("*.py")), *sorted((LIBRARY / "restore").glob("*.py"))]
# Looks at the archive as it is at that moment.
LOOKS = {"end", "last", "chain", "listed", "windows_between", "jobs", "head"}


def calls(path: Path) -> Iterator[tuple[str, str]]:
    """(what stands before the last dot, name) of every call of a method in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield ast.unparse(node.func.value), node.func.attr


def test_what_plans_decodes_or_restores_never_looks_at_the_archives_end_itself() -> None:
    looks = {
        f"{path.name}: {owner}.{name}()"
        for path in TAKES_A_VIEW
        for owner, name in calls(path)
        if name in LOOKS and owner.split(".")[-1] == "archive"
    }
    # GC publishes min(archive, targets): it neither plans nor decodes, and a later end is as good.
    assert looks == {"confirmed.py: archive.end()"}


def test_a_run_reads_one_view() -> None:
    for name in ("load", "restore"):
        path = LIBRARY / "runs" / f"{name}.py"
        assert path.read_text().count("read_view(") == 1, path
        assert {name for owner, name in calls(path) if owner.endswith("archive")} <= {"genesis"}


def test_a_plan_beyond_what_was_seen_cannot_be_made(tmp_path: Path) -> None:
    source = MadeSource(tmp_path / "archive")
    at = source.genesis()
    end = source.cut()
    from pumphouse.archive.view import read_view

    view: ArchiveView = read_view(source.archive)
    source.cut()
    beyond = Tso(end + 1)
    with pytest.raises(ConfigError, match="this run sees the archive from"):
        list(works_between(view, at, beyond, "main", LoadSettings()))
    with pytest.raises(ConfigError, match="this run sees the archive from"):
        Work.of(view, Plan(task="main", number=1, from_ts=at, to_ts=beyond, mode=Mode.MERGE))


def test_cluster_archive_history_and_engine_are_opened_in_one_place() -> None:
    opened = {
        (path.relative_to(ROOT).as_posix(), name)
        for root in ROOTS.values()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (name := ast.unparse(node.func)) in {"open_history", "SparkEngine", "LocalEngine", "open_archive"}
    }
    assert opened == {
        ("include/pumphouse/parts.py", "open_history"),
        ("include/pumphouse/client/schema.py", "open_history"),  # an application has no settings of ours
        ("include/pumphouse/parts.py", "SparkEngine"),
        ("include/pumphouse/parts.py", "LocalEngine"),
    }


def modules(roots: dict[str, Path]) -> dict[str, Path]:
    found = {}
    for package, root in roots.items():
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of ours that a file imports, at its top or inside a function, also for types alone."""
    tree = ast.parse(path.read_text())
    # What a package offers lazily is named in its __init__ for types alone.
    for_types = {
        inner
        for node in (ast.walk(tree) if path.name == "__init__.py" else ())
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {each for each in found if each in known}


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {name: path for name, path in modules(ROOTS | PUMP).items() if "_pb2" not in name}
    graph = {name: imports(path, known) - {name} for name, path in known.items()}
    # A package's own __init__ says what lies in it; only what it imports counts.
    state: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> None:
        state[name] = 1
        stack.append(name)
        for other in sorted(graph[name]):
            if state.get(other) == 1:
                raise AssertionError(f"a circle: {' -> '.join([*stack[stack.index(other) :], other])}")
            if other not in state:
                visit(other)
        stack.pop()
        state[name] = 2

    for name in sorted(graph):
        if name not in state:
            visit(name)


def test_every_module_has_its_floor_in_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (whole,) = [each for each in contracts if each["type"] == "layers" and "containers" not in each]
    floors = [name for layer in whole["layers"] for name in layer.split(" | ")]
    assert len(floors) == len(set(floors))
    without = {
        name for name in modules(ROOTS | PUMP) if not any(f"{name}.".startswith(f"{floor}.") for floor in floors)
    }
    assert without == {"pumphouse", "spark_tasks"}  # packages whose own files say nothing


def test_the_wheel_installs_no_package_called_include(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {
        "pumphouse", "pump_service", "spark_tasks", "binlog_airflow",
    }  # fmt: skip
