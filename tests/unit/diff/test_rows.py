"""What counts as an equal row."""

import pytest

from pumphouse.diff.rows import Column, encoder, float_bytes, row_digest, select_expression
from pumphouse.proof.jsonvalue import canonical_json


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a": 1, "b": [1, 2]}', b'{"b":[1,2],"a":1}'),
        (b"3.0", b"3"),
        (b"1e2", b"100"),
        (b'"\\u00e4"', '"ä"'.encode()),
        (b"0.10000000000000001", b"0.1"),
        (b"-0.0", b"0"),
        (b"100000000000000000000", b"1e20"),
        (b"1e99999999999999999999", b"1e99999999999999999999"),
        (b"[1.]", b"[1.]"),
    ],
)
def test_json_of_equal_value_is_equal(one: bytes, other: bytes) -> None:
    assert canonical_json(one) == canonical_json(other)
    assert canonical_json(canonical_json(one)) in (canonical_json(one), b"no JSON: " + canonical_json(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"1", b"true"),
        (b"0", b"false"),
        (b"[1,2]", b"[2,1]"),
        (b'"1"', b"1"),
        (b"null", b'"null"'),
        (b"9007199254740993", b"9007199254740992"),
        (b"18446744073709551615", b"18446744073709551614"),
        (b"0.1", b"0.10000000000000002"),
        (b"18446744073709551616", b"1.8446744073709552e19"),
        (b"0.1000000000000000055511151231257827", b"0.1"),
        (b"123456789012345678901234567890", b"123456789012345680000000000000"),
        (b'{"a": 1, "a": 2}', b'{"a": 2}'),
        (b'{"a": 1, "a": 2}', b'{"a": 2, "a": 1}'),
        (b'{"a": 1}', b'["a", 1]'),
        (b'["1e0"]', b"[1]"),
        (b"[1.]", b"[1]"),
    ],
)
def test_json_of_other_value_is_not(one: bytes, other: bytes) -> None:
    assert canonical_json(one) != canonical_json(other)


def test_floats_are_equal_by_their_four_bytes() -> None:
    assert float_bytes(b"0.10000000149011612") == float_bytes(b"0.1")
    assert float_bytes(b"0.1") != float_bytes(b"0.10000001")


def test_null_differs_from_empty_and_cells_do_not_run_together() -> None:
    plain = [None, None]
    digests = {row_digest(row, plain) for row in ((None, b""), (b"", None), (b"", b""), (b"ab", b"c"), (b"a", b"bc"))}
    assert len(digests) == 5


def test_columns_are_read_without_loss() -> None:
    def of(kind: str) -> Column:
        return Column(name="a`b", data_type=kind, type=kind, json=False)

    assert select_expression(of("float")) == "CAST(`a``b` AS DOUBLE)"
    assert select_expression(of("set")) == "CAST(`a``b` AS UNSIGNED)"
    assert select_expression(of("double")) == "`a``b`"
    assert encoder(of("longtext"), as_json=True) is canonical_json
