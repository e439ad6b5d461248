"""The lists of mutants fit the code: `make mutants` says whether the tests see each of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support import mutants
from tests.support.rows import ROWS

ALL = mutants.read()


@pytest.mark.parametrize("mutant", ALL, ids=[f"{each.row} {each.broken}" for each in ALL])
def test_it_applies_to_the_code_as_it_is(mutant: mutants.Mutant) -> None:
    assert mutant.problem() == ""
    assert mutants.missing_tests([mutant]) == []
    assert mutant.row in ROWS


def test_a_text_that_is_not_there_once_is_named_with_the_nearest_line() -> None:
    mutant = mutants.Mutant(
        row="P1",
        broken="-",
        file="pump_service/node/lifecycle.py",
        text="self.state = the_following",
        becomes="",
        tests=(),
    )
    assert "there 0 times; near line" in mutant.problem()
    assert "self.state = following" in mutant.problem()


def test_there_are_enough_spread_over_all_rooms() -> None:
    assert len({each.broken for each in ALL}) == len(ALL) >= 60
    assert {each.row[0] for each in ALL} == set("WPCASLROQ")


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_every_mutant_is_caught(record_property: Callable[[str, object], None]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants"], cwd=mutants.ROOT, capture_output=True, text=True, check=False
    )
    record_property("rounds", len(ALL))
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(rf"^{len(ALL)} of {len(ALL)} caught$", done.stdout, re.MULTILINE)
