"""Changes of a table as one table of typed columns, whatever DDLs lie between them: for Spark, and who reads Arrow.

A row is one change: when, what, the key, and the row before and after. Columns are those that the table has in the
range, by name, the newest first in their order; a form that lacks one has NULL there. Where a DDL changed a column's
type, the column has a type that holds both, text at last. An update that moves its key is a delete and an insert, so
each change has one key.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.codec.columnar import DELETE, INSERT
from pumphouse.codec.reading import MAX_DIGITS, typed, typed_field
from pumphouse.errors import UsageError
from pumphouse.history.changes import Changed
from pumphouse.loader.changes import OPS, Form
from pumphouse.loader.decode import moved_of
from pumphouse.model.tso import show

COMMIT_TS, COMMIT_TIME, START_TS, POSITION = "_commit_ts", "_commit_time", "_start_ts", "_position"
OP, TABLE, BEFORE, AFTER, EXACT = "_op", "_table", "_before", "_after", "_exact"
_MOMENT = pa.timestamp("us", tz="UTC")
_TEXTS = pa.map_(pa.string(), pa.string())
_HEAD = (
    pa.field(COMMIT_TS, pa.int64()), pa.field(COMMIT_TIME, _MOMENT), pa.field(START_TS, pa.int64()),
    pa.field(POSITION, pa.int64()), pa.field(OP, pa.string()), pa.field(TABLE, pa.string()),
)  # fmt: skip
Exact = dict[int, dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTable:
    """What changes of some forms of a table look like; ``key``: of the newest."""

    key: tuple[str, ...]
    image: pa.Schema

    @classmethod
    def of(cls, forms: Sequence[Form], columns: Sequence[str] = ()) -> Self:
        """Of the forms in a range, the oldest first; ``columns``: only these, and the key's."""
        found: dict[str, pa.Field] = {}
        for form in reversed(forms):
            only = form.only(columns)
            for column in form.columns(only):
                field, name = typed_field(column), column.name.lower()
                have = found.get(name, field)
                found[name] = have.with_type(common(have.type, field.type))
        key = tuple(found[name.lower()].name for name in forms[-1].wanted.key)
        return cls(key=key, image=pa.schema(list(found.values())))

    @property
    def schema(self) -> pa.Schema:
        """Head, the key's columns, the images, and the texts of values that no column of theirs can hold.

        All but the key's columns have names that none of these has.
        """
        keys = [self.image.field(name) for name in self.key]
        image = pa.struct(list(self.image))
        rest = (pa.field(BEFORE, image), pa.field(AFTER, image), pa.field(EXACT, _TEXTS))
        head, tail = ([field.with_name(_beside(keys, field.name)) for field in some] for some in (_HEAD, rest))
        return pa.schema([*head, *keys, *tail])

    def batch(self, changed: Changed) -> pa.RecordBatch:
        """Changes, of `schema`."""
        form, key = changed.form, changed.form.wanted.key
        moved = np.zeros(len(changed), np.bool_)
        if key and (found := moved_of(changed.old, changed.new, key)) is not None:
            moved = found.to_numpy(zero_copy_only=False) & (changed.op != INSERT) & (changed.op != DELETE)
        at = np.repeat(np.arange(len(changed)), 1 + moved)
        second = np.zeros(len(at), np.bool_)
        second[1:] = at[1:] == at[:-1]
        op = np.where(second, INSERT, np.where(moved[at], DELETE, changed.op[at]))
        exact: Exact = {}
        taken = pa.array(at)
        sides = [
            typed_rows(form, rows.take(taken), self.image, exact, f"{name[1:]}.", there)
            for name, rows, there in ((BEFORE, changed.old, op != INSERT), (AFTER, changed.new, op != DELETE))
        ]
        before, after = (
            pa.StructArray.from_arrays(arrays, fields=list(self.image), mask=pa.array(~there))
            for arrays, there in zip(sides, (op != INSERT, op != DELETE), strict=True)
        )
        places = [self.image.get_field_index(name) for name in self.key]
        keys = [pc.if_else(pa.array(op == DELETE), sides[0][place], sides[1][place]) for place in places]
        commit_ts = changed.commit_ts[at]
        names = pa.array([OPS[each] for each in sorted(OPS)], pa.string())
        head = [
            pa.array(commit_ts),
            pa.array((commit_ts >> 18) * 1000).cast(_MOMENT),
            pa.array(changed.start_ts[at]),
            pa.array(changed.position[at] * 2 + second),
            names.take(pa.array(op.astype(np.int64))),
            pa.repeat(pa.scalar(".".join(form.version.name)), len(at)),
        ]
        return pa.RecordBatch.from_arrays([*head, *keys, before, after, texts(exact, len(at))], schema=self.schema)


