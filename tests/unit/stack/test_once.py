"""What is made once is made once, whole, and again when what it depends on has changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.stack import once
from tests.stack.once import copy_once_made, stamp
from tests.stack.supervisor import StackError


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "_MADE", tmp_path / "made")


class Made:
    """Counts how often it is made."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, at: Path) -> None:
        self.times += 1
        (at / "mysql").mkdir(parents=True)
        (at / "mysql" / "user").write_text(f"{self.times}")


def test_it_is_made_by_the_first_and_each_has_a_copy_of_its_own(tmp_path: Path) -> None:
    made = Made()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: copy_once_made("db", tmp_path / f"{n}", made, of=(1,)), range(8)))
    assert made.times == 1
    (tmp_path / "0" / "mysql" / "user").write_text("changed")
    assert [(tmp_path / f"{n}" / "mysql" / "user").read_text() for n in range(1, 8)] == ["1"] * 7


def test_another_version_of_a_program_makes_another(tmp_path: Path) -> None:
    made, program = Made(), tmp_path / "mariadbd"
    program.write_text("1")
    copy_once_made("db", tmp_path / "a", made, of=(stamp(str(program)),))
    program.write_text("1.1")
    copy_once_made("db", tmp_path / "b", made, of=(stamp(str(program)),))
    assert (tmp_path / "b" / "mysql" / "user").read_text() == "2"


def test_what_failed_half_way_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    def fails(at: Path) -> None:
        at.mkdir()
        raise StackError("no room")

    with pytest.raises(StackError, match="no room"):
        copy_once_made("db", tmp_path / "a", fails, of=())
    assert not (tmp_path / "a").exists()
    copy_once_made("db", tmp_path / "a", Made(), of=())
    assert (tmp_path / "a" / "mysql" / "user").exists()


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="cannot be copied"):
        copy_once_made("db", tmp_path / "in" / "nowhere", Made(), of=())
    assert not (tmp_path / "in").exists()
