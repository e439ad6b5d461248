"""Keys that a writer knows."""

import random

from pumphouse.demo.columns import Col, Table
from pumphouse.demo.keys import KnownKeys
from pumphouse.demo.rows import SourceTable
from pumphouse.model.table import TableInfo


def _table(table_id: int = 1) -> SourceTable:
    table = Table(name="t", columns=(Col(name="id", type="int", null=False),), primary=("id",))
    return SourceTable.of("d", TableInfo.from_dict(table.info(table_id, [], 1)))


def test_samples_are_known_and_different() -> None:
    keys, table = KnownKeys(0, random.Random(1)), _table()
    for number in range(100):
        keys.add(table, (number,))
    for number in range(0, 100, 2):
        keys.remove(table, (number,))
    for _ in range(50):
        sample = keys.sample(table, 10)
        assert len(set(sample)) == 10
        assert all(int(number or 0) % 2 for (number,) in sample)


def test_a_truncated_table_starts_with_none() -> None:
    keys = KnownKeys(0, random.Random(1))
    keys.add(_table(1), (5,))
    assert keys.sample(_table(2), 3) == []


def test_existing_rows_are_shared_out_completely_and_once() -> None:
    table = _table()
    shares = [KnownKeys(number, random.Random(1)) for number in range(8)]
    for keys in shares:
        keys.adopt(table, [(str(n).encode(),) for n in range(200)])
    taken = [key for keys in shares for key in keys.sample(table, 10_000)]
    assert sorted(taken) == [(n,) for n in range(200)]
