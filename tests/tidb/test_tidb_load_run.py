"""What tests/integration/test_load_run.py says of loads and restores on a MariaDB holds on a real TiDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.settings import TargetSettings
from tests.integration.test_load_run import *  # noqa: F403
from tests.support.loading import settings, source, target  # noqa: F401 - fixtures
from tests.support.tidb import MISSING, UnistoreServer

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"), pytest.mark.row("L6")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with UnistoreServer(tmp_path_factory.mktemp("tidb")) as tidb:
        yield tidb.settings
