"""How one table is read: its query, its key as literals, its values as the loader's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from pumphouse.codec.datum import Kind, kind_of
from pumphouse.codec.json import encode_json, json_text
from pumphouse.codec.layout import arrow_field
from pumphouse.dump.source import TableChanged
from pumphouse.errors import CodecError
from pumphouse.loader.keys import page_columns
from pumphouse.model.table import ColumnFlag, ColumnInfo, MysqlType
from pumphouse.schema.ident import elements_of, qualified, quote
from pumphouse.schema.versions import TableVersion

# Printed as what they are, they are names ('a' of an ENUM) or bytes (BIT); as numbers they are what binlogs have.
_AS_NUMBER = frozenset({Kind.ENUM, Kind.SET})
_NUMBERS = frozenset({Kind.INT, Kind.UINT, Kind.ENUM, Kind.SET, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReader:
    """Queries and conversions of one table version.

    Attributes:
        version: the table as the history knows it.
        columns: its public columns; not the virtual ones, which no binlog has either.
        key: indices in ``columns`` of what identifies a row and orders its pages; () = nothing does both.
        schema: of `convert`'s batches.
    """

    version: TableVersion
    columns: tuple[ColumnInfo, ...]
    key: tuple[int, ...]
    schema: pa.Schema

    @classmethod
    def of(cls, version: TableVersion) -> Self:
        """Work it out."""
        columns = tuple(c for c in version.table.public_columns if c.generated_stored or not c.generated)
        names = [c.name for c in columns]
        return cls(
            version=version,
            columns=columns,
            key=tuple(names.index(name) for name in page_columns(version.table)),
            schema=pa.schema([arrow_field(c) for c in columns]),
        )

    @property
    def name(self) -> str:
        """Quoted, with its database."""
        return qualified(*self.version.name)

    def select(self, after: Sequence[bytes] | None = None, limit: int | None = None) -> str:
        """All rows, or the next ``limit`` ones behind a key."""
        text = f"SELECT {', '.join(map(_expression, self.columns))} FROM {self.name}"  # noqa: S608
        if after is not None:
            text += f" WHERE {self._behind(after)}"
        if limit is not None:
            text += f" ORDER BY {', '.join(quote(self.columns[at].name) for at in self.key)} LIMIT {limit}"
        return text

    def key_of_last(self, batch: pa.RecordBatch) -> tuple[bytes, ...]:
        """Key of a text batch's last row, as the server prints it."""
        return tuple(batch.column(at)[batch.num_rows - 1].as_py() for at in self.key)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A text batch of `select` as typed columns."""
        columns = []
        for values, field, column in zip(batch.columns, self.schema, self.columns, strict=True):
            # Rows without a key are told apart by their values: as binlogs spell them.
            spelled = kind_of(column.type) is Kind.JSON and not self.key
            columns.append(_typed(_spelled(values) if spelled else values, field))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def differs(self, found: Mapping[str, str]) -> str:
        """Why the source's table is not the one of the history, '' when it is, as far as rows could tell.

        Args:
            found: name -> type of each column, as information_schema has it.
        """
        ours = {c.name.lower(): c for c in self.version.table.columns if c.public and not c.hidden}
        theirs = {name.lower(): kind for name, kind in found.items()}
        if ours.keys() != theirs.keys():
            return f"the source has the columns {', '.join(sorted(theirs))}, the history {', '.join(sorted(ours))}"
        for name, column in ours.items():
            if kind_of(column.type) in _AS_NUMBER and elements_of(theirs[name]) != column.type.elems:
                elements = ", ".join(map(repr, column.type.elems))
                return f"the source has {name} as {theirs[name]}, the history with the elements {elements}"
        return ""

    def _behind(self, after: Sequence[bytes]) -> str:
        """Rows whose key comes later in the index's order. The first term alone lets the server use the index."""
        names = [quote(self.columns[at].name) for at in self.key]
        values = [_literal(self.columns[at], value) for at, value in zip(self.key, after, strict=True)]
        if len(names) == 1:
            return f"{names[0]} > {values[0]}"
        ors = []
        for place in range(len(names)):
            equal = [f"{n} = {v}" for n, v in zip(names[:place], values[:place], strict=True)]
            ors.append(" AND ".join([*equal, f"{names[place]} > {values[place]}"]))
        return f"{names[0]} >= {values[0]} AND ({' OR '.join(f'({each})' for each in ors)})"


def _expression(column: ColumnInfo) -> str:
    name, kind = quote(column.name), kind_of(column.type)
    if kind is Kind.FLOAT:
        # As a FLOAT it would be printed with six digits.
        return f"CAST({name} AS DOUBLE)"
    if kind is Kind.DECIMAL and column.type.flag & ColumnFlag.ZEROFILL:
        # Binlogs have no zeros in front.
        return f"CAST({name} AS DECIMAL({column.type.flen},{column.type.decimal}))"
    if kind in _AS_NUMBER or column.type.tp == MysqlType.BIT:
        return f"CAST({name} AS UNSIGNED)"
    return name


def _literal(column: ColumnInfo, value: bytes) -> str:
    """A printed key value as SQL; nothing of it can be anything but a value."""
    if kind_of(column.type) in _NUMBERS:
        number = value.decode("ascii")
        if not set(number) <= set("0123456789.+-e"):
            raise ValueError(f"{number!r} is no number")
        return number
    charset = "_binary" if column.type.charset == "binary" and kind_of(column.type) is Kind.BYTES else "_utf8mb4"
    return f"{charset} x'{value.hex()}'"


def _spelled(values: pa.Array) -> pa.Array:
    """JSON texts as binlogs spell them. What no binlog can say is in none: it goes through as it is."""
    texts = []
    for each in values.to_pylist():
        try:
            texts.append(None if each is None else json_text(encode_json(each)).encode())
        except CodecError:
            texts.append(each)
    return pa.array(texts, pa.large_binary())


def _typed(values: pa.Array, field: pa.Field) -> pa.Array:
    kind = field.type
    if pa.types.is_large_binary(kind):
        return values
    try:
        text = values.cast(pa.large_string())
        if pa.types.is_float32(kind):
            return text.cast(pa.float64()).cast(kind, safe=False)
        return text if pa.types.is_large_string(kind) else text.cast(kind)
    except pa.ArrowInvalid as error:
        raise TableChanged(f"the source's column {field.name} is no {kind}: {error}") from error
