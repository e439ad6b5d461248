"""Which columns identify a row."""

import pytest

from pumphouse.loader.keys import key_columns
from pumphouse.model.table import TableInfo
from tests.support.madearchive import column, index, table_info

NOT_NULL = 1


@pytest.mark.row("L4")
@pytest.mark.parametrize(
    ("columns", "more", "key"),
    [
        ([column(1, "id", flag=3), column(2, "a")], {}, ("id",)),
        ([column(1, "a"), column(2, "b")], {"pk_is_handle": False}, ()),
        (
            [column(1, "a", flag=NOT_NULL), column(2, "B", flag=NOT_NULL)],
            {"pk_is_handle": False, "index_info": [index(1, "PRIMARY", ("b", 1), ("a", 0), unique=True, primary=True)]},
            ("B", "a"),
        ),
        # NULLs make rows of a unique key equal to none: it identifies nothing.
        ([column(1, "a")], {"pk_is_handle": False, "index_info": [index(1, "u", ("a", 0), unique=True)]}, ()),
        (
            [column(1, "a", flag=NOT_NULL)],
            {"pk_is_handle": False, "index_info": [index(1, "u", ("a", 0), unique=True)]},
            ("a",),
        ),
        ([column(1, "a", flag=NOT_NULL)], {"pk_is_handle": False, "index_info": [index(1, "i", ("a", 0))]}, ()),
        (
            [column(1, "a", flag=NOT_NULL, generated_expr_string="1+1", generated_stored=True)],
            {"pk_is_handle": False, "index_info": [index(1, "u", ("a", 0), unique=True)]},
            (),
        ),
    ],
)
def test_the_key_is_the_primary_one_else_a_unique_one_without_nulls(
    columns: list, more: dict, key: tuple[str, ...]
) -> None:
    assert key_columns(TableInfo.from_dict(table_info(1, "t", columns, **more))) == key
