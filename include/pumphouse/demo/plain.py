"""Columns in short: most tables of the demo have nothing but types and NOT NULL."""

from __future__ import annotations

from pumphouse.demo.columns import Col

_NOT_NULL = " not null"


def plain(**types: str) -> tuple[Col, ...]:
    """``plain(id="bigint not null", page="varchar(50)")``: columns by name, in this order."""
    return tuple(
        Col(name=name, type=text.removesuffix(_NOT_NULL), null=not text.endswith(_NOT_NULL))
        for name, text in types.items()
    )
