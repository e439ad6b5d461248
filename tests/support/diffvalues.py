"""A table with every type of column on one server twice: each value counts for the comparer, and its statements bring it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pumphouse.diff.compare import DiffReport, compare
from pumphouse.diff.fix import FixFile
from pumphouse.mysql.dsn import Dsn

EVERY = """
 id INT {key}, ti TINYINT, bu BIGINT UNSIGNED, iz INT(9) ZEROFILL, f FLOAT, d DOUBLE, n DECIMAL(30,10), b BIT(9),
 y YEAR, da DATE, dt DATETIME(6), ts TIMESTAMP(3) NULL, ti2 TIME(2), c CHAR(9), v VARCHAR(300), l VARCHAR(9) CHARACTER SET latin1,
 bi BINARY(4), vb VARBINARY(600), t LONGTEXT, bl LONGBLOB, e ENUM('a','b'), s SET('x','y'), j JSON,
 g INT AS (id + 1) VIRTUAL, st INT AS (id + 2) STORED"""
VALUES: dict[str, tuple[str, ...]] = {
    "ti": ("-128", "NULL"), "bu": ("18446744073709551615", "0"), "iz": ("7", "NULL"), "f": ("0.1", "-0e0", "0e0", "3e38"),
    "d": ("0.1", "-0e0", "0e0", "1e300", "0.30000000000000004"), "n": ("-1.0000000001", "0"), "b": ("b'101'", "0"),
    "y": ("2026", "0"), "da": ("'0000-00-00'", "'2026-01-02'"), "dt": ("'2026-01-02 03:04:05.678901'", "NULL"),
    "ts": ("'2026-01-02 03:04:05.678'", "NULL"), "ti2": ("'-12:34:56.78'", "NULL"), "c": ("'a'", "''"),
    "v": ("'é漢🚰\\\\n'", "REPEAT('x', 257)", "'A '"), "l": ("'é'", "'e'"), "bi": ("x'00ff'", "NULL"),
    "vb": ("x''", "REPEAT(x'00ff', 200)"), "t": ("REPEAT('漢', 90000)", "''"), "bl": ("x'00'", "REPEAT(x'ff', 70000)"),
    "e": ("'b'", "1"), "s": ("'x,y'", "''"), "j": ("'{\"k\": 3.5}'", "'[]'", "NULL"),
}  # fmt: skip
_LOOSE = "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'"


def each_value_counts(dsn: Dsn, key: str, path: Path, *, signs: bool, apply: Callable[[Path], None]) -> None:
    """Change one value after the other, then run what the comparer writes.

    Args:
        dsn: the server.
        key: of the first column, or ''.
        path: for the statements.
        signs: the server prints -0.
        apply: runs a file.
    """

    def run(*statements: str) -> None:
        with dsn.connect(autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def diff(fix: FixFile | None = None) -> DiffReport:
        return compare(dsn, dsn, schemas={"va": "vb"}, connections=3, fix=fix)

    def differing() -> list[str]:
        return [each.side for each in diff().differences if each.kind == "row"]

    for schema in ("va", "vb"):
        run(f"DROP DATABASE IF EXISTS {schema}", f"CREATE DATABASE {schema}")
        run(f"CREATE TABLE {schema}.t ({EVERY.format(key=key)}) CHARSET utf8mb4")
    rows = []
    for number in range(12):
        values = [each[(number + at) % len(each)] for at, each in enumerate(VALUES.values())]
        rows.append(f"({number}, {', '.join(values)})")
    insert = f"(id, {', '.join(VALUES)}) VALUES {', '.join(rows)}"
    run(_LOOSE, f"INSERT INTO va.t {insert}", f"INSERT INTO vb.t {insert}")
    assert diff().equal
    for name, (one, other, *_) in VALUES.items():
        run(_LOOSE, f"UPDATE vb.t SET {name} = {one} WHERE id = 1", f"UPDATE va.t SET {name} = {other} WHERE id = 1")
        assert differing() == ["source", "target"], name
    run("UPDATE va.t SET d = 0, f = 0 WHERE id = 2", "UPDATE vb.t SET d = -0e0, f = 0 WHERE id = 2")
    assert len(differing()) == (4 if signs else 2)
    with FixFile.made(path, "test") as fix:
        assert not diff(fix).equal
    apply(path)
    assert diff().differences == []
    run("DROP DATABASE va", "DROP DATABASE vb")
