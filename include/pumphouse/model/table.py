"""Schema objects as TiDB writes them into DDL jobs: JSON in, frozen values out (docs/formats.md, "DDL jobs").

Only the fields that decoding and rendering need are named; ``raw`` keeps the whole JSON object, because the archive
keeps jobs whole and because a rendered statement may need a field that nothing else does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, Self

from pumphouse.errors import SchemaError
from pumphouse.model.binlog import SchemaState


class MysqlType(IntEnum):
    """Type codes."""

    DECIMAL_OLD = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


class ColumnFlag(IntFlag):
    """Bits of ``FieldType.flag``."""

    NOT_NULL = 1
    PRI_KEY = 2
    UNIQUE_KEY = 4
    MULTIPLE_KEY = 8
    BLOB = 16
    UNSIGNED = 32
    ZEROFILL = 64
    BINARY = 128
    ENUM = 256
    AUTO_INCREMENT = 512
    TIMESTAMP = 1024
    SET = 2048
    NO_DEFAULT = 4096
    ON_UPDATE_NOW = 8192
    GENERATED = 1 << 23


class JobState(IntEnum):
    """State of a DDL job."""

    NONE = 0
    RUNNING = 1
    ROLLINGBACK = 2
    ROLLBACK_DONE = 3
    DONE = 4
    CANCELLED = 5
    SYNCED = 6
    CANCELLING = 7
    QUEUEING = 8


def cistr(value: Any) -> str:
    """Original spelling of a name; TiDB writes ``{"O":…,"L":…}`` or a bare string."""
    if isinstance(value, dict):
        return str(value.get("O", ""))
    return "" if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldType:
    """Type of a column."""

    tp: int
    flag: int
    flen: int
    decimal: int
    charset: str
    collate: str
    elems: tuple[str, ...]

    @property
    def unsigned(self) -> bool:
        """Whether the column is UNSIGNED."""
        return bool(self.flag & ColumnFlag.UNSIGNED)

    @property
    def not_null(self) -> bool:
        """Whether NULL is refused."""
        return bool(self.flag & ColumnFlag.NOT_NULL)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(
            tp=int(data["Tp"]),
            flag=int(data["Flag"]),
            flen=int(data.get("Flen", -1)),
            decimal=int(data.get("Decimal", -1)),
            charset=data.get("Charset") or "",
            collate=data.get("Collate") or "",
            elems=tuple(data.get("Elems") or ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnInfo:
    """One column of a table version."""

    id: int
    name: str
    offset: int
    type: FieldType
    state: int
    origin_default: Any
    origin_default_bit: str | None  # base64
    default: Any
    default_bit: str | None  # base64
    default_is_expr: bool
    generated_expr: str
    generated_stored: bool
    comment: str
    hidden: bool
    raw: dict[str, Any]

    @property
    def public(self) -> bool:
        """Whether readers of the table see it."""
        return self.state == SchemaState.PUBLIC

    @property
    def generated(self) -> bool:
        """Whether its value is computed."""
        return self.generated_expr != ""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(
            id=int(data["id"]),
            name=cistr(data["name"]),
            offset=int(data.get("offset", 0)),
            type=FieldType.from_dict(data["type"]),
            state=int(data.get("state", SchemaState.PUBLIC)),
            origin_default=data.get("origin_default"),
            origin_default_bit=data.get("origin_default_bit"),
            default=data.get("default"),
            default_bit=data.get("default_bit"),
            default_is_expr=bool(data.get("default_is_expr", False)),
            generated_expr=data.get("generated_expr_string") or "",
            generated_stored=bool(data.get("generated_stored", False)),
            comment=data.get("comment") or "",
            hidden=bool(data.get("hidden", False)),
            raw=data,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexColumn:
    """Column of an index; ``length`` -1 = whole column, else a prefix in characters.

    ``expression``: in place of a column, where that is a hidden one and the statement is for a TiDB.
    """

    name: str
    offset: int
    length: int
    expression: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexInfo:
    """One index of a table version."""

    id: int
    name: str
    columns: tuple[IndexColumn, ...]
    unique: bool
    primary: bool
    invisible: bool
    state: int
    comment: str
    raw: dict[str, Any]

    @property
    def public(self) -> bool:
        """Whether it is in force for readers."""
        return self.state == SchemaState.PUBLIC

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        columns = tuple(
            IndexColumn(name=cistr(c["name"]), offset=int(c["offset"]), length=int(c.get("length", -1)))
            for c in data.get("idx_cols") or ()
        )
        return cls(
            id=int(data["id"]),
            name=cistr(data["idx_name"]),
            columns=columns,
            unique=bool(data.get("is_unique", False)),
            primary=bool(data.get("is_primary", False)),
            invisible=bool(data.get("is_invisible", False)),
            state=int(data.get("state", SchemaState.PUBLIC)),
            comment=data.get("comment") or "",
            raw=data,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """One version of a table (or view, or sequence)."""

    id: int
    name: str
    charset: str
    collate: str
    columns: tuple[ColumnInfo, ...]
    indexes: tuple[IndexInfo, ...]
    pk_is_handle: bool
    is_common_handle: bool
    comment: str
    state: int
    raw: dict[str, Any]

    @property
    def is_view(self) -> bool:
        """Whether it is a view."""
        return self.raw.get("view") is not None

    @property
    def is_sequence(self) -> bool:
        """Whether it is a sequence."""
        return self.raw.get("sequence") is not None

    @property
    def partition_ids(self) -> tuple[int, ...]:
        """Physical ids of the partitions, () when there are none."""
        partition = self.raw.get("partition") or {}
        return tuple(int(d["id"]) for d in partition.get("definitions") or ())

    @property
    def public_columns(self) -> tuple[ColumnInfo, ...]:
        """Columns that readers see, in order."""
        return tuple(c for c in self.columns if c.public and not c.hidden)

    def column_by_id(self, column_id: int) -> ColumnInfo | None:
        """Column with that id, or None."""
        return next((c for c in self.columns if c.id == column_id), None)

    def primary_key(self) -> tuple[IndexColumn, ...]:
        """Columns of the primary key, () when there is none."""
        if self.pk_is_handle:
            return tuple(
                IndexColumn(name=c.name, offset=c.offset, length=-1)
                for c in self.columns
                if c.type.flag & ColumnFlag.PRI_KEY
            )
        for index in self.indexes:
            if index.primary and index.public:
                return index.columns
        return ()

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object; SchemaError names what is missing."""
        try:
            return cls(
                id=int(data["id"]),
                name=cistr(data["name"]),
                charset=data.get("charset") or "",
                collate=data.get("collate") or "",
                columns=tuple(ColumnInfo.from_dict(c) for c in data.get("cols") or ()),
                indexes=tuple(IndexInfo.from_dict(i) for i in data.get("index_info") or ()),
                pk_is_handle=bool(data.get("pk_is_handle", False)),
                is_common_handle=bool(data.get("is_common_handle", False)),
                comment=data.get("comment") or "",
                state=int(data.get("state", SchemaState.PUBLIC)),
                raw=data,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SchemaError(f"a table info cannot be read: {error!r}", table=cistr(data.get("name"))) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class DbInfo:
    """One database."""

    id: int
    name: str
    charset: str
    collate: str
    raw: dict[str, Any]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(
            id=int(data["id"]),
            name=cistr(data["db_name"]),
            charset=data.get("charset") or "",
            collate=data.get("collate") or "",
            raw=data,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One DDL job. ``table_id`` of a truncate is the old id; ``commit_ts`` comes from its binlog, not from the job."""

    id: int
    type: int
    schema_id: int
    table_id: int
    schema_name: str
    table_name: str
    state: int
    schema_state: int
    query: str
    schema_version: int
    finished_ts: int
    db_info: DbInfo | None
    table_info: TableInfo | None
    table_infos: tuple[TableInfo, ...]
    raw: dict[str, Any]

    @property
    def done(self) -> bool:
        """Whether it changed the schema (done or synced)."""
        return self.state in (JobState.DONE, JobState.SYNCED)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object of the job history; SchemaError names the job."""
        try:
            info = data.get("binlog") or {}
            db, table = info.get("DBInfo"), info.get("TableInfo")
            return cls(
                id=int(data["id"]),
                type=int(data["type"]),
                schema_id=int(data.get("schema_id", 0)),
                table_id=int(data.get("table_id", 0)),
                schema_name=data.get("schema_name") or "",
                table_name=data.get("table_name") or "",
                state=int(data["state"]),
                schema_state=int(data.get("schema_state", 0)),
                query=data.get("query") or "",
                schema_version=int(info.get("SchemaVersion") or 0),
                finished_ts=int(info.get("FinishedTS") or 0),
                db_info=None if db is None else DbInfo.from_dict(db),
                table_info=None if table is None else TableInfo.from_dict(table),
                table_infos=tuple(TableInfo.from_dict(t) for t in info.get("MultipleTableInfos") or ()),
                raw=data,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SchemaError(f"DDL job {data.get('id')} cannot be read: {error!r}", job_id=data.get("id")) from error

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read one job."""
        try:
            return cls.from_dict(json.loads(text))
        except ValueError as error:
            raise SchemaError(f"a DDL job is no JSON: {text[:80]!r}") from error
