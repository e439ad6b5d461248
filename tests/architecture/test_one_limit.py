"""One limit on a transaction, by name (row P17): nothing else on its way has a bound of its own that is near."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator
from pathlib import Path

import pytest

from pump_service.intake import convert
from pump_service.store import parse
from pumphouse.client import pump as client
from pumphouse.model import binlog
from pumphouse.rpc.channel import MAX_MESSAGE_BYTES

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
_OPERATORS = {
    ast.LShift: operator.lshift, ast.Mult: operator.mul, ast.Sub: operator.sub, ast.Add: operator.add,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
# Modules by whose code a transaction passes: client, Pump and pull, archive, load.
_ROOMS = (
    "include/pumphouse/client",
    "include/pumphouse/archive",
    "include/pumphouse/loader",
    "include/pumphouse/codec",
    "pump_service",
    "spark_tasks",
)


@pytest.mark.row("P17")
def test_the_limit_is_1_9_gib_and_fits_a_request_and_a_pulled_message() -> None:
    assert int(1.9 * GIB) == binlog.MAX_TRANSACTION_BYTES
    # Around it are a cluster id, a tag and a length, and the fields that the Pump adds.
    assert binlog.MAX_TRANSACTION_BYTES + (1 << 20) < MAX_MESSAGE_BYTES
    for user in (client, convert, parse):
        assert user.MAX_TRANSACTION_BYTES == binlog.MAX_TRANSACTION_BYTES, user.__name__


@pytest.mark.row("P17")
def test_client_pump_pull_archive_and_load_have_no_other_limit_near_it() -> None:
    found = {}
    for room in _ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            tree = ast.parse(path.read_text())
            near = {value for value in map(_value, _expressions(tree)) if value is not None and GIB < value < 1 << 31}
            # 2^31 - 1 is gRPC's own limit, on messages, and the largest of 32 bits.
            if others := near - {(1 << 31) - 1}:
                found[str(path.relative_to(ROOT))] = others
    assert not found


def _expressions(tree: ast.AST) -> Iterator[ast.expr]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.expr))


def _value(node: ast.expr) -> int | None:
    """Of an expression of integers."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name) and node.id in ("KIB", "MIB", "GIB"):
        return {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": GIB}[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left), _value(node.right)
        if left is None or right is None or (isinstance(node.op, ast.LShift) and not 0 <= right < 100):
            return None
        if isinstance(node.op, ast.FloorDiv) and not right:
            return None
        return int(_OPERATORS[type(node.op)](left, right))
    return None
