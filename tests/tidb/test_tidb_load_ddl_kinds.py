"""What tests/integration/test_load_ddl_kinds.py says of DDL on a MariaDB holds on a real TiDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.settings import TargetSettings
from tests.integration.test_load_ddl_kinds import *  # noqa: F403
from tests.support.loading import settings, source, target  # noqa: F401 - fixtures
from tests.support.tidb import MISSING, UnistoreServer

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"), pytest.mark.row("L6")]
del test_foreign_keys_are_there_after_a_load_and_a_restore_and_hold_nothing_up  # noqa: F821 - keeps TiDB's names of keys
# A TiDB changes types and names under foreign keys.
del test_a_new_type_of_a_column_that_foreign_keys_refer_to_is_refused_with_the_statements_that_go_around_them  # noqa: F821
del test_a_column_of_a_foreign_key_is_renamed_where_another_gets_a_new_type  # noqa: F821
del test_partitions_by_hash_become_more_and_fewer  # noqa: F821 - this TiDB has none of these statements
del test_a_table_gets_partitions_other_ones_and_none  # noqa: F821 - nor these


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with UnistoreServer(tmp_path_factory.mktemp("tidb")) as tidb:
        yield tidb.settings
