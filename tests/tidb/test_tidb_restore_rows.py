"""A restore of chosen rows takes those that a real TiDB chooses: what tests/integration/test_restore_rows.py says of a MariaDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.settings import TargetSettings
from tests.integration.test_restore_rows import (  # noqa: F401
    test_a_row_that_an_update_moves_into_the_choice_comes_in_and_one_that_it_moves_out_goes,
    test_killed_it_goes_on_with_the_same_choice_and_another_one_is_another_restore,
    test_of_every_type_of_key_those_rows_come_that_the_server_itself_chooses,
    test_what_a_collation_takes_for_ascii_is_what_the_server_says,
)
from tests.support.loading import settings, source, target  # noqa: F401 - fixtures
from tests.support.tidb import MISSING, UnistoreServer

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"), pytest.mark.row("R3")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with UnistoreServer(tmp_path_factory.mktemp("tidb")) as tidb:
        yield tidb.settings
