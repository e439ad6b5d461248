"""What the collations of a server take for equal in ASCII, beside case, is what replay takes for equal (row L3)."""

from __future__ import annotations

from itertools import product
from string import ascii_lowercase, digits, punctuation

import pytest

from pumphouse.loader.target import TargetConnection
from pumphouse.replay.keys import Equality, equality_of

# Their collations have the rules of utf8mb4's.
_ALIKE = {"utf8mb3", "ucs2", "utf16", "utf16le", "utf32"}

pytestmark = [pytest.mark.mysql, pytest.mark.row("L3")]


def test_no_collation_but_those_with_letters_of_their_own_takes_other_ascii_for_equal(target: TargetConnection) -> None:
    target.execute("CREATE DATABASE d")
    target.execute("CREATE TABLE d.texts (a VARCHAR(4) CHARACTER SET ascii COLLATE ascii_bin)")
    pairs = ["".join(each) for each in product(ascii_lowercase + digits + punctuation, repeat=2)]
    threes = ["".join(each) for each in product(ascii_lowercase, repeat=3)]
    doubled = [2 * "".join(each) for each in product(ascii_lowercase, repeat=2)]
    texts = [*pairs, *threes, *doubled]
    for begin in range(0, len(texts), 1000):
        some = texts[begin : begin + 1000]
        target.execute(f"INSERT INTO d.texts VALUES {','.join(['(%s)'] * len(some))}", some)
    collations = [
        (str(name), str(charset))
        for name, charset in target.query(
            "SELECT collation_name, character_set_name FROM information_schema.collation_character_set_applicability"
        )
        if str(charset) not in _ALIKE and equality_of(str(name)) in (Equality.COLLATED, Equality.UNKNOWN)
    ]
    merged = {
        name
        for name, charset in collations
        if target.value(f"SELECT COUNT(DISTINCT CONVERT(a USING `{charset}`) COLLATE `{name}`) FROM d.texts")
        != len(texts)
    }
    assert len(collations) > 100
    assert merged, "i is y in Lithuanian"
    assert {name for name in merged if equality_of(name) is not Equality.UNKNOWN} == set()
