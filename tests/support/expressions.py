"""Expressions of generated columns that `pumphouse.schema.expressions` takes, and edge values of the columns they name."""

from __future__ import annotations

from pumphouse.model.table import ColumnInfo, MysqlType
from tests.support.madearchive import column

TEXT = "varchar(200)"
# Of the table: definition, and literals that are tried.
COLUMNS: dict[str, tuple[str, list[str]]] = {
    "i": ("int", ["0", "1", "-7", "2147483647", "NULL", "-2147483648"]),
    "b": ("bigint", ["0", "-1", "1234567", "NULL", "9007199254740993"]),
    "u": ("bigint unsigned", ["0", "5", "18446744073709551615", "NULL", "9223372036854775808"]),
    "d": ("decimal(20,6)", ["0", "1.5", "-2.500001", "NULL", "12345678901234.123456", "-0.000001"]),
    "e": ("decimal(10,2)", ["0", "1.55", "-99999999.99", "NULL", "0.5"]),
    "v": (TEXT, ["''", "'abc'", "' pad '", "'აბგ😀'", "NULL", "'a,b,c'", "'2020-01-02'", "'É%_'", "'x\\\\y'", "'a '"]),
    "w": ("text", ["'Hello World'", "''", "NULL", "'naïve…'", "'a\\nb'"]),
    "z": ("varbinary(20)", ["x'80ff'", "''", "NULL", "x'00'", "'abc'"]),
    "da": ("date", ["'2020-02-29'", "'0000-00-00'", "'2020-02-31'", "NULL", "'1999-12-31'", "'2020-00-00'"]),
    "dt": (
        "datetime(6)",
        ["'2020-02-29 13:14:15.123456'", "'0000-00-00 00:00:00'", "NULL", "'9999-12-31 23:59:59.999999'",
         "'2021-01-01 00:00:00.5'"],
    ),
    "j": (
        "json",
        ['\'{"x":"abc","a":{"b":[1,2.5,{"c":null}]}}\'', '\'{"x":"5"}\'', '\'{"x":5}\'', '\'{"x":true}\'', "'{}'",
         '\'{"x":null}\'', '\'{"x":1.0}\'', '\'{"x":"q\\\\"\\\\\\\\ n\\\\n é 😀 \\\\u0001 /"}\'', '\'{"x":1e20,"y":1}\'',
         '\'{"x":{"b":"v","k":[1,"2"]}}\'', "'[1,2]'", "'\"s\"'", "NULL", '\'{"x":18446744073709551615}\'',
         '\'{"x":-1.5e-10}\'', '\'{"x":[{"y":1},{"y":2}]}\'', '\'{"x":" "}\''],
    ),
}  # fmt: skip
_KINDS = {
    "int": (MysqlType.LONG, {}), "bigint": (MysqlType.LONGLONG, {}),
    "bigint unsigned": (MysqlType.LONGLONG, {"flag": 32}), "decimal(20,6)": (MysqlType.NEWDECIMAL, {"flen": 20, "decimal": 6}),
    "decimal(10,2)": (MysqlType.NEWDECIMAL, {"flen": 10, "decimal": 2}), TEXT: (MysqlType.VARCHAR, {"flen": 200}),
    "text": (MysqlType.BLOB, {}), "varbinary(20)": (MysqlType.VARCHAR, {"flen": 20, "binary": True}),
    "date": (MysqlType.DATE, {}), "datetime": (MysqlType.DATETIME, {}),
    "datetime(6)": (MysqlType.DATETIME, {"flen": 26, "decimal": 6}), "json": (MysqlType.JSON, {}),
    "double": (MysqlType.DOUBLE, {"flen": 22, "decimal": -1}), "decimal(40,10)": (MysqlType.NEWDECIMAL, {"flen": 40, "decimal": 10}),
    "decimal(30,6)": (MysqlType.NEWDECIMAL, {"flen": 30, "decimal": 6}),
}  # fmt: skip
# (type of the column, expression as TiDB prints it)
TAKEN: list[tuple[str, str]] = [
    ("bigint", "`i` + `b`"), ("bigint", "`i` * 2 - 1"), ("decimal(30,6)", "`d` + `e`"), ("decimal(40,10)", "`d` * `e`"),
    ("bigint", "`i` % 16"), ("bigint", "`b` div 7"), ("bigint unsigned", "`u` % 10"), ("bigint", "abs(`i`)"),
    ("bigint", "sign(`b`)"), ("bigint", "-`i`"), ("bigint", "floor(`d`)"), ("bigint", "ceil(`d`)"),
    ("int", "`i` > 5"), ("int", "`i` = `b` or `b` is null"), ("int", "not (`i` between 1 and 5)"),
    ("int", "`i` in (1,2,3)"), ("int", "`d` >= `e`"), ("int", "`i` <=> `b`"), ("int", "`i` xor `b`"),
    (TEXT, "if(`i` > 5, _utf8mb4'a', _utf8mb4'b')"), ("bigint", "case `i` when 1 then 2 else 3 end"),
    (TEXT, "case when `i` > 0 then _utf8mb4'p' when `i` < 0 then _utf8mb4'n' else `v` end"),
    ("bigint", "ifnull(`i`, `b`)"), ("bigint", "coalesce(`i`, `b`, 0)"), ("bigint", "greatest(`i`, `b`)"),
    (TEXT, "concat(`v`, _utf8mb4'x', `w`)"), (TEXT, "concat(`i`, _utf8mb4'-', `v`)"), (TEXT, "concat(`d`)"),
    (TEXT, "concat(`da`, `dt`)"), (TEXT, "concat_ws(_utf8mb4',', `v`, `w`)"), (TEXT, "left(`v`, 2)"),
    (TEXT, "right(`v`, 2)"), (TEXT, "substring(`v`, 2, 3)"), (TEXT, "substr(`v`, -2)"), (TEXT, "mid(`v`, 1, 2)"),
    (TEXT, "substring_index(`v`, _utf8mb4',', -1)"), (TEXT, "replace(`v`, _utf8mb4'a', _utf8mb4'zz')"),
    (TEXT, "trim(`v`)"), (TEXT, "ltrim(`v`)"), (TEXT, "rtrim(`v`)"), (TEXT, "reverse(`v`)"), (TEXT, "repeat(`v`, 2)"),
    ("int", "length(`v`)"), ("int", "char_length(`v`)"), ("int", "bit_length(`w`)"), ("int", "length(`z`)"),
    (TEXT, "md5(`v`)"), (TEXT, "sha1(`z`)"), (TEXT, "sha2(`v`, 256)"), (TEXT, "hex(`v`)"), (TEXT, "hex(`i`)"),
    (TEXT, "lower(hex(`z`))"), ("bigint", "crc32(`z`)"), (TEXT, "to_base64(`z`)"), (TEXT, "upper(md5(`v`))"),
    (TEXT, "lpad(`v`, 5, _utf8mb4'*')"), (TEXT, "rpad(`v`, 5, _utf8mb4'*')"), (TEXT, "`v`"), (TEXT, "`u`"),
    *(("bigint", f"{name}({of})") for of in ("`da`", "`dt`") for name in (
        "year", "month", "day", "dayofmonth", "hour", "minute", "second", "microsecond", "quarter", "dayofweek",
        "weekday", "dayofyear", "to_days")),
    ("date", "date(`dt`)"), ("date", "date(`da`)"), ("date", "last_day(`dt`)"), ("date", "`da`"),
    ("bigint", "year(`da`) * 100 + month(`da`)"), ("int", "`dt` is null"),
    (TEXT, "json_unquote(json_extract(`j`, _utf8mb4'$.x'))"), (TEXT, "json_unquote(json_extract(`j`, _utf8mb4'$.a.b'))"),
    ("json", "json_extract(`j`, _utf8mb4'$.x')"), ("int", "json_extract(`j`, _utf8mb4'$.x') is null"),
    (TEXT, "concat(json_unquote(json_extract(`j`, _utf8mb4'$.x')), _utf8mb4'z')"), (TEXT, "_utf8mb4'it'"), ("int", "1"),
]  # fmt: skip
# Others there, refused there, or not looked at.
NOT_TAKEN: list[tuple[str, str]] = [
    ("int", "json_extract(`j`, _utf8mb4'$.x')"), ("date", "json_extract(`j`, _utf8mb4'$.x')"),
    ("int", "json_unquote(json_extract(`j`, _utf8mb4'$.x'))"), (TEXT, "json_unquote(json_extract(`j`, _utf8mb4'$[0]'))"),
    (TEXT, "json_unquote(json_extract(`v`, _utf8mb4'$.x'))"), (TEXT, "json_extract(`j`, _utf8mb4'$.x')"),
    (TEXT, "json_type(`j`)"), ("int", "json_length(`j`, _utf8mb4'$.x')"), ("int", "cast(`v` as unsigned)"),
    (TEXT, "upper(`v`)"), (TEXT, "lower(`v`)"), ("int", "`v` = _utf8mb4'a'"), ("int", "`v` like _utf8mb4'a%'"),
    (TEXT, "date_format(`dt`, _utf8mb4'%Y-%m')"), ("bigint", "week(`da`)"), (TEXT, "dayname(`da`)"), ("datetime", "`dt`"),
    ("date", "`dt`"), ("bigint", "`i` % `b`"), ("bigint", "`i` % 0"), ("bigint", "`i` / 7"), ("bigint", "`d`"),
    ("bigint", "`u` - `b`"), ("double", "`i`"), (TEXT, "uuid()"), (TEXT, "any_value(`v`)"), (TEXT, "concat(`z`)"),
    (TEXT, "`v` collate utf8mb4_0900_ai_ci"), (TEXT, "_latin1'a'"), (TEXT, "_utf8mb4'it''s'"), (TEXT, "concat(`v`, _utf8mb4'a\\\\b')"),
    (TEXT, "convert(`v` using gbk)"), ("bigint", "round(2.5e0)"), ("decimal(40,10)", "`d` * `d` * `d` * `d`"),
    ("bigint", "`nothing` + 1"), ("bigint", "(`i`, `b`)"), ("bigint", "("), ("bigint", ""), ("bigint", "`i` `b`"),
    ("bigint", "coalesce()"), ("bigint", "(" * 5000 + "`i`" + ")" * 5000), ("int", "`i` = ANY (select 1)"),
]  # fmt: skip


def infos() -> dict[str, ColumnInfo]:
    """The columns, by name."""
    return {name: info(name, kind) for name, (kind, _) in COLUMNS.items()}


def info(name: str, kind: str, expression: str = "") -> ColumnInfo:
    """One column."""
    tp, more = _KINDS[kind]
    return ColumnInfo.from_dict(column(1, name, tp, generated_expr_string=expression, **more))
