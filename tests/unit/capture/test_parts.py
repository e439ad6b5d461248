"""Parts of a transaction that is larger than a group."""

from __future__ import annotations

import pytest

from pumphouse.capture.follow import Parts
from pumphouse.capture.source.model import Transaction


def part(number: int, *, final: bool = False) -> Transaction:
    return Transaction("0-1-7", True, 1, 0, 0, 1, part=number, final=final)


@pytest.mark.row("Q1")
def test_parts_of_a_transaction_that_the_source_forgot_are_not_of_the_next_one() -> None:
    parts = Parts()
    assert parts.whole(part(0), b"a") is None
    assert parts.whole(part(1), b"b") is None
    assert parts.whole(part(2, final=True), b"c") == b"abc"
    assert parts.whole(part(0), b"forgotten") is None
    assert parts.whole(part(0, final=True), b"next") == b"next"
