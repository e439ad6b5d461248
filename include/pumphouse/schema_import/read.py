"""What a server has: databases, tables, views and sequences, as the infos that DDL jobs carry, without ids.

A rule divides what no job can say. What decides which rows a table can hold, or how its values read, is *refused*: a
type that binlogs do not know, a character set without a twin, system versioning. What does not is *left out* and named:
foreign keys, triggers, FULLTEXT indexes, storage options.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.cursors import DictCursor
from pymysql.err import MySQLError

from pumphouse.errors import ConfigError, SchemaError
from pumphouse.loader.grants import in_columns_alone, missing_privileges
from pumphouse.model.binlog import SchemaState
from pumphouse.model.table import ColumnFlag
from pumphouse.schema.actions import is_system
from pumphouse.schema.dialect import JSON_TYPE, Dialect, charset_sql, json_of_check
from pumphouse.schema.ident import literal, qualified, quote
from pumphouse.schema_import.columns import Inexpressible, Raw, Row, column_info, is_integer, named
from pumphouse.schema_import.shown import Shown

Name = tuple[str, str]

_PUBLIC = SchemaState.PUBLIC.value
_PARTITION_KINDS = {"RANGE": 1, "HASH": 2, "LIST": 3, "KEY": 4}
_READS = 10


@dataclass(slots=True)
class Found:
    """A server's schema. ``databases``: DBInfo by name; ``tables``: TableInfo by (database, name); all ids are 0."""

    databases: dict[str, Raw] = field(default_factory=dict)
    tables: dict[Name, Raw] = field(default_factory=dict)
    kept: set[Name] = field(default_factory=set)
    """Views that read what is not there: whatever the history says of them stays."""
    notes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def read_schema(
    connection: Connection[Any], database: str, skip: Iterable[str], own: Collection[str] = (), *, still: bool = False
) -> tuple[Found, Dialect]:
    """Describe the server, or one database of it; what ``skip`` names (DB, DB.TABLE) is left alone.

    ``own``: databases of restores of parts, in lower case; what the history has of one is still to be dropped.
    ``still``: nobody else can change the server: one look is enough.

    Raises:
        ConfigError: the server is a TiDB.
        SchemaError: something is refused; all of it is named.
    """
    dialect = Dialect.of_version(str(_Reader.value(connection, "SELECT VERSION()")))
    if dialect is Dialect.TIDB:
        raise ConfigError(
            "the server is a TiDB, which writes its DDL jobs itself",
            hint="set schema.history to its status API, as http://tidb:10080",
        )
    skipped = {each.lower() for each in skip}
    found = _Reader(connection, dialect, database, skipped, own).read()
    for _ in range(0 if still else _READS):
        # The views of information_schema are read one after the other: a DDL in between would tear the picture.
        again = _Reader(connection, dialect, database, skipped, own).read()
        if (again.databases, again.tables) == (found.databases, found.tables):
            break
        found = again
    else:
        if not still:
            raise SchemaError("the schema changes all the time", hint="run it when no DDL is under way")
    if found.refused:
        raise SchemaError(
            "DDL jobs cannot say this: " + "; ".join(found.refused),
            hint="change it on the server, or leave the tables alone with --skip DB.TABLE",
        )
    return found, dialect


