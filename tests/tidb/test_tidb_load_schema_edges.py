"""What tests/integration/test_load_schema_edges.py says of the edges of schemas on a MariaDB holds on a real TiDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.settings import TargetSettings
from tests.integration.test_load_schema_edges import *  # noqa: F403
from tests.support.loading import settings, source, target  # noqa: F401 - fixtures
from tests.support.tidb import MISSING, UnistoreServer

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"), pytest.mark.row("L6")]
# A TiDB has every generated column of a TiDB, and so the CHECKs over it.
del test_a_check_of_a_column_that_is_left_out_is_left_out_with_a_note  # noqa: F821
del test_a_table_that_a_first_load_or_a_restore_cannot_create_is_named_with_the_rule_that_parks_it  # noqa: F821


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with UnistoreServer(tmp_path_factory.mktemp("tidb")) as tidb:
        yield tidb.settings
