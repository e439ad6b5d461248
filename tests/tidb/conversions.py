"""What TiDB's MODIFY COLUMN makes of values, recorded: `python -m tests.tidb.conversions` writes tests/recorded/conversions.json.

Of each pair of types one table of edge values is changed, in strict mode without the values that TiDB refuses, and
without strict mode with all of them. The default suite holds the statements that we render against it, on MariaDB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection

from pumphouse.mysql.dsn import Dsn
from tests.support.tidb import UnistoreServer

RECORDED = Path(__file__).resolve().parents[1] / "recorded" / "conversions.json"

_NUMERIC_TEXTS = (
    "'0'", "'-1.6'", "'1.5'", "'2.5'", "'-0.4'", "'12'", "' 12'", "'12 '", "'1e3'", "'1.25e-3'", "'127.4'", "'+7'", "'.5'", "'5.'", "'007'",
    "'-128'", "'9223372036854775807'", "'18446744073709551615'", "'99999999999999999999'", "'9007199254740993'", "'12abc'", "'0x1F'", "'1e400'", "'0.1'", "'16777217'",
)  # fmt: skip
_OTHER_TEXTS = (
    "''", "'abc'", "'a  '", "'  '", "'é中😀'", "'b'", "'B'", "'1'", "'1,3'", "'2024-02-29'", "'2024-02-29 23:59:59.5'", "'2024-02-30'", "'20240229'", "'24-1-2'",
    "'2024-01-02T03:04:05'", "'12:34:56'", "'12:34:56.789'", "'-838:59:59'", "'1 02:03:04'", "'{\"a\": [1, 2.0]}'", "'[1]'", "'null'", "'\"x\"'", "'true'", "'0000-00-00'",
    "'69'", "'70'", "'2155'",
)  # fmt: skip
_TEXTS = (*_NUMERIC_TEXTS, *_OTHER_TEXTS)
_DAYS = (
    "'0000-00-00'",
    "'1000-01-01'",
    "'2024-02-29'",
    "'9999-12-31'",
    "'1970-01-02'",
    "'2038-01-19'",
    "'1999-12-31'",
    "'2024-00-00'",
)
_MOMENTS = tuple(
    f"'{day} {clock}'"
    for day, clock in (
        ("0000-00-00", "00:00:00"), ("1000-01-01", "00:00:00"), ("2024-02-29", "12:34:56.789012"), ("2024-12-31", "23:59:59.999999"), ("2024-12-31", "23:59:59.5"),
        ("2024-01-01", "00:00:00.4"), ("2000-06-15", "08:00:00"), ("2037-12-31", "23:59:59.499999"), ("1970-01-01", "00:00:01"),
    )
)  # fmt: skip
_STAMPS = (*_MOMENTS[:1], *_MOMENTS[2:])
_TIMES = (
    "'00:00:00'",
    "'12:34:56'",
    "'12:34:56.789012'",
    "'-12:34:56.5'",
    "'838:59:59'",
    "'-838:59:59'",
    "'23:59:59.999999'",
    "'00:00:00.4'",
    "'-00:00:01.5'",
    "'100:00:00'",
)
_REALS = (
    "0", "1.5", "-1.5", "2.5", "0.5", "-0.5", "0.1", "-0.1", "127.4", "127.5", "1e-7", "1.5e-5", "0.0001", "123456.7", "1234567", "16777216", "1e10", "1e14", "1e15", "1e16", "1e20",
    "-1e20", "1.17549435e-38", "2024", "20240229", "20240229123456", "123456", "3.14159274", "2.00001", "99999999.99", "4294967295", "1e30", "1.1e-30",
)  # fmt: skip
_DOUBLES = (
    "123456789.123", "9007199254740993", "1.7976931348623157e308", "-1.7976931348623157e308", "2.2250738585072014e-308", "5e-324", "1e22", "1.2345678901234567e25", "123456789012345680",
    "1234567890123456.5", "0.000012345678901234567", "9223372036854775807", "18446744073709551615", "0.30000000000000004", "100", "2155", "1e300", "1e-300",
)  # fmt: skip
_BYTES = ("''", "X'00'", "X'61'", "X'6100'", "X'ff80'", "X'c3a9'", "'12'", "'-1.6'", "'1.5'", "'abc'", "'a '", "'2024-02-29'", "'12:34:56'", "'{\"a\": 1}'", "'b'")  # fmt: skip
_JSONS = tuple(
    f"'{text}'"
    for text in ("null", "true", "0", "-1.6", "1.5", "2.5", "1e20", "1.0", "18446744073709551615", '"abc"', '"12"', '"-1.6"', '"2024-02-29"', '"12:34:56"', "{}", "[]", '{"b": 1, "a": [1.0, "é", null]}', "1e-7", '""')
)  # fmt: skip

# Type -> SQL literals that it takes in strict mode, but for zero dates.
VALUES: dict[str, tuple[str, ...]] = {
    "tinyint": ("0", "1", "-1", "127", "-128", "70", "69"),
    "tinyint unsigned": ("0", "1", "255", "128"),
    "smallint": ("0", "-1", "2024", "32767", "-32768", "1901"),
    "int": ("0", "1", "-1", "2155", "2147483647", "-2147483648", "123456", "20240229", "255", "128", "100", "16777217"),
    "int unsigned": ("0", "1", "2155", "4294967295", "20240229", "128"),
    "bigint": ("0", "-1", "9223372036854775807", "-9223372036854775808", "20240229123456", "9007199254740993", "3", "2147483648", "99", "16777217"),
    "int(6) zerofill": ("0", "7", "123456", "4294967295"),
    "bigint unsigned": ("0", "18446744073709551615", "9223372036854775808", "20240229123456", "7"),
    "float": (*_REALS, "3.4028234e38", "-3.4028234e38", "1e-45", "16777217", "8388608.5", "0.3", "1.1754942e-38", "33554432", "999999", "9999999", "100000"),
    "double": (*_REALS, *_DOUBLES),
    "decimal(20,5)": ("0", "0.5", "-0.5", "1.5", "2.5", "-1.5", "0.00001", "123456789012345.12345", "-999999999999999.99999", "127.4", "127.5", "20240229", "2024.1", "12.345", "9007199254740.993"),
    "decimal(65,30)": ("0", "0.5", "0.1", "-0.000000000000000000000000000001", "12345678901234567890123456789012345.123456789012345678901234567890", "1.005", "18446744073709551615", "99999999999.999"),
    "decimal(10,0)": ("0", "-1", "9999999999", "2024", "127", "3"),
    "bit(1)": ("0", "1"),
    "bit(8)": ("0", "1", "65", "127", "255", "49"),
    "bit(64)": ("0", "1", "18446744073709551615", "9223372036854775808", "16706"),
    "year": ("0", "1901", "2155", "2024", "2000", "1970"),
    "date": _DAYS,
    "datetime": _MOMENTS,
    "datetime(3)": _MOMENTS,
    "datetime(6)": _MOMENTS,
    "timestamp": _STAMPS,
    "timestamp(6)": _STAMPS,
    "time": _TIMES,
    "time(3)": _TIMES,
    "time(6)": _TIMES,
    "char(60)": _TEXTS,
    "varchar(60)": _TEXTS,
    "text": _TEXTS,
    "varchar(60) character set latin1": ("''", "'12'", "'-1.6'", "'é中😀'", "'a '", "'b'"),
    "varchar(60) character set gbk": ("''", "'12'", "'-1.6'", "'é中'", "'中文'", "'a '", "'b'"),
    "binary(12)": _BYTES,
    "varbinary(60)": _BYTES,
    "blob": _BYTES,
    "enum('1','b','é','2024-02-29')": ("1", "2", "3", "4", "0"),
    "set('1','b','é')": ("0", "1", "2", "3", "7"),
    "json": _JSONS,
}  # fmt: skip
TARGETS = (
    *VALUES, "float unsigned", "double unsigned", "decimal(5,1)", "decimal(30,10) unsigned", "double(10,2)", "char(3)", "varchar(3)", "varchar(200)", "tinytext", "longtext", "binary(4)", "binary(60)",
    "varbinary(3)", "longblob", "enum('1','b','é','2024-02-29','more')", "set('1','b','é','more')",
)  # fmt: skip


class Recorder:
    """One TiDB. A table for each type, with a column for each type that it is changed into; all of them may be NULL."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self.fields: dict[str, dict[str, Any]] = {}
        for number, new in enumerate(TARGETS):
            self.run(f"CREATE TABLE probe{number} (id INT PRIMARY KEY, c {new} NULL)")
            self.fields[new] = self._field()

    def run(self, sql: str) -> Sequence[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()

    def row(self, old: str, *, strict: bool) -> dict[str, list[str | None]]:
        """Type -> what becomes of each value, None where it is refused; types without a MODIFY are left out."""
        values = VALUES[old]
        self.run("SET sql_mode = ''")
        self.run("DROP TABLE IF EXISTS t")
        columns = [f"c{number}" for number in range(len(TARGETS))]
        self.run(f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(f'{c} {old} NULL' for c in columns)})")
        for number, value in enumerate(values):
            self.run(f"INSERT INTO t VALUES ({number}{f', {value}' * len(columns)})")
        self.run(f"SET sql_mode = '{'STRICT_TRANS_TABLES' if strict else ''}'")
        found = {}
        for number, new in enumerate(TARGETS):
            if new == old:
                continue
            if strict:
                for each in range(len(values)):
                    try:
                        self.run(f"INSERT INTO probe{number} SELECT id, c{number} FROM t WHERE id = {each}")
                    except pymysql.MySQLError:
                        self.run(f"UPDATE t SET c{number} = NULL WHERE id = {each}")
                self.run(f"DELETE FROM probe{number}")
            if self._modify("t", number, new):
                rows = self.run(f"SELECT {shown(new).replace('{}', f'c{number}')} FROM t ORDER BY id")
                found[new] = [_text(value) for (value,) in rows]
        return found

    def _modify(self, table: str, number: int, new: str) -> bool:
        """Change a type, if need be without the values that are refused; False where there is no such MODIFY."""
        alter = f"ALTER TABLE {table} MODIFY c{number} {new} NULL"
        try:
            self.run(alter)
            return True
        except pymysql.MySQLError as error:
            if error.args[0] in {8200, 8201, 1235} or table != "t":
                return False
        for (each,) in self.run("SELECT id FROM t"):
            self.run("DROP TABLE IF EXISTS one")
            self.run("CREATE TABLE one LIKE t")
            self.run(f"INSERT INTO one (id, c{number}) SELECT id, c{number} FROM t WHERE id = {each}")
            if not self._modify("one", number, new):
                self.run(f"UPDATE t SET c{number} = NULL WHERE id = {each}")
        self.run(alter)
        return True

    def _field(self) -> dict[str, Any]:
        """The type of the last created table's column c, as TiDB's job has it."""
        ((meta,),) = self.run("SELECT job_meta FROM mysql.tidb_ddl_history ORDER BY job_id DESC LIMIT 1")
        columns = json.loads(meta)["binlog"]["TableInfo"]["cols"]
        field: dict[str, Any] = next(c for c in columns if c["name"]["L"] == "c")["type"]
        return {key: field[key] for key in ("Tp", "Flag", "Flen", "Decimal", "Charset", "Collate", "Elems")}


