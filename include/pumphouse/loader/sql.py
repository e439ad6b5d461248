"""One row change as SQL text with arguments, as the Go loader writes it (wire-format 6.4, "SQL shapes").

For small paths and for people; bulk goes through `pumphouse.loader.insert`. Columns are sorted by name, values are
loader values (`pumphouse.codec.datum`), parameters are ``?``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pumphouse.schema.ident import columns as column_list
from pumphouse.schema.ident import qualified, quote

Args = list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dml:
    """One row change.

    Args:
        kind: insert, update or delete.
        db: database.
        table: table.
        values: image after the change; of a delete the image before it.
        old: of an update, the image before it.
        primary_key: its columns, () when there is none.
        unique_keys: columns of each further unique key.
    """

    kind: Literal["insert", "update", "delete"]
    db: str
    table: str
    values: Mapping[str, Any]
    old: Mapping[str, Any] | None = None
    primary_key: Sequence[str] = ()
    unique_keys: Sequence[Sequence[str]] = ()

    @property
    def target(self) -> str:
        """Quoted table."""
        return qualified(self.db, self.table)

    @property
    def image(self) -> Mapping[str, Any]:
        """The image that the row has on the target before the change."""
        return self.values if self.old is None else self.old


def statement(dml: Dml) -> tuple[str, Args]:
    """The change as it is: INSERT, UPDATE or DELETE."""
    if dml.kind == "insert":
        return _put("INSERT", dml)
    if dml.kind == "delete":
        return delete(dml)
    names = sorted(dml.values)
    sets = ",".join(f"{quote(name)} = ?" for name in names)
    where, args = _where(dml)
    return f"UPDATE {dml.target} SET {sets} WHERE {where} LIMIT 1", [dml.values[name] for name in names] + args  # noqa: S608


def safe_statements(dml: Dml) -> list[tuple[str, Args]]:
    """The change in safe mode, which may run twice: REPLACE for an insert, DELETE and REPLACE for an update."""
    if dml.kind == "insert":
        return [replace(dml)]
    if dml.kind == "delete":
        return [delete(dml)]
    return [delete(dml), replace(dml)]


def replace(dml: Dml) -> tuple[str, Args]:
    """REPLACE of the image after the change."""
    return _put("REPLACE", dml)


def delete(dml: Dml) -> tuple[str, Args]:
    """DELETE of the image before the change."""
    where, args = _where(dml)
    return f"DELETE FROM {dml.target} WHERE {where} LIMIT 1", args  # noqa: S608


def _put(verb: str, dml: Dml) -> tuple[str, Args]:
    names = sorted(dml.values)
    marks = ",".join("?" for _ in names)
    return f"{verb} INTO {dml.target}({column_list(names)}) VALUES({marks})", [dml.values[name] for name in names]


def _where(dml: Dml) -> tuple[str, Args]:
    """First key whose values are all there (the primary key first), else every column of the image."""
    image = dml.image
    names: Sequence[str] = sorted(image)
    for key in (dml.primary_key, *dml.unique_keys):
        if key and all(image.get(name) is not None for name in key):
            names = key
            break
    parts = [f"{quote(name)} = ?" if image[name] is not None else f"{quote(name)} IS NULL" for name in names]
    return " AND ".join(parts), [image[name] for name in names if image[name] is not None]
