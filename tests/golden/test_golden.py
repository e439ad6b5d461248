"""Everything that the golden files say, one case a vector or step (README.md)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.golden.case import Case, NotCovered
from tests.support.golden.collect import collect

DIRECTORY = Path(os.environ.get("GOLDEN_DIR") or Path(__file__).parent)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.id, marks=[pytest.mark.row(*case.rows)] if case.rows else [])
        for case in collect(DIRECTORY)
    ],
)
def test_golden(case: Case, tmp_path: Path) -> None:
    """The product does what the file says."""
    if case.run is None:
        pytest.skip(case.skip)  # outputs that this product does not have: the reason says which
    try:
        case.run(tmp_path)
    except NotCovered as missing:
        pytest.fail(f"{missing} is not there")
