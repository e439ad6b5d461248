"""The compose file on a real dockerd (row O5): what `make test-compose` does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.compose.__main__ import ROOT

# Containers are an optional tier.
pytestmark = pytest.mark.skipif(
    not os.environ.get("DOCKER_HOST"), reason="no dockerd is named: set DOCKER_HOST, or run `make test-compose`"
)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.row("O5")
def test_the_stack_comes_up_loads_frees_and_restores_over_kills() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.compose"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
