"""What tests/integration/test_dropped_partitions.py says of a DROP PARTITION on a MariaDB holds on a real TiDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.settings import Settings, TargetSettings
from tests.integration.test_dropped_partitions import *  # noqa: F403
from tests.support.loading import settings, source, target  # noqa: F401 - fixtures
from tests.support.tidb import MISSING, UnistoreServer

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"), pytest.mark.row("L6")]


@pytest.fixture
def moded(settings: Settings) -> Settings:  # noqa: F811
    """A TiDB takes no replay."""
    return settings


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with UnistoreServer(tmp_path_factory.mktemp("tidb")) as tidb:
        yield tidb.settings
