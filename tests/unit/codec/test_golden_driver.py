"""The driver of the golden vectors fails where it must."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden.case import Case
from tests.support.golden.collect import collect

GOLDEN = Path(__file__).parents[2] / "golden"


def of(tmp_path: Path, name: str, content: Any) -> list[Case]:
    (tmp_path / name).write_text(json.dumps(content))
    return collect(tmp_path)


def run(cases: list[Case], tmp_path: Path) -> list[str]:
    """Ids of those that fail."""
    failed = []
    for case in cases:
        if case.run is not None:
            try:
                case.run(tmp_path)
            except AssertionError:
                failed.append(case.id)
    return failed


def test_a_file_of_unknown_kind_and_an_empty_directory_fail(tmp_path: Path) -> None:
    assert run(collect(tmp_path), tmp_path) == ["none"]
    assert run(of(tmp_path, "new.json", {"vectors": [{"other": 1}]}), tmp_path) == ["new"]


@pytest.mark.parametrize(
    ("file", "path", "value"),
    [
        ("decimals.json", ["vectors", 0, "decoded_text"], "2"),
        ("json_binary.json", ["vectors", 0, "value_text"], "{}"),
        ("columns.json", ["vectors", 0, "loader_value_utc", "v"], "5"),
        ("missing_column_defaults.json", ["vectors", 2, "loader_value_process_tz_utc", "v_hex"], "36"),
        ("protobuf.json", ["vectors", 0, "hex"], "08021093031894033800" + "4000"),
        ("misc.json", ["row_keys", 0, "handle"], "2"),
        ("scenario_basic.json", ["steps", 2, "expect", "dmls", 0, "values", "id", "v"], "77"),
    ],
)
def test_a_changed_value_fails_its_case_and_no_other(tmp_path: Path, file: str, path: list[Any], value: str) -> None:
    content = json.loads((GOLDEN / file).read_text())
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    assert inner[path[-1]] != value
    inner[path[-1]] = value
    cases = [case for case in of(tmp_path, "any_name.json", content) if "store" not in case.id]
    assert len(run(cases, tmp_path)) == 1


def test_a_commit_whose_prewrite_is_left_out_is_expected_as_an_orphan(tmp_path: Path) -> None:
    content = json.loads((GOLDEN / "scenario_basic.json").read_text())
    content["arrival_order"] = [each for each in content["arrival_order"] if each != content["arrival_order"][0]]
    store = [case for case in of(tmp_path, "any_name.json", content) if case.id.endswith("store")]
    assert len(store) == 1
    assert run(store, tmp_path) == []
