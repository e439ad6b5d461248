"""Which columns tell the rows of a table apart."""

from __future__ import annotations

from pumphouse.model.table import ColumnInfo, TableInfo


def key_columns(table: TableInfo) -> tuple[str, ...]:
    """Columns that identify a row: the primary key, else a unique key none of whose columns can be NULL, else ().

    A key over a generated column does not serve, because binlogs do not carry it.
    """
    by_name = {c.name.lower(): c for c in table.public_columns if not c.generated}

    def resolve(names: list[str], *, primary: bool) -> tuple[str, ...]:
        found: list[ColumnInfo] = [by_name[n.lower()] for n in names if n.lower() in by_name]
        if not names or len(found) != len(names) or not (primary or all(c.type.not_null for c in found)):
            return ()
        return tuple(c.name for c in found)

    primary = resolve([c.name for c in table.primary_key()], primary=True)
    if primary:
        return primary
    for index in sorted(table.indexes, key=lambda i: (len(i.columns), i.id)):
        if index.unique and index.public and not index.primary:
            found = resolve([c.name for c in index.columns], primary=False)
            if found:
                return found
    return ()
