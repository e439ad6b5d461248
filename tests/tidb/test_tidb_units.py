"""What tests/integration/test_load_units.py says of units on a MariaDB holds on a real TiDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.settings import TargetSettings
from tests.integration.test_load_units import (  # noqa: F401 - run here
    target,
    test_a_delete_without_a_key_that_comes_again_takes_no_second_copy,
    test_a_row_that_removes_another_rows_unique_value_is_found_among_many,
    test_a_table_without_a_key_loses_exactly_so_many_copies_compared_byte_by_byte,
    test_a_twin_waits_for_the_first_and_then_skips,
    test_a_unit_of_an_earlier_owner_changes_nothing,
    test_a_unit_that_comes_again_changes_nothing_with_and_without_a_key,
    test_deletes_by_key_take_what_is_there_and_forgive_what_is_not,
    test_rows_that_the_target_would_bend_or_merge_are_named,
    test_rows_without_a_key_go_and_change_where_columns_have_on_update_current_timestamp,
    test_the_same_run_takes_over_from_itself,
    test_units_of_one_run_do_not_take_turns_at_the_fence,
    test_values_of_every_kind_arrive_as_they_are,
)
from tests.support.tidb import MISSING, UnistoreServer

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"), pytest.mark.row("L6")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with UnistoreServer(tmp_path_factory.mktemp("tidb")) as tidb:
        yield tidb.settings
