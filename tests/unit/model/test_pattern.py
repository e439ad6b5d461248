"""Patterns of tables."""

from __future__ import annotations

import pytest

from pumphouse.model.pattern import fits


@pytest.mark.row("L4", "Q4")
@pytest.mark.parametrize(
    ("name", "pattern", "does"),
    [
        ("d.tmp_a", "d.tmp_*", True),
        ("D.Tmp_A", "d.tmp_a", True),
        ("d.a.b", "*.a.b", True),
        ("d.a\nb", "d.*", True),
        ("d.a[1]", "d.a[1]", True),
        ("d.a1", "d.a[1]", False),
        ("d.a?", "d.a?", True),
        ("d.ab", "d.a?", False),
        ("d.ab", "d.a", False),
        ("d.a", "d.a*b", False),
    ],
)
def test_a_star_alone_is_any_text(name: str, pattern: str, does: bool) -> None:
    assert fits(name, pattern) is does
