"""Made-up values survive the codec unchanged, for every type of the demo's tables."""

import json
import random

from pumphouse.codec import row
from pumphouse.demo import world
from pumphouse.demo.columns import Table
from pumphouse.demo.values import ValueMaker, unique_columns
from pumphouse.model.table import TableInfo

TABLES = [value for value in vars(world).values() if isinstance(value, Table)]


def _info(table: Table, table_id: int = 7) -> TableInfo:
    return TableInfo.from_dict(table.info(table_id, list(range(100, 100 + len(table.ranges))), 1))


def test_rows_come_back_from_their_images() -> None:
    maker = ValueMaker(random.Random(5), 0)
    for table in TABLES:
        info = _info(table)
        for _ in range(60):
            made = maker.row(info)
            handle = None if info.pk_is_handle or info.is_common_handle else 9
            found = row.decode_insert(info, row.encode_insert(info, made, handle=handle))
            for column in info.public_columns:
                if column.generated and not column.generated_stored:
                    continue
                want, got = made[column.id], found.get(column.id)
                if column.type.tp == 245 and want is not None:
                    assert json.loads(str(got)) == json.loads(str(want))
                else:
                    assert got == want, (table.name, column.name)


def test_every_column_type_of_the_requirements_is_there() -> None:
    codes = {column.type.tp for table in TABLES for column in _info(table).columns}
    assert codes >= {1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 15, 16, 245, 246, 247, 248, 249, 250, 251, 252, 254}


def test_unique_values_never_repeat() -> None:
    maker = ValueMaker(random.Random(1), 0)
    info = _info(next(table for table in TABLES if table.name == "tokens"))
    ids = unique_columns(info)
    assert len(ids) == 2
    rows = [maker.row(info) for _ in range(300)]
    for column_id in ids:
        assert len({each[column_id] for each in rows}) == 300


def test_texts_are_as_a_server_prints_them() -> None:
    maker = ValueMaker(random.Random(2), 0)
    info = _info(next(table for table in TABLES if table.name == "types"))
    for _ in range(400):
        for column in info.public_columns:
            value = maker.value(column)
            if value is None or not isinstance(value, str):
                continue
            assert not (value.startswith("-") and not value.strip("-0.:")), "no minus zero"
            if column.type.tp == 246 and column.type.decimal:
                assert len(value.partition(".")[2]) == column.type.decimal
