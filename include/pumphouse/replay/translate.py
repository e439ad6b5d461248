"""Row changes as a caller gives them, by column name, to lines of LOAD DATA and keys of causality."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pumphouse.errors import UsageError
from pumphouse.loader.columns import Column
from pumphouse.replay.catalog import Catalog, Table, UniqueKey
from pumphouse.replay.change import Change, Dml, Txn
from pumphouse.replay.keys import ANY, comparable

Image = Mapping[str, Any]


class Translator:
    """Translates for one stream. ``apart`` says whether keys are made by another rule since the last answer."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        # Unique keys of which a value was seen that cannot be compared here: all their rows are one from then on.
        self._unknown: set[tuple[str, str, str]] = set()
        self.apart = False

    def changes(self, txn: Txn) -> list[Change]:
        """The transaction's changes. UsageError when an image has other columns than the table."""
        known = len(self._unknown)
        out = [self._change(dml) for dml in txn.dmls]
        self.apart = len(self._unknown) > known
        # Keys of its first changes are made anew where a later one changed the rule.
        return [self._change(dml) for dml in txn.dmls] if self.apart else out

    def _change(self, dml: Dml) -> Change:
        table = self._catalog.table(dml.db, dml.table)
        shape = table.shape
        old = dml.values if dml.kind == "delete" else dml.old if dml.kind == "update" else None
        new = None if dml.kind == "delete" else dml.values
        keys: list[Hashable] = []
        for image in (new, old):
            if image is not None:
                _require_columns(table, image, whole=image is new or not shape.key)
                keys += self._keys(table, image)
        named = shape.old_columns
        before = None if old is None else line_of(named, old)
        return Change(
            shape,
            tuple(keys),
            before,
            None if new is None else line_of(shape.columns, new),
            moved=old is not None and new is not None and (not shape.key or line_of(named, new) != before),
            loose=new is not None and any(c.is_enum and new[c.name] == 0 for c in shape.columns),
        )

    def _keys(self, table: Table, image: Image) -> list[Hashable]:
        shape = table.shape
        keys: list[Hashable] = []
        for unique in table.unique:
            values = self._values(table, unique, image)
            if values is not None:
                keys.append((shape.db, shape.table, unique.name, values))
        if keys:
            return keys
        return [(shape.db, shape.table, "", tuple(_identical(image[c.name]) for c in shape.columns))]

    def _values(self, table: Table, unique: UniqueKey, image: Image) -> Hashable | None:
        """None = it holds a NULL, and so equals nothing."""
        at = (table.shape.db, table.shape.table, unique.name)
        values = []
        for part in unique.parts:
            value = image.get(part.column)
            if value is None and part.column in image:
                return None
            values.append(ANY if value is None else comparable(value, part.equality, part.length))
        if ANY in values:
            self._unknown.add(at)
        return ANY if at in self._unknown else tuple(values)


def _identical(value: Any) -> Hashable:
    """Equal rows have equal texts, without regard to how they are given."""
    return None if value is None else _text(value)


def _require_columns(table: Table, image: Image, *, whole: bool) -> None:
    shape = table.shape
    names = [c.name for c in (shape.columns if whole else shape.old_columns)]
    names += [part.column for key in table.unique for part in key.parts if part.column in table.equality]
    missing = [n for n in names if n not in image and table.equality[n].name != "UNKNOWN"]
    extra = [n for n in image if n not in table.equality]
    if missing or extra:
        raise UsageError(
            f"an image of {shape.name} "
            + " and ".join(
                f"{verb} {', '.join(found)}" for verb, found in (("lacks", missing), ("has besides", extra)) if found
            ),
            hint="an image has every column of the target's table that is not generated, by its name there",
            table=shape.name,
        )


def line_of(columns: Sequence[Column], image: Image) -> bytes:
    """One line of LOAD DATA."""
    return b"\t".join([_field(column, image[column.name]) for column in columns]) + b"\n"


def _field(column: Column, value: Any) -> bytes:
    if value is None:
        return b"\\N"
    if column.through_variable and not isinstance(value, int):
        raise UsageError(
            f"column {column.name} is an ENUM, SET, BIT or YEAR and takes its number, not {value!r:.40}",
            hint="as in a binlog: the number of the element, the bits of the set",
        )
    text = _text(value)
    if b"\\" in text or b"\t" in text or b"\n" in text:
        return text.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(b"\n", b"\\n")
    return text


def _text(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"%d" % value
    if isinstance(value, datetime):
        return value.isoformat(" ").encode()
    if isinstance(value, timedelta):
        raise UsageError(f"a time is given as its text, not as {value!r}", hint="'-12:30:00.5'")
    return str(value).encode()