def shown(kind: str) -> str:
    """Expression of a column {} whose text tells its values apart, the same on each server."""
    if kind.startswith("float"):
        return "CAST({} AS DOUBLE)"  # printed as FLOAT it has six digits
    if kind.startswith(("enum", "set", "double", "tinyint", "smallint", "int", "bigint", "bit", "year")):
        return "{} + 0"
    if "binary" in kind or "blob" in kind:
        return "HEX({})"
    return "HEX(CONVERT({} USING utf8mb4))" if "char" in kind or "text" in kind else "CAST({} AS CHAR)"


def _text(value: Any) -> str | None:
    return (
        None
        if value is None
        else value.decode()
        if isinstance(value, bytes)
        else repr(value)
        if isinstance(value, float)
        else str(value)
    )


def record(dsn: Dsn, only: str = "") -> dict[str, Any]:
    """Everything, or the pairs that begin with a type."""
    with dsn.connect(autocommit=True) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute("SET GLOBAL tidb_ddl_enable_fast_reorg = OFF")
            cursor.execute("CREATE DATABASE c")
            cursor.execute("USE c")
        recorder = Recorder(connection)
        strict, loose = {}, {}
        for old in VALUES:
            if old.startswith(only):
                strict[old], loose[old] = recorder.row(old, strict=True), recorder.row(old, strict=False)
                print(old, len(strict[old]), len(loose[old]), file=sys.stderr, flush=True)
    return {"fields": recorder.fields, "values": VALUES, "strict": strict, "loose": loose}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="types that begin so; printed instead of written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, UnistoreServer(Path(directory)) as server:
        found = record(Dsn(port=server.port), options.only)
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    if options.only:
        print(text)
    else:
        RECORDED.parent.mkdir(exist_ok=True)
        RECORDED.write_text(text.replace('},"', '},\n"').replace('],"', '],\n"') + "\n")


if __name__ == "__main__":
    main()
