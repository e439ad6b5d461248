"""The order in which files of tests are dealt out names what is there."""

from __future__ import annotations

from pathlib import Path

from tests.support.order import LONGEST, TIERS, place

TESTS = Path(__file__).resolve().parents[1]


def test_long_files_are_there_and_come_first() -> None:
    assert [name for name in LONGEST if not (TESTS.parent / name).is_file()] == []
    assert [tier for tier in TIERS if not (TESTS / tier).is_dir()] == []
    others = [f"tests/{tier}/test_other.py::test_it" for tier in TIERS]
    assert sorted([*reversed(others), *(f"{name}::test_it" for name in reversed(LONGEST))], key=place) == [
        *(f"{name}::test_it" for name in LONGEST),
        *others,
    ]
