"""Random tables and rows of every column type, for hypothesis."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pumphouse.codec.datum import Value
from pumphouse.codec.json import encode_json, json_text
from pumphouse.model.binlog import SchemaState
from pumphouse.model.table import ColumnFlag, MysqlType, TableInfo

Json = dict[str, Any]
PUBLIC = int(SchemaState.PUBLIC)


def field(
    tp: int, flag: int = 0, flen: int = -1, decimal: int = -1, charset: str = "binary", elems: list[str] | None = None
) -> Json:
    """FieldType of a table info."""
    return {
        "Tp": int(tp),
        "Flag": int(flag),
        "Flen": flen,
        "Decimal": decimal,
        "Charset": charset,
        "Collate": "binary" if charset == "binary" else f"{charset}_bin",
        "Elems": elems,
    }


_INTS = {MysqlType.TINY: 8, MysqlType.SHORT: 16, MysqlType.INT24: 24, MysqlType.LONG: 32, MysqlType.LONGLONG: 64}


@st.composite
def decimal_fields(draw: st.DrawFn) -> Json:
    precision = draw(st.integers(1, 65))
    return field(MysqlType.NEWDECIMAL, 0, precision, draw(st.integers(0, min(30, precision))))


def fields() -> st.SearchStrategy[Json]:
    """FieldTypes of every kind that rows have."""
    integers = st.builds(field, st.sampled_from(list(_INTS)), st.sampled_from([0, ColumnFlag.UNSIGNED]))
    fsp = st.integers(0, 6)
    texts = st.sampled_from(
        [
            MysqlType.VARCHAR,
            MysqlType.STRING,
            MysqlType.TINY_BLOB,
            MysqlType.BLOB,
            MysqlType.MEDIUM_BLOB,
            MysqlType.LONG_BLOB,
        ]
    )
    elements = st.integers(1, 64).map(lambda n: [f"e{i}" for i in range(n)])
    return st.one_of(
        integers,
        st.sampled_from(
            [field(MysqlType.FLOAT), field(MysqlType.DOUBLE), field(MysqlType.YEAR), field(MysqlType.DATE)]
        ),
        decimal_fields(),
        st.builds(lambda tp, f: field(tp, 0, -1, f), st.sampled_from([MysqlType.DATETIME, MysqlType.TIMESTAMP]), fsp),
        fsp.map(lambda f: field(MysqlType.TIME, 0, -1, f)),
        st.just(field(MysqlType.JSON)),
        texts.map(lambda tp: field(tp, 0, 64, -1, "utf8mb4")),
        st.just(field(MysqlType.BLOB, 128, 65535)),
        st.integers(1, 12).map(lambda n: field(MysqlType.STRING, 128, n)),
        elements.map(lambda e: field(MysqlType.ENUM, 0, 1, 0, "utf8mb4", e)),
        elements.map(lambda e: field(MysqlType.SET, 0, 1, 0, "utf8mb4", e)),
        st.integers(1, 64).map(lambda n: field(MysqlType.BIT, 32, n)),
    )


def clock(fsp: int) -> st.SearchStrategy[str]:
    """``hh:mm:ss[.f]``."""
    parts = st.tuples(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 10**fsp - 1))
    return parts.map(lambda p: f"{p[0]:02d}:{p[1]:02d}:{p[2]:02d}" + (f".{p[3]:0{fsp}d}" if fsp else ""))


def dates() -> st.SearchStrategy[str]:
    """Dates, zero and partial-zero ones too."""
    parts = st.tuples(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31))
    return parts.map(lambda p: f"{p[0]:04d}-{p[1]:02d}-{p[2]:02d}")


def decimals(precision: int, scale: int) -> st.SearchStrategy[str]:
    """Texts with exactly `scale` fractional digits."""

    def text(value: int) -> str:
        digits = str(abs(value)).zfill(scale + 1)
        whole = digits[: len(digits) - scale]
        return ("-" if value < 0 else "") + whole + (f".{digits[len(digits) - scale :]}" if scale else "")

    return st.integers(-(10**precision) + 1, 10**precision - 1).map(text)


def durations(fsp: int) -> st.SearchStrategy[str]:
    """TIMEs with `fsp` digits; -0 does not exist."""

    def text(units: int) -> str:
        seconds, rest = divmod(abs(units), 10**fsp)
        body = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}" + (
            f".{rest:0{fsp}d}" if fsp else ""
        )
        return ("-" if units < 0 else "") + body

    limit = (838 * 3600 + 59 * 60 + 59) * 10**fsp
    return st.integers(-limit, limit).map(text)


def json_values() -> st.SearchStrategy[Any]:
    """JSON documents with every kind of number and character."""
    numbers = st.one_of(
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.integers(-(10**6), 10**6).map(lambda n: n / 1000),
    )
    leaves = st.one_of(
        st.none(), st.booleans(), numbers, st.text(max_size=8), st.sampled_from(["\u2028", '"\\\n', "\x01"])
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=12,
    )


def json_texts() -> st.SearchStrategy[str]:
    """JSON texts in the form in which rows give them back."""
    # Twice: -0.0 becomes the text -0, and that is the integer 0.
    return json_values().map(lambda v: json_text(encode_json(json_text(encode_json(json.dumps(v))))))


def values(tp: Json) -> st.SearchStrategy[Value]:
    """Loader values of a field, each in the one form in which decoding gives it back."""
    kind, unsigned = MysqlType(tp["Tp"]), tp["Flag"] & ColumnFlag.UNSIGNED
    if kind in _INTS:
        bits = _INTS[kind]
        return st.integers(0, 2**bits - 1) if unsigned else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if kind is MysqlType.YEAR:
        return st.integers(0, 2155)
    if kind is MysqlType.FLOAT:
        return st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda f: f + 0.0)
    if kind is MysqlType.DOUBLE:
        return st.floats(allow_nan=False, allow_infinity=False).map(lambda f: f + 0.0)
    if kind is MysqlType.NEWDECIMAL:
        return decimals(tp["Flen"], tp["Decimal"])
    if kind is MysqlType.DATE:
        return dates()
    if kind in (MysqlType.DATETIME, MysqlType.TIMESTAMP):
        return st.tuples(dates(), clock(tp["Decimal"])).map(" ".join)
    if kind is MysqlType.TIME:
        return durations(tp["Decimal"])
    if kind is MysqlType.JSON:
        return json_texts()
    if kind is MysqlType.ENUM:
        return st.integers(0, len(tp["Elems"]))
    if kind is MysqlType.SET:
        return st.integers(0, 2 ** len(tp["Elems"]) - 1)
    if kind is MysqlType.BIT:
        return st.integers(0, 2 ** tp["Flen"] - 1)
    if kind is MysqlType.STRING and tp["Charset"] == "binary":
        return st.binary(max_size=tp["Flen"]).map(lambda b: b.ljust(tp["Flen"], b"\0"))
    if tp["Charset"] == "binary":
        return st.binary(max_size=40)
    # Key columns lose trailing spaces in their sort key, and CHAR has none.
    return st.text(max_size=20).map(lambda s: s.replace("\0", "").rstrip(" ").encode())


def column(column_id: int, offset: int, tp: Json, **more: Any) -> Json:
    """ColumnInfo of a table info."""
    return {"id": column_id, "name": f"c{column_id}", "offset": offset, "type": tp, "state": PUBLIC} | more


def table(columns: list[Json], **more: Any) -> TableInfo:
    """A table info."""
    return TableInfo.from_dict({"id": 77, "name": "t", "cols": columns, "state": PUBLIC} | more)


_KEY_FIELDS = [
    field(MysqlType.LONGLONG),
    field(MysqlType.LONGLONG, ColumnFlag.UNSIGNED),
    field(MysqlType.VARCHAR, 0, 20, -1, "utf8mb4"),
    field(MysqlType.STRING, 0, 20, -1, "utf8mb4"),
    field(MysqlType.VARCHAR, 128, 20),
    field(MysqlType.NEWDECIMAL, 0, 10, 3),
    field(MysqlType.DATETIME, 0, 19, 3),
    field(MysqlType.TIME, 0, 10, 6),
    field(MysqlType.DATE),
    field(MysqlType.DOUBLE),
    field(MysqlType.ENUM, 0, 1, 0, "utf8mb4", ["a", "b"]),
]


@st.composite
def column_lists(draw: st.DrawFn, count: st.SearchStrategy[int]) -> list[Json]:
    """Columns with rising ids that have gaps, some not public, some with defaults."""
    found = []
    column_id = 0
    for offset in range(draw(count)):
        column_id += draw(st.integers(1, 70))
        tp = draw(fields())
        state = draw(st.sampled_from([PUBLIC] * 6 + [int(SchemaState.WRITE_ONLY), int(SchemaState.DELETE_ONLY)]))
        more: Json = {"state": state}
        if draw(st.integers(0, 9)) == 0:
            more |= {"generated_expr_string": "1", "generated_stored": draw(st.booleans())}
        found.append(column(column_id, offset, tp, **more))
    return found


@st.composite
def tables(draw: st.DrawFn) -> TableInfo:
    """A table with a hidden, integer or clustered handle."""
    columns = draw(column_lists(st.integers(1, 8)))
    handle = draw(st.sampled_from(["hidden", "int", "clustered"]))
    if handle == "hidden":
        return table(columns)
    parts = draw(st.integers(1, 2)) if handle == "clustered" else 1
    chosen = [draw(st.sampled_from(_KEY_FIELDS[: 2 if handle == "int" else None])) for _ in range(parts)]
    keys = [
        column(1000 + i, len(columns) + i, tp | {"Flag": tp["Flag"] | ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL})
        for i, tp in enumerate(chosen)
    ]
    if handle == "int":
        return table([*columns, *keys], pk_is_handle=True)
    lengths = [draw(st.sampled_from([-1, 3])) if k["type"]["Tp"] == MysqlType.VARCHAR else -1 for k in keys]
    index = {
        "id": 1,
        "idx_name": "PRIMARY",
        "is_primary": True,
        "is_unique": True,
        "state": PUBLIC,
        "idx_cols": [
            {"name": k["name"], "offset": k["offset"], "length": n} for k, n in zip(keys, lengths, strict=True)
        ],
    }
    return table([*columns, *keys], is_common_handle=True, index_info=[index])


@st.composite
def rows(draw: st.DrawFn, info: TableInfo) -> dict[int, Value]:
    """Values of every column; NULL where the column allows it."""
    found: dict[int, Value] = {}
    for each in info.columns:
        value = values(each.raw["type"])
        found[each.id] = draw(value if each.type.not_null else st.none() | value)
    return found


@st.composite
def later_versions(draw: st.DrawFn, info: TableInfo) -> TableInfo:
    """What the table may be at the commit: columns gone, public by then, new, or of a type that grew; another order."""
    keys = {each.id for each in info.columns if each.type.flag & ColumnFlag.PRI_KEY}
    kept = [
        dict(each.raw) | {"state": PUBLIC, "name": f"n{each.id}", "type": _grown(each.raw["type"])}
        for each in info.columns
        if each.id in keys or draw(st.integers(0, 4))
    ]
    new = [
        column(5000, 0, field(MysqlType.LONG), origin_default="7"),
        column(5001, 0, field(MysqlType.VARCHAR, 1, 20, -1, "utf8mb4")),
        column(5002, 0, field(MysqlType.NEWDECIMAL, 1, 10, 2), origin_default="1.5"),
        column(5003, 0, field(MysqlType.DATETIME, 1, 19, 0)),
        column(5004, 0, field(MysqlType.DOUBLE)),
        column(5005, 0, field(MysqlType.JSON, 1)),
        column(5006, 0, field(MysqlType.STRING, 129, 300)),
        column(5007, 0, field(MysqlType.ENUM, 1, 1, 0, "utf8mb4", ["x", "y"]), origin_default="y"),
        column(5008, 0, field(MysqlType.FLOAT, 1), origin_default="0.1"),
        column(5009, 0, field(MysqlType.DATE, 1), origin_default="2020-02-02"),
    ]
    kept += draw(st.lists(st.sampled_from(new), unique_by=lambda c: c["id"], max_size=4))
    kept = draw(st.permutations(kept))
    return table([c | {"offset": i} for i, c in enumerate(kept)])


def _grown(tp: Json) -> Json:
    """A wider type that TiDB makes of it without rewriting a row."""
    if tp["Tp"] in (MysqlType.DATETIME, MysqlType.TIMESTAMP, MysqlType.TIME):
        return tp | {"Decimal": 6}
    if tp["Tp"] in (MysqlType.ENUM, MysqlType.SET):
        return tp | {"Elems": [*tp["Elems"], "grown"]}
    return tp


def to_float32(value: float) -> float:
    """What a FLOAT holds."""
    return float(np.float32(value))
