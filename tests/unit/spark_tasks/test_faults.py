"""Our errors come back from a worker as they were."""

import pytest

from pumphouse import errors
from pumphouse.errors import BinlogError, LoadError, RowRejected
from pumphouse.loader.target import StatementFailed
from spark_tasks import faults


def test_class_facts_and_hint_arrive() -> None:
    error = RowRejected("no", hint="look", table="d.t", rows=[{"id": "5"}])
    back = faults.load(faults.dump(error))
    assert type(back) is RowRejected
    assert (back.table, back.rows, str(back)) == ("d.t", [{"id": "5"}], "no (look)")


@pytest.mark.parametrize(
    "cls", [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, BinlogError)]
)
def test_every_class_of_the_tree_keeps_whether_it_may_be_tried_again(cls: type[BinlogError]) -> None:
    assert type(faults.load(faults.dump(cls("x", path=b"\xff")))) is cls


def test_a_class_of_a_rooms_own_becomes_a_load_error() -> None:
    assert type(faults.load(faults.dump(StatementFailed("x", code=5)))) is LoadError
