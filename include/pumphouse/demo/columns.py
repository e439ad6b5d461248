"""Tables of the demo, said once: as SQL for the MariaDB that plays the source, and as the TableInfo of a TiDB.

The source's SQL is written here by hand and not by the code that renders DDL for targets: what that code gets wrong
must show in the comparison. Numbers and flags of a TableInfo are those of captured TiDB jobs (tests/golden).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from pumphouse.model.binlog import SchemaState
from pumphouse.model.table import ColumnFlag, MysqlType
from pumphouse.schema.ident import literal, quote

Raw = dict[str, Any]

_TYPE = re.compile(r"^(\w+)(?:\((.*)\))?( unsigned)?$")
# name -> type code, default Flen, is text (its charset decides between CHAR/TEXT and BINARY/BLOB)
_CODES: dict[str, tuple[MysqlType, int]] = {
    "tinyint": (MysqlType.TINY, 4),
    "smallint": (MysqlType.SHORT, 6),
    "mediumint": (MysqlType.INT24, 9),
    "int": (MysqlType.LONG, 11),
    "bigint": (MysqlType.LONGLONG, 20),
    "float": (MysqlType.FLOAT, 12),
    "double": (MysqlType.DOUBLE, 22),
    "decimal": (MysqlType.NEWDECIMAL, 10),
    "date": (MysqlType.DATE, 10),
    "datetime": (MysqlType.DATETIME, 19),
    "timestamp": (MysqlType.TIMESTAMP, 19),
    "time": (MysqlType.TIME, 10),
    "year": (MysqlType.YEAR, 4),
    "char": (MysqlType.STRING, 1),
    "varchar": (MysqlType.VARCHAR, 0),
    "binary": (MysqlType.STRING, 1),
    "varbinary": (MysqlType.VARCHAR, 0),
    "tinytext": (MysqlType.TINY_BLOB, 255),
    "text": (MysqlType.BLOB, 65_535),
    "mediumtext": (MysqlType.MEDIUM_BLOB, 16_777_215),
    "longtext": (MysqlType.LONG_BLOB, 4_294_967_295),
    "tinyblob": (MysqlType.TINY_BLOB, 255),
    "blob": (MysqlType.BLOB, 65_535),
    "mediumblob": (MysqlType.MEDIUM_BLOB, 16_777_215),
    "longblob": (MysqlType.LONG_BLOB, 4_294_967_295),
    "bit": (MysqlType.BIT, 1),
    "enum": (MysqlType.ENUM, 0),
    "set": (MysqlType.SET, 0),
    "json": (MysqlType.JSON, 4_294_967_295),
}
_TEXT = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"}
_BINARY_FLAG = {
    "date", "datetime", "timestamp", "time", "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob",
    "json",
}  # fmt: skip
_INTEGERS = {"tinyint", "smallint", "mediumint", "int", "bigint"}
_TIMES = {"datetime", "timestamp", "time"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Col:
    """A column. ``default`` is the text of the default; ``expr`` makes it a generated column."""

    name: str
    type: str
    null: bool = True
    default: str | None = None
    expr: str = ""
    stored: bool = False
    comment: str = ""
    collate: str = ""

    def sql(self) -> str:
        """Its definition in MariaDB's SQL."""
        parts = [quote(self.name), self.type]
        if self.collate:
            parts.append(f"COLLATE {self.collate}")
        if self.expr:
            parts.append(f"GENERATED ALWAYS AS ({self.expr}) {'STORED' if self.stored else 'VIRTUAL'}")
        else:
            parts.append("NULL" if self.null else "NOT NULL")
            if self.default is not None:
                parts.append(f"DEFAULT {self._default_sql()}")
        if self.comment:
            parts.append(f"COMMENT {literal(self.comment)}")
        return " ".join(parts)

    def _default_sql(self) -> str:
        if self.type.startswith("bit"):
            return f"b'{int(self.default or 0):b}'"
        return literal(self.default or "")

    def info(self, column_id: int, offset: int, *, added: bool = False) -> Raw:
        """ColumnInfo. ``added``: by a later ALTER, so rows written before read the default (origin_default)."""
        import base64

        kind = field_type(self)
        if not self.null:
            kind["Flag"] |= ColumnFlag.NOT_NULL | (ColumnFlag.NO_DEFAULT if self.default is None else 0)
        bit = None
        if self.type.startswith("bit") and self.default is not None:
            size = (kind["Flen"] + 7) // 8
            bit = base64.b64encode(int(self.default).to_bytes(size, "big")).decode()
        return {
            "id": column_id,
            "name": cistr(self.name),
            "offset": offset,
            "origin_default": self.default if added and bit is None else None,
            "origin_default_bit": bit if added else None,
            "default": None if bit else self.default,
            "default_bit": bit,
            "default_is_expr": False,
            "generated_expr_string": self.expr,
            "generated_stored": self.stored,
            "dependences": {name: {} for name in re.findall(r"`([^`]+)`", self.expr)} or None,
            "type": kind,
            "state": SchemaState.PUBLIC.value,
            "comment": self.comment,
            "hidden": False,
            "change_state_info": None,
            "version": 2,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Idx:
    """A secondary index; ``lengths`` are prefix lengths by column."""

    name: str
    columns: tuple[str, ...]
    unique: bool = False
    lengths: dict[str, int] = field(default_factory=dict)

    def sql(self) -> str:
        """Its definition in MariaDB's SQL."""
        cut = {name: f"({length})" for name, length in self.lengths.items()}
        columns = ", ".join(quote(name) + cut.get(name, "") for name in self.columns)
        return f"{'UNIQUE ' if self.unique else ''}KEY {quote(self.name)} ({columns})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as it is created. ``ranges``: partition name -> upper bound of the first key column, or MAXVALUE."""

    name: str
    columns: tuple[Col, ...]
    primary: tuple[str, ...] = ()
    clustered: bool = True
    indexes: tuple[Idx, ...] = ()
    ranges: dict[str, str] = field(default_factory=dict)
    comment: str = ""
    collate: str = "utf8mb4_bin"

    def sql(self) -> str:
        """CREATE TABLE in MariaDB's SQL."""
        lines = [column.sql() for column in self.columns]
        if self.primary:
            lines.append(f"PRIMARY KEY ({', '.join(map(quote, self.primary))})")
        lines += [index.sql() for index in self.indexes]
        text = f"CREATE TABLE {quote(self.name)} ({', '.join(lines)})"
        text += f" DEFAULT CHARSET=utf8mb4 COLLATE={self.collate}"
        if self.comment:
            text += f" COMMENT={literal(self.comment)}"
        if self.ranges:
            text += f" PARTITION BY RANGE ({quote(self.primary[0])}) ({partitions_sql(self.ranges)})"
        return text

    def info(self, table_id: int, partition_ids: list[int], ts: int) -> Raw:
        """TableInfo."""
        handle = len(self.primary) == 1 and self._type_of(self.primary[0]) in _INTEGERS
        columns = [column.info(number + 1, number) for number, column in enumerate(self.columns)]
        raw = empty_info(table_id, self.name, ts)
        raw |= {
            "charset": "utf8mb4",
            "collate": self.collate,
            "cols": columns,
            "pk_is_handle": handle and self.clustered,
            "is_common_handle": bool(self.primary) and not handle and self.clustered,
            "comment": self.comment,
            "max_col_id": len(columns),
        }
        raw["common_handle_version"] = int(raw["is_common_handle"])
        for name in self.primary:
            column = next(c for c in columns if c["name"]["O"] == name)
            column["type"]["Flag"] |= ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL | ColumnFlag.NO_DEFAULT
        if self.primary and not raw["pk_is_handle"]:
            add_index(raw, Idx(name="PRIMARY", columns=self.primary, unique=True))
        for index in self.indexes:
            add_index(raw, index)
        if self.ranges:
            raw["partition"] = {
                "type": 1,
                "expr": quote(self.primary[0]),
                "columns": None,
                "enable": True,
                "definitions": [
                    partition_definition(number, name, bound)
                    for number, (name, bound) in zip(partition_ids, self.ranges.items(), strict=True)
                ],
                "adding_definitions": None,
                "dropping_definitions": None,
                "states": None,
                "num": len(self.ranges),
                "ddl_state": 0,
            }
        return raw

    def _type_of(self, name: str) -> str:
        column = next(c for c in self.columns if c.name == name)
        return re.split(r"\W", column.type)[0]


def cistr(name: str) -> Raw:
    """A name as TiDB writes it."""
    return {"O": name, "L": name.lower()}


def partitions_sql(ranges: dict[str, str]) -> str:
    """Definitions of range partitions."""
    found = []
    for name, bound in ranges.items():
        limit = "MAXVALUE" if bound == "MAXVALUE" else f"({bound})"
        found.append(f"PARTITION {quote(name)} VALUES LESS THAN {limit}")
    return ", ".join(found)


def partition_definition(partition_id: int, name: str, bound: str) -> Raw:
    """PartitionDefinition of a range partition."""
    return {
        "id": partition_id, "name": cistr(name), "less_than": [bound], "in_values": None, "policy_ref_info": None,
    }  # fmt: skip


def field_type(column: Col) -> Raw:
    """FieldType of a column, without the flags of keys and NULL."""
    match = _TYPE.match(column.type)
    if match is None:
        raise ValueError(f"the type {column.type!r} is not known to the demo")
    name, inside, unsigned = match[1], match[2] or "", bool(match[3])
    code, length = _CODES[name]
    decimal = -1 if name in {"float", "double"} else 0
    flag, elems = 0, None
    if name in {"enum", "set"}:
        elems = [item.strip().strip("'") for item in inside.split(",")]
        length = max(map(len, elems)) if name == "enum" else sum(map(len, elems)) + len(elems) - 1
    elif name in _TIMES and inside:
        decimal = int(inside)
        length += 1 + decimal
    elif inside:
        numbers = [int(part) for part in inside.split(",")]
        length = numbers[0]
        decimal = numbers[1] if len(numbers) > 1 else decimal
    elif unsigned and name in {"tinyint", "smallint", "mediumint", "int"}:
        length -= 1
    if unsigned or name == "bit":
        flag |= ColumnFlag.UNSIGNED
    if name == "year":
        flag |= ColumnFlag.UNSIGNED | ColumnFlag.ZEROFILL
    if name in _BINARY_FLAG:
        flag |= ColumnFlag.BINARY
    text = name in _TEXT
    return {
        "Tp": code.value,
        "Flag": int(flag),
        "Flen": length,
        "Decimal": decimal,
        "Charset": "utf8mb4" if text else "binary",
        "Collate": (column.collate or "utf8mb4_bin") if text else "binary",
        "Elems": elems,
        "ElemsIsBinaryLit": None,
        "Array": False,
    }


def add_index(table: Raw, index: Idx) -> None:
    """Put an index into a TableInfo, with the flags that it gives its first column."""
    columns = {c["name"]["O"]: c for c in table["cols"]}
    table["max_idx_id"] += 1
    table["index_info"] = [*(table["index_info"] or ())]
    table["index_info"].append(
        {
            "id": table["max_idx_id"],
            "idx_name": cistr(index.name),
            "tbl_name": cistr(""),
            "idx_cols": [
                {"name": cistr(name), "offset": columns[name]["offset"], "length": index.lengths.get(name, -1)}
                for name in index.columns
            ],
            "state": SchemaState.PUBLIC.value,
            "backfill_state": 0,
            "comment": "",
            "index_type": 1,
            "is_unique": index.unique,
            "is_primary": index.name == "PRIMARY",
            "is_invisible": False,
            "is_global": False,
            "mv_index": False,
        }
    )
    if index.name != "PRIMARY":
        single = index.unique and len(index.columns) == 1
        flag = ColumnFlag.UNIQUE_KEY if single else ColumnFlag.MULTIPLE_KEY
        columns[index.columns[0]]["type"]["Flag"] |= int(flag)


def empty_info(table_id: int, name: str, ts: int) -> Raw:
    """TableInfo with nothing in it."""
    return {
        "id": table_id,
        "name": cistr(name),
        "charset": "",
        "collate": "",
        "cols": None,
        "index_info": None,
        "constraint_info": None,
        "fk_info": None,
        "state": SchemaState.PUBLIC.value,
        "pk_is_handle": False,
        "is_common_handle": False,
        "common_handle_version": 0,
        "comment": "",
        "auto_inc_id": 0,
        "auto_id_cache": 0,
        "auto_rand_id": 0,
        "max_col_id": 0,
        "max_idx_id": 0,
        "max_fk_id": 0,
        "max_cst_id": 0,
        "update_timestamp": ts,
        "ShardRowIDBits": 0,
        "max_shard_row_id_bits": 0,
        "auto_random_bits": 0,
        "auto_random_range_bits": 0,
        "pre_split_regions": 0,
        "partition": None,
        "compression": "",
        "view": None,
        "sequence": None,
        "Lock": None,
        "version": 5,
        "tiflash_replica": None,
        "is_columnar": False,
        "temp_table_type": 0,
        "cache_table_status": 0,
        "policy_ref_info": None,
        "stats_options": None,
        "exchange_partition_info": None,
        "ttl_info": None,
    }