class _Reader:
    def __init__(
        self, connection: Connection[Any], dialect: Dialect, database: str, skipped: set[str], own: Collection[str]
    ) -> None:
        self._connection = connection
        self._dialect = dialect
        self._only = database
        self._skipped = {*skipped}
        self._own = own
        self._unmet = {each for each in skipped if not database or each.partition(".")[0] == database.lower()}
        self._found = Found()

    def read(self) -> Found:
        if self._dialect is Dialect.MYSQL:
            self._rows("SET SESSION information_schema_stats_expiry = 0")
        for row in self._rows(
            "SELECT SCHEMA_NAME AS name, DEFAULT_CHARACTER_SET_NAME AS charset, DEFAULT_COLLATION_NAME AS collation"
            " FROM information_schema.SCHEMATA ORDER BY SCHEMA_NAME"
        ):
            name = str(row["name"])
            self._unmet.discard(name.lower())
            if is_system(name) or name.lower() in self._skipped or (self._only and name != self._only):
                continue
            if name.lower() in self._own:
                self._found.notes.append(f"{name}: restores of tables are made in this database (`restore --table`)")
                continue
            self._check_charset(name, str(row["charset"]), str(row["collation"]))
            self._found.databases[name] = {
                "id": 0,
                "db_name": named(name),
                "charset": str(row["charset"]),
                "collate": str(row["collation"]),
                "state": _PUBLIC,
                "policy_ref_info": None,
            }
        if self._found.databases:
            self._unseen()
            self._read_tables()
            self._left_out()
        self._found.notes += [
            f"{each}: --skip names it, and the server has nothing of that name" for each in sorted(self._unmet)
        ]
        return self._found

    # -- queries

    @staticmethod
    def value(connection: Connection[Any], sql: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            row = cursor.fetchone()
        return row[0] if row else None

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        with self._connection.cursor(DictCursor) as cursor:
            cursor.execute(sql)
            return [{str(key).lower(): value for key, value in row.items()} for row in cursor.fetchall()]

    def _of(self, view: str, columns: str, where: str = "", order: str = "", schema: str = "TABLE_SCHEMA") -> list[Row]:
        """Rows of a view of information_schema about our databases."""
        names = ",".join(map(literal, self._found.databases))
        sql = f"SELECT {columns} FROM information_schema.{view} WHERE {schema} IN ({names}){where}"  # noqa: S608
        return list(self._rows(sql + (f" ORDER BY {order}" if order else "")))

    def _by_table(self, rows: Iterable[Row]) -> dict[Name, list[Row]]:
        out: dict[Name, list[Row]] = {}
        for row in rows:
            out.setdefault((str(row["table_schema"]), str(row["table_name"])), []).append(row)
        return out

    # -- tables

    def _read_tables(self) -> None:
        columns = self._by_table(
            self._of(
                "COLUMNS",
                "TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_DEFAULT, IS_NULLABLE, DATA_TYPE, CHARACTER_SET_NAME,"
                " COLLATION_NAME, COLUMN_TYPE, EXTRA, COLUMN_COMMENT, GENERATION_EXPRESSION",
                order="TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION",
            )
        )
        checks = self._by_table(self._checks())
        partitions = self._by_table(
            self._of(
                "PARTITIONS",
                "TABLE_SCHEMA, TABLE_NAME, PARTITION_NAME, SUBPARTITION_NAME, PARTITION_METHOD, PARTITION_EXPRESSION,"
                " PARTITION_DESCRIPTION, PARTITION_COMMENT, SUBPARTITION_ORDINAL_POSITION",
                " AND PARTITION_NAME IS NOT NULL",
                "TABLE_SCHEMA, TABLE_NAME, PARTITION_ORDINAL_POSITION, SUBPARTITION_ORDINAL_POSITION",
            )
        )
        for row in self._of(
            "TABLES",
            "TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, AUTO_INCREMENT, TABLE_COLLATION, TABLE_COMMENT",
            order="TABLE_SCHEMA, TABLE_NAME",
        ):
            name = str(row["table_schema"]), str(row["table_name"])
            self._unmet.discard(".".join(name).lower())
            if ".".join(name).lower() in self._skipped:
                continue
            kind = str(row["table_type"])
            if kind == "BASE TABLE":
                raw = self._table(name, row, columns.get(name, []), checks.get(name, []), partitions.get(name, []))
                self._found.tables[name] = raw
            elif kind == "SEQUENCE":
                self._found.tables[name] = self._sequence(name)
            elif kind != "VIEW":
                self._found.refused.append(f"{'.'.join(name)} is a {kind.lower()} table")
        self._views(columns)
        folded: dict[tuple[str, ...], Name] = {}
        for name in self._found.tables:
            other = folded.setdefault(tuple(part.lower() for part in name), name)
            if other != name:
                self._found.refused.append(f"{'.'.join(other)} and {'.'.join(name)} differ in case only")

    def _table(
        self, name: Name, row: Row, columns: Sequence[Row], checks: Sequence[Row], partitions: Sequence[Row]
    ) -> Raw:
        shown = Shown(self._connection, self._dialect, name)
        if shown.has_period:
            self._refuse(name, "it has a PERIOD")
        for column in shown.cut_defaults():
            self._found.refused.append(f"{'.'.join(name)}.{column}: the default has bytes that are no text")
        if str(row["engine"]) != "InnoDB":
            self._note(name, f"its engine is {row['engine']}: on a target it is InnoDB")
        raw = blank(name[1])
        raw["collate"] = str(row["table_collation"])
        raw["charset"] = raw["collate"].partition("_")[0]
        raw["comment"] = str(row["table_comment"] or "")
        raw["auto_inc_id"] = int(row["auto_increment"] or 0)
        self._check_charset(".".join(name), raw["charset"], raw["collate"])
        json = {_checked_json(check) for check in checks} - {""}
        raw["cols"] = [self._column(name, each, json, shown) for each in columns]
        kept = [self._check(name, check, shown) for check in checks if not self._is_json(columns, check)]
        raw["constraint_info"] = self._constraints(kept) or None
        self._indexes(name, raw)
        if partitions:
            raw["partition"] = self._partition(name, partitions, shown)
        return raw

    def _is_json(self, columns: Sequence[Row], check: Row) -> bool:
        name = _checked_json(check)
        return any(column["column_name"] == name and _json_column(column, {name}) for column in columns)

    def _check(self, name: Name, row: Row, shown: Shown) -> Row:
        try:
            return shown.check(row)
        except Inexpressible as error:
            self._refuse(name, f"the check {row['constraint_name']}: {error}")
            return row

    def _column(self, name: Name, row: Row, json: set[str], shown: Shown) -> Raw:
        notes: list[str] = []
        place = f"{'.'.join(name)}.{row['column_name']}"
        try:
            raw = column_info(shown.column(row), self._dialect, json=_json_column(row, json), notes=notes)
        except Inexpressible as error:
            self._found.refused.append(f"{place}: {error}")
            return {"name": named(str(row["column_name"])), "type": {"Tp": 0, "Flag": 0}}
        self._found.notes += [f"{place}: {note}" for note in notes]
        if raw["type"]["Charset"] != "binary":
            self._check_charset(place, raw["type"]["Charset"], raw["type"]["Collate"])
        return raw

    def _checks(self) -> list[Row]:
        if self._dialect is Dialect.MARIADB:
            return self._of(
                "CHECK_CONSTRAINTS",
                "CONSTRAINT_SCHEMA AS table_schema, TABLE_NAME, CONSTRAINT_NAME, LEVEL, CHECK_CLAUSE,"
                " 'YES' AS enforced",
                schema="CONSTRAINT_SCHEMA",
            )
        names = ",".join(map(literal, self._found.databases))
        return list(
            self._rows(
                "SELECT t.TABLE_SCHEMA, t.TABLE_NAME, t.CONSTRAINT_NAME, 'Table' AS level, t.ENFORCED,"  # noqa: S608
                " c.CHECK_CLAUSE"
                " FROM information_schema.TABLE_CONSTRAINTS t JOIN information_schema.CHECK_CONSTRAINTS c"
                " USING (CONSTRAINT_SCHEMA, CONSTRAINT_NAME)"
                f" WHERE t.CONSTRAINT_TYPE = 'CHECK' AND t.TABLE_SCHEMA IN ({names})"
            )
        )

    def _constraints(self, checks: Sequence[Row]) -> list[Raw]:
        """Checks; one that MariaDB keeps with a column is one of the table, under the column's name."""
        taken = {str(check["constraint_name"]).lower() for check in checks if check["level"] != "Column"}
        out = []
        for number, check in enumerate(checks, 1):
            name = str(check["constraint_name"])
            if check["level"] == "Column":
                while name.lower() in taken:
                    name += "_check"
                taken.add(name.lower())
            out.append(
                {
                    "id": number,
                    "constraint_name": named(name),
                    "tbl_name": named(""),
                    "constraint_cols": None,
                    "enforced": check["enforced"] == "YES",
                    "in_column": False,
                    "expr_string": str(check["check_clause"]),
                    "state": _PUBLIC,
                }
            )
        return out

    def _indexes(self, name: Name, raw: Raw) -> None:
        parts: dict[str, list[Row]] = {}
        for row in self._rows(f"SHOW INDEX FROM {qualified(*name)}"):
            parts.setdefault(str(row["key_name"]), []).append(row)
        columns = {column["name"]["L"]: column for column in raw["cols"]}
        indexes = []
        for key, rows in parts.items():
            kind = str(rows[0]["index_type"])
            if kind not in ("BTREE", "HASH") or any(row.get("expression") for row in rows):
                what = "an expression" if any(row.get("expression") for row in rows) else f"of type {kind}"
                self._note(name, f"the index {key} is {what}: a target does not have it")
                continue
            if any(row["collation"] == "D" for row in rows):
                self._note(name, f"the index {key} is descending: on a target it is ascending")
            named_columns = [columns[str(row["column_name"]).lower()] for row in rows]
            if key == "PRIMARY":
                whole = len(rows) == 1 and is_integer(named_columns[0])
                raw["pk_is_handle"], raw["is_common_handle"] = whole, not whole
                raw["common_handle_version"] = int(not whole)
                for column in named_columns:
                    column["type"]["Flag"] |= int(ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL)
                if whole:
                    continue
            else:
                single = not int(rows[0]["non_unique"]) and len(rows) == 1
                flag = ColumnFlag.UNIQUE_KEY if single else ColumnFlag.MULTIPLE_KEY
                named_columns[0]["type"]["Flag"] |= int(flag)
            indexes.append(_index(key, rows))
        raw["index_info"] = indexes or None

    def _partition(self, name: Name, rows: Sequence[Row], shown: Shown) -> Raw | None:
        method = str(rows[0]["partition_method"])
        words = method.split()
        linear, words = words[0] == "LINEAR", [word for word in words if word not in ("LINEAR", "COLUMNS")]
        kind = _PARTITION_KINDS.get(words[0])
        if kind is None:
            self._refuse(name, f"it is partitioned by {method}")
            return None
        if linear:
            self._note(name, f"it is partitioned by {method}: on a target by {words[0]}")
        if any(row["subpartition_name"] is not None for row in rows):
            self._note(name, "it has subpartitions: on a target it has not")
        expression = str(rows[0]["partition_expression"] or "")
        by_columns = "COLUMNS" in method or kind == _PARTITION_KINDS["KEY"]
        definitions = []
        for row in rows:
            if row["subpartition_ordinal_position"] not in (None, 1):
                continue
            bound = "DEFAULT" if shown.is_rest(str(row["partition_name"])) else str(row["partition_description"] or "")
            definitions.append(
                {
                    "id": 0,
                    "name": named(str(row["partition_name"])),
                    "less_than": [bound] if words[0] == "RANGE" else None,
                    "in_values": [[bound]] if words[0] == "LIST" else None,
                    "policy_ref_info": None,
                    "comment": str(row["partition_comment"] or ""),
                }
            )
        return {
            "type": kind,
            "expr": "" if by_columns else expression,
            "columns": [named(part) for part in _columns_in(expression)] if by_columns else None,
            "enable": True,
            "definitions": definitions,
            "adding_definitions": None,
            "dropping_definitions": None,
            "states": None,
            "num": len(definitions),
            "ddl_state": 0,
        }

    # -- views and sequences

    def _views(self, columns: dict[Name, list[Row]]) -> None:
        algorithm = "ALGORITHM" if self._dialect is Dialect.MARIADB else "'UNDEFINED' AS algorithm"
        for row in self._of(
            "VIEWS",
            f"TABLE_SCHEMA, TABLE_NAME, VIEW_DEFINITION, CHECK_OPTION, SECURITY_TYPE, {algorithm}",
            order="TABLE_SCHEMA, TABLE_NAME",
        ):
            name = str(row["table_schema"]), str(row["table_name"])
            if ".".join(name).lower() in self._skipped:
                continue
            if self._broken(name):
                self._found.kept.add(name)
                self._note(name, "the view reads what is not there: left out")
                continue
            if not row["view_definition"]:
                self._refuse(name, "the user may not see the view's text (SHOW VIEW)")
                continue
            select = str(row["view_definition"])
            try:
                select = Shown(self._connection, self._dialect, name).select(select) if "?" in select else select
            except Inexpressible:
                self._note(name, "characters beyond U+FFFF in its text are ? on a target")
            if row["check_option"] not in ("NONE", None, ""):
                self._note(name, "WITH CHECK OPTION is left out")
            raw = blank(name[1]) | {
                "charset": "utf8mb4",
                "collate": "utf8mb4_bin",
                "cols": [_view_column(at, each) for at, each in enumerate(columns.get(name, []))],
                "view": {
                    "view_algorithm": ("UNDEFINED", "MERGE", "TEMPTABLE").index(str(row["algorithm"])),
                    "view_definer": {"Username": "", "Hostname": "", "CurrentUser": True},
                    "view_security": ("DEFINER", "INVOKER").index(str(row["security_type"])),
                    "view_select": select,
                    "view_checkoption": 1,
                    "view_cols": None,
                },
            }
            self._found.tables[name] = raw

    def _broken(self, name: Name) -> bool:
        try:
            self._rows(f"SELECT 1 FROM {qualified(*name)} LIMIT 0")  # noqa: S608
        except MySQLError as error:
            if error.args[0] in (ER.VIEW_INVALID, ER.BAD_DB_ERROR):  # a MySQL's, of a database that is gone
                return True
            raise
        return False

    def _sequence(self, name: Name) -> Raw:
        row = self._rows(f"SELECT * FROM {qualified(*name)}")[0]  # noqa: S608
        cache = int(row["cache_size"])
        return blank(name[1]) | {
            "sequence": {
                "sequence_start": int(row["start_value"]),
                "sequence_cache": cache > 0,
                "sequence_cycle": bool(row["cycle_option"]),
                "sequence_min_value": int(row["minimum_value"]),
                "sequence_max_value": int(row["maximum_value"]),
                "sequence_increment": int(row["increment"]),
                "sequence_cache_value": cache,
                "sequence_comment": "",
            }
        }

    # -- what jobs do not say

    def _grants(self) -> list[str]:
        """Lines of SHOW GRANTS, on a MySQL with those of the roles that are active."""
        sql = "SHOW GRANTS"
        if (
            self._dialect is Dialect.MYSQL
            and (roles := str(self.value(self._connection, "SELECT CURRENT_ROLE()"))) != "NONE"
        ):
            sql = f"SHOW GRANTS FOR CURRENT_USER() USING {roles}"
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return [str(row[0]) for row in cursor.fetchall()]

    def _unseen(self) -> None:
        """What the server hides from the user without a word, for want of a privilege."""
        grants = self._grants()
        everywhere = [line for line in grants if " ON *.* TO " in line]
        for name in in_columns_alone(grants):
            if name[0] in self._found.databases and ".".join(name).lower() not in self._skipped:
                self._refuse(name, "the user sees some of its columns only (GRANT SELECT on the whole table)")
                self._skipped.add(".".join(name).lower())
        for db in self._found.databases:
            on = f"ON {quote(db)}.*"
            missing = missing_privileges(grants, db, ("SELECT", "TRIGGER", "EVENT"))
            if "SELECT" in missing:
                self._found.notes.append(
                    f"{db}: tables that the user has no privilege on; GRANT SELECT {on} shows them"
                )
            if "TRIGGER" in missing:
                self._found.notes.append(
                    f"{db}: triggers are not seen, and the rows that they change need binlogs too; GRANT TRIGGER {on} "
                    "shows them"
                )
            if "EVENT" in missing:
                self._found.notes.append(f"{db}: events are not seen; GRANT EVENT {on} shows them")
            routines = ("EXECUTE", "CREATE ROUTINE", "ALTER ROUTINE")
            hidden = len(missing_privileges(grants, db, routines)) == len(routines)
            if hidden and (self._dialect is Dialect.MARIADB or missing_privileges(everywhere, db, ("SELECT",))):
                self._found.notes.append(f"{db}: routines are not seen; GRANT EXECUTE {on} shows them")

    def _left_out(self) -> None:
        for row in self._of(
            "REFERENTIAL_CONSTRAINTS",
            "CONSTRAINT_SCHEMA AS db, TABLE_NAME, CONSTRAINT_NAME, UPDATE_RULE, DELETE_RULE",
            schema="CONSTRAINT_SCHEMA",
            order="CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME",
        ):
            acts = {str(row["update_rule"]), str(row["delete_rule"])} - {"RESTRICT", "NO ACTION"}
            more = f"; the rows that its {' and '.join(sorted(acts))} changes need binlogs too" if acts else ""
            name = str(row["db"]), str(row["table_name"])
            self._note(name, f"the foreign key {row['constraint_name']} is left out{more}")
        for row in self._of(
            "TRIGGERS",
            "TRIGGER_SCHEMA AS db, EVENT_OBJECT_TABLE AS name, TRIGGER_NAME AS what",
            schema="TRIGGER_SCHEMA",
            order="TRIGGER_SCHEMA, TRIGGER_NAME",
        ):
            name = str(row["db"]), str(row["name"])
            self._note(name, f"the trigger {row['what']} is left out; the rows that it changes need binlogs too")
        for view, of, kind in (("EVENTS", "EVENT", "event"), ("ROUTINES", "ROUTINE", "routine")):
            for row in self._of(view, f"{of}_SCHEMA AS db, {of}_NAME AS name", schema=f"{of}_SCHEMA", order="1, 2"):
                self._found.notes.append(f"{row['db']}.{row['name']}: the {kind} is left out")

    def _check_charset(self, place: str, charset: str, collate: str) -> None:
        try:
            for dialect in (Dialect.MARIADB, Dialect.MYSQL):
                charset_sql(dialect, charset, collate, checked=True)
        except SchemaError as error:
            self._found.refused.append(f"{place}: {error.message}")

    def _note(self, name: Name, text: str) -> None:
        if ".".join(name).lower() not in self._skipped:
            self._found.notes.append(f"{'.'.join(name)}: {text}")

    def _refuse(self, name: Name, text: str) -> None:
        self._found.refused.append(f"{'.'.join(name)}: {text}")


def _checked_json(check: Row) -> str:
    return json_of_check(str(check["level"]), str(check["check_clause"]))


def _columns_in(expression: str) -> list[str]:
    """Names that are quoted; a MySQL quotes as the session did that made the partitions (ANSI_QUOTES)."""
    found = re.findall(r'`((?:[^`]|``)+)`|"((?:[^"]|"")+)"', expression)
    return [tick.replace("``", "`") or double.replace('""', '"') for tick, double in found]


def _json_column(row: Row, checked: set[str]) -> bool:
    kept = (str(row["column_type"]), str(row["collation_name"])) == JSON_TYPE
    return kept and str(row["column_name"]) in checked


def _index(name: str, rows: Sequence[Row]) -> Raw:
    hidden = rows[0].get("ignored") == "YES" or rows[0].get("visible") == "NO"
    return {
        "id": 0,
        "idx_name": named(name),
        "tbl_name": named(""),
        "idx_cols": [
            {"name": named(str(row["column_name"])), "offset": 0, "length": int(row["sub_part"] or -1)} for row in rows
        ],
        "state": _PUBLIC,
        "backfill_state": 0,
        "comment": str(rows[0]["index_comment"] or ""),
        "index_type": 1,
        "is_unique": not int(rows[0]["non_unique"]),
        "is_primary": name == "PRIMARY",
        "is_invisible": hidden,
        "is_global": False,
        "mv_index": False,
    }


def _view_column(at: int, row: Row) -> Raw:
    """A view's columns have names only; nothing reads their types."""
    kind = {"Tp": 0, "Flag": 0, "Flen": 0, "Decimal": 0, "Charset": "", "Collate": "", "Elems": None}
    name = named(str(row["column_name"]))
    return {"id": at + 1, "name": name, "offset": at, "type": kind, "state": _PUBLIC, "version": 0}


def blank(name: str) -> Raw:
    """TableInfo with nothing in it."""
    return {
        "id": 0,
        "name": named(name),
        "charset": "",
        "collate": "",
        "cols": None,
        "index_info": None,
        "constraint_info": None,
        "fk_info": None,
        "state": _PUBLIC,
        "pk_is_handle": False,
        "is_common_handle": False,
        "common_handle_version": 0,
        "comment": "",
        "auto_inc_id": 0,
        "max_col_id": 0,
        "max_idx_id": 0,
        "max_cst_id": 0,
        "update_timestamp": 0,
        "partition": None,
        "view": None,
        "sequence": None,
        "version": 5,
        "temp_table_type": 0,
    }
