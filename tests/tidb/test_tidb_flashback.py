"""What tests/integration/test_flashback.py says of flashbacks on a MariaDB holds on a real TiDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.settings import TargetSettings
from tests.integration.test_flashback import *  # noqa: F403
from tests.integration.test_flashback import _here  # noqa: F401
from tests.support.loading import settings, source, target  # noqa: F401 - fixtures
from tests.support.tidb import MISSING, UnistoreServer

# A TiDB has no triggers, and never drops the key that its rows lie by.
del test_a_table_that_cannot_be_put_back_is_named_and_nothing_is_changed  # noqa: F821

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"), pytest.mark.row("R5")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with UnistoreServer(tmp_path_factory.mktemp("tidb")) as tidb:
        yield tidb.settings
