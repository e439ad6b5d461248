"""Rows of XA transactions that are prepared, in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.capture.prepared import Prepared

pytestmark = pytest.mark.row("Q2")


def files(directory: Path) -> list[str]:
    return sorted(each.name for each in (directory / "prepared").iterdir())


def test_a_file_stays_until_all_of_it_have_ended_and_the_journal_says_so(tmp_path: Path) -> None:
    held = Prepared(tmp_path, {})
    held.add("a", "0-1-5", b"rows of a")
    held.add("b", "0-1-6", b"")
    held.add("c", "0-1-7", b"rows of c")
    assert held.take("c") == b"rows of c"
    assert held.save()
    assert not held.save()
    assert held.take("a") == b"rows of a"
    again = Prepared(tmp_path, held.places)  # killed before the end of a was decided, or behind it
    assert again.take("b") == b""
    assert again.take("b") is None
    assert files(tmp_path) == ["0-1-5"]
    again.tidy()
    assert files(tmp_path) == []


def test_one_that_is_prepared_again_has_its_new_rows(tmp_path: Path) -> None:
    held = Prepared(tmp_path, {})
    held.add("a", "0-1-5", b"old")
    held.save()
    held.add("a", "0-1-8", b"new")
    held.save()
    assert files(tmp_path) == ["0-1-5", "0-1-8"]
    held.tidy()
    assert Prepared(tmp_path, held.places).take("a") == b"new"
    assert files(tmp_path) == ["0-1-8"]


def test_what_the_journal_does_not_name_is_removed(tmp_path: Path) -> None:
    held = Prepared(tmp_path, {})
    held.add("a", "0-1-5", b"rows")
    held.save()
    assert Prepared(tmp_path, {}).take("a") is None
    assert files(tmp_path) == []


@pytest.mark.parametrize("broken", [b"rowS", b"row", None])
def test_damaged_rows_are_none(tmp_path: Path, broken: bytes | None) -> None:
    held = Prepared(tmp_path, {})
    held.add("a", "0-1-5", b"rows")
    held.save()
    file = tmp_path / "prepared" / "0-1-5"
    file.unlink() if broken is None else file.write_bytes(broken)
    assert held.take("a") is None
