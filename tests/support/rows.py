"""`make rows`: requirement row -> tests that show it -> the rooms that they import, read from the tests' source."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_ROOMS = re.compile(r"^(?:from|import) ((?:pumphouse|pump_service|spark_tasks|binlog_airflow)(?:\.\w+)?)", re.MULTILINE)
# Every row of the product's requirements (docs/requirements.md).
ROWS = (
    [f"W{n}" for n in range(1, 9)]
    + [f"P{n}" for n in range(1, 18)]
    + [f"C{n}" for n in range(1, 6)]
    + [f"A{n}" for n in range(1, 8)]
    + [f"S{n}" for n in range(1, 4)]
    + [f"L{n}" for n in range(1, 9)]
    + [f"R{n}" for n in range(1, 9)]
    + [f"O{n}" for n in range(1, 11)]
    + [f"Q{n}" for n in range(1, 7)]
)


def _marks(node: ast.AST) -> list[str]:
    found = []
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "row":
            found += [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return found


def collect() -> dict[str, dict[str, list[str]]]:
    """Row -> {"tests": […], "rooms": […]}."""
    tests: dict[str, list[str]] = defaultdict(list)
    rooms: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text()
        tree = ast.parse(source)
        module_marks = [
            row
            for node in tree.body
            if isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
            for row in _marks(node)
        ]
        used = set(_ROOMS.findall(source))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                own = [row for decorator in node.decorator_list for row in _marks(decorator)]
                for row in {*own, *module_marks}:
                    tests[row].append(f"{path.relative_to(ROOT)}::{node.name}")
                    rooms[row] |= used
    return {row: {"tests": tests[row], "rooms": sorted(rooms[row])} for row in tests}


def main() -> None:
    found = collect()
    if "--json" in sys.argv:
        print(json.dumps(found, indent=1, sort_keys=True))
        return
    for row in ROWS:
        entry = found.get(row, {"tests": [], "rooms": []})
        print(f"{row:4} {len(entry['tests']):3} tests  {', '.join(entry['rooms'])}")
        for test in entry["tests"]:
            print(f"       {test}")
    unknown = sorted(set(found) - set(ROWS))
    if unknown:
        print(f"rows that no requirement has: {', '.join(unknown)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