def require_one_key(forms: Sequence[Form]) -> None:
    """UsageError where a table's key has other names in a part of the range: its columns stand for all changes."""
    newest = forms[-1].wanted.key
    for form, behind in itertools.pairwise(forms):
        other = [name.lower() for name in form.wanted.key] != [name.lower() for name in newest]
        if newest and form.wanted.key and other:
            raise UsageError(
                f"the key of {'.'.join(form.version.name)} is {', '.join(form.wanted.key)}, and {', '.join(newest)} "
                "at the end of the range",
                hint=f"read the ranges apart: before and behind {show(behind.version.commit_ts)}",
            )


def row_schema(form: Form, columns: Sequence[str] = ()) -> pa.Schema:
    """What rows of one form look like; the texts come last, under a name that no column of the table has."""
    fields = [*map(typed_field, form.columns(form.only(columns)))]
    return pa.schema([*fields, pa.field(_beside(fields, EXACT), _TEXTS)])


def _beside(fields: Sequence[pa.Field], name: str) -> str:
    """A name, with as many more ``_`` as none of the fields has it; Spark does not tell case apart."""
    taken = {field.name.lower() for field in fields}
    while name in taken:
        name = f"_{name}"
    return name


def row_batch(form: Form, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of one form, of `row_schema`."""
    exact: Exact = {}
    image = schema.remove(len(schema) - 1)
    columns = typed_rows(form, rows, image, exact, "", np.ones(rows.num_rows, np.bool_))
    return pa.RecordBatch.from_arrays([*columns, texts(exact, rows.num_rows)], schema=schema)


def typed_rows(
    form: Form, rows: pa.RecordBatch, schema: pa.Schema, exact: Exact, prefix: str, there: np.ndarray
) -> list[pa.Array]:
    """Columns of a schema by name; into ``exact`` the texts of values that cannot be held, of rows that are there."""
    known = {c.name.lower(): c for c in form.columns()}
    have = {name.lower(): at for at, name in enumerate(rows.schema.names)}
    out = []
    for field in schema:
        at = have.get(field.name.lower())
        if at is None:
            out.append(pa.nulls(rows.num_rows, field.type))
            continue
        values, odd = typed(rows.column(at), known[field.name.lower()])
        for row, text in odd.items():
            if there[row]:
                exact.setdefault(row, {})[f"{prefix}{field.name}"] = text
        out.append(values if values.type == field.type else _as(values, field.type))
    return out


def common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """A type that holds the values of both, exactly: text at last."""
    if one == other:
        return one
    both = {one, other}
    if both == {pa.float32(), pa.float64()}:
        return pa.float64()
    if both == {pa.string(), pa.binary()}:
        return pa.binary()
    digits = [_digits(each) for each in both]
    if all(digits):
        whole, scale = (max(each[at] for each in digits if each) for at in (0, 1))
        if whole + scale <= MAX_DIGITS:
            return pa.decimal128(whole + scale, scale)
    return pa.string()


def texts(exact: Mapping[int, Mapping[str, str]], count: int) -> pa.Array:
    """The column of such texts; NULL where there are none."""
    if not exact:
        return pa.nulls(count, _TEXTS)
    return pa.array([list(exact[at].items()) if at in exact else None for at in range(count)], _TEXTS)


def _digits(kind: pa.DataType) -> tuple[int, int] | None:
    """Before and behind the point."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return (19, 0) if kind == pa.int64() else None


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind) and pa.types.is_binary(values.type):
        return pa.array([None if each is None else f"0x{each.hex()}" for each in values.to_pylist()], kind)
    return values.cast(kind)
