"""What tests/integration/test_load_run.py says of loads and restores on a MariaDB holds on a real TiDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.settings import TargetSettings
from tests.integration.test_load_run import *  # noqa: F403
from tests.support.loading import settings, source, target  # noqa: F401 - fixtures
from tests.support.tidb import MISSING, UnistoreServer

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"), pytest.mark.row("L6")]
# A TiDB does not count the rows that a table's readers and writers touch.
del test_a_window_that_is_loaded_again_touches_no_row  # noqa: F821
del test_a_window_reads_a_table_without_a_key_once_whatever_its_buckets  # noqa: F821


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with UnistoreServer(tmp_path_factory.mktemp("tidb")) as tidb:
        yield tidb.settings
