"""Schema objects as TiDB writes them into DDL jobs, and what of them readers see (docs/formats.md, "DDL jobs").

Only the fields that decoding and rendering need are named; ``raw`` is the whole JSON object, because the archive
keeps jobs whole and because a rendered statement may need a field that nothing else does.

A history has many jobs, and most of their tables are asked for nothing but their ids and names. So a job in memory is
its compressed text and what the fold asks for, and its tables are read from that text when more is asked of them.
"""

from __future__ import annotations

import json
import sys
import zlib
from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag
from functools import lru_cache
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


INTEGERS = frozenset({MysqlType.TINY, MysqlType.SHORT, MysqlType.INT24, MysqlType.LONG, MysqlType.LONGLONG})
# Of text, or of bytes where the character set is binary.
STRINGS = frozenset({
    MysqlType.VARCHAR, MysqlType.VAR_STRING, MysqlType.STRING,
    MysqlType.TINY_BLOB, MysqlType.BLOB, MysqlType.MEDIUM_BLOB, MysqlType.LONG_BLOB,
})  # fmt: skip


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


# What reading a job may raise where a field has another JSON type than TiDB gives it.
MISREAD = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)


def cistr(value: Any) -> str:
    """Original spelling of a name; TiDB writes ``{"O":…,"L":…}`` or a bare string. TypeError for anything else."""
    return text_of(value.get("O") if isinstance(value, dict) else value)


def text_of(value: Any) -> str:
    """A text of a job, '' where it is absent; TypeError for anything else."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is no text")
    return value


def number_of(value: Any) -> int:
    """A number of a job; TypeError or ValueError for anything that is no integer of 64 bits."""
    if not isinstance(value, (int, str)):
        raise TypeError(f"{value!r:.60} is no number")
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{number} is no integer of 64 bits")
    return number


def _bits(value: Any) -> str | None:
    return None if value is None else text_of(value)


def _literal(value: Any) -> Any:
    """A default: text or a number."""
    if value is not None and not isinstance(value, (str, int, float)):
        raise TypeError(f"{value!r:.60} is no default")
    return value


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
            tp=number_of(data["Tp"]),
            flag=number_of(data["Flag"]),
            flen=number_of(data.get("Flen", -1)),
            decimal=number_of(data.get("Decimal", -1)),
            charset=text_of(data.get("Charset")),
            collate=text_of(data.get("Collate")),
            elems=tuple(map(text_of, data.get("Elems") or ())),
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
            id=number_of(data["id"]),
            name=cistr(data["name"]),
            offset=number_of(data.get("offset", 0)),
            type=FieldType.from_dict(data["type"]),
            state=number_of(data.get("state", SchemaState.PUBLIC)),
            origin_default=_literal(data.get("origin_default")),
            origin_default_bit=_bits(data.get("origin_default_bit")),
            default=_literal(data.get("default")),
            default_bit=_bits(data.get("default_bit")),
            default_is_expr=bool(data.get("default_is_expr", False)),
            generated_expr=text_of(data.get("generated_expr_string")),
            generated_stored=bool(data.get("generated_stored", False)),
            comment=text_of(data.get("comment")),
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
            IndexColumn(name=cistr(c["name"]), offset=number_of(c["offset"]), length=number_of(c.get("length", -1)))
            for c in data.get("idx_cols") or ()
        )
        return cls(
            id=number_of(data["id"]),
            name=cistr(data["idx_name"]),
            columns=columns,
            unique=bool(data.get("is_unique", False)),
            primary=bool(data.get("is_primary", False)),
            invisible=bool(data.get("is_invisible", False)),
            state=number_of(data.get("state", SchemaState.PUBLIC)),
            comment=text_of(data.get("comment")),
            raw=data,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """One version of a table (or view, or sequence).

    Of one that belongs to a job (``source``: the job's packed text and its place in there) only what the fold asks for
    is there at first; the rest is read when it is asked for, and SchemaError then says what is missing.
    """

    id: int
    name: str
    partition_ids: tuple[int, ...]  # physical ids of the partitions
    is_view: bool
    is_sequence: bool
    charset: str
    collate: str
    columns: tuple[ColumnInfo, ...]
    indexes: tuple[IndexInfo, ...]
    pk_is_handle: bool
    is_common_handle: bool
    comment: str
    state: int
    raw: dict[str, Any]
    source: tuple[bytes, int] | None = field(default=None, repr=False, compare=False)

    @property
    def public_columns(self) -> tuple[ColumnInfo, ...]:
        """Columns that readers see, in order."""
        return tuple(c for c in self.columns if c.public and not c.hidden)

    @property
    def of_tidb(self) -> bool:
        """Whether a TiDB wrote it, and so the values of all STORED columns; else it was read from another server."""
        return "ShardRowIDBits" in self.raw

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
                **_seen_of(data),
                charset=text_of(data.get("charset")),
                collate=text_of(data.get("collate")),
                columns=tuple(ColumnInfo.from_dict(c) for c in data.get("cols") or ()),
                indexes=tuple(IndexInfo.from_dict(i) for i in data.get("index_info") or ()),
                pk_is_handle=bool(data.get("pk_is_handle", False)),
                is_common_handle=bool(data.get("is_common_handle", False)),
                comment=text_of(data.get("comment")),
                state=number_of(data.get("state", SchemaState.PUBLIC)),
                raw=data,
            )
        except MISREAD as error:
            name = data.get("name") if isinstance(data, dict) else None
            raise SchemaError(f"a table info cannot be read: {error!r}", table=str(name)) from error

    @classmethod
    def of_job(cls, data: dict[str, Any], packed: bytes, place: int) -> Self:
        """The table at a place of a job's packed text (`_tables_of`), whose JSON object this is."""
        try:
            return cls._unread(_seen_of(data), (packed, place))
        except MISREAD as error:
            raise SchemaError(f"a table info cannot be read: {error!r}") from error

    def called(self, name: str, table_id: int | None = None) -> TableInfo:
        """The same under another name, or another id."""
        number = self.id if table_id is None else table_id
        if self.source is not None:
            seen = {each: getattr(self, each) for each in _SEEN}
            return self._unread({**seen, "id": number, "name": name}, self.source)
        return replace(self, id=number, name=name, raw=self.raw if table_id is None else self.raw | {"id": number})

    @classmethod
    def _unread(cls, seen: dict[str, Any], source: tuple[bytes, int]) -> Self:
        table = object.__new__(cls)
        for each in _SEEN:
            object.__setattr__(table, each, seen[each])
        object.__setattr__(table, "source", source)
        return table

    def __getattr__(self, name: str) -> Any:
        """A field that was not read yet."""
        if name not in _UNREAD or self.source is None:
            raise AttributeError(name)
        packed, place = self.source
        data = _tables_of(unpacked(packed))[place]
        try:
            whole = TableInfo.from_dict(data if number_of(data["id"]) == self.id else data | {"id": self.id})
        except SchemaError as error:
            number = unpacked(packed).get("id")
            raise SchemaError(f"DDL job {number}: {error.message}", **{**error.facts, "job_id": number}) from error
        for each in _UNREAD:
            object.__setattr__(self, each, getattr(whole, each))
        return getattr(self, name)


def _seen_of(data: dict[str, Any]) -> dict[str, Any]:
    partition = data.get("partition") or {}
    return {
        "id": number_of(data["id"]),
        "name": sys.intern(cistr(data["name"])),
        "partition_ids": tuple(number_of(each["id"]) for each in partition.get("definitions") or ()),
        "is_view": data.get("view") is not None,
        "is_sequence": data.get("sequence") is not None,
    }


# What a table of a job has at once, and what is read when it is asked for.
_SEEN = ("id", "name", "partition_ids", "is_view", "is_sequence")
_UNREAD = frozenset(TableInfo.__slots__) - {*_SEEN, "source"}


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
            id=number_of(data["id"]),
            name=cistr(data["db_name"]),
            charset=text_of(data.get("charset")),
            collate=text_of(data.get("collate")),
            raw=data,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One DDL job. ``table_id`` of a truncate is the old id; ``commit_ts`` comes from its binlog, not from the job.

    ``packed``: its whole text, compressed. Jobs are equal when they say the same.
    """

    id: int
    type: int
    schema_id: int
    table_id: int
    schema_name: str
    table_name: str
    state: int
    schema_state: int
    schema_version: int
    finished_ts: int
    db_info: DbInfo | None
    table_info: TableInfo | None
    table_infos: tuple[TableInfo, ...]
    packed: bytes

    @property
    def done(self) -> bool:
        """Whether it changed the schema: it ended well, in a new schema version. No other job counts."""
        return self.state in (JobState.DONE, JobState.SYNCED) and self.schema_version != 0

    @property
    def tables(self) -> tuple[TableInfo, ...]:
        """Every table that it carries."""
        return self.table_infos if self.table_info is None else (self.table_info, *self.table_infos)

    @property
    def raw(self) -> dict[str, Any]:
        """The whole JSON object; not to be changed."""
        return unpacked(self.packed)

    @property
    def text(self) -> str:
        """The whole job as JSON."""
        return zlib.decompress(self.packed).decode()

    @property
    def query(self) -> str:
        """The statement."""
        return self.raw.get("query") or ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and (self.packed == other.packed or self.raw == other.raw)

    def __hash__(self) -> int:
        return hash(self.id)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object of the job history; SchemaError names the job."""
        return cls._of(data, json.dumps(data, separators=(",", ":"), ensure_ascii=False))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read one job."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise SchemaError(f"a DDL job is no JSON: {text[:80]!r}") from error
        return cls._of(data, text)

    @classmethod
    def _of(cls, data: dict[str, Any], text: str | bytes) -> Self:
        try:
            packed = zlib.compress(text if isinstance(text, bytes) else text.encode(), 1)
            _check_raw(data)
            info = data.get("binlog") or {}
            db, *tables = info.get("DBInfo"), *_tables_of(data)
            one, *many = (
                None if table is None else TableInfo.of_job(table, packed, place) for place, table in enumerate(tables)
            )
            return cls(
                id=number_of(data["id"]),
                type=number_of(data["type"]),
                schema_id=number_of(data.get("schema_id", 0)),
                table_id=number_of(data.get("table_id", 0)),
                schema_name=sys.intern(text_of(data.get("schema_name"))),
                table_name=sys.intern(text_of(data.get("table_name"))),
                state=number_of(data["state"]),
                schema_state=number_of(data.get("schema_state", 0)),
                schema_version=number_of(info.get("SchemaVersion") or 0),
                finished_ts=number_of(info.get("FinishedTS") or 0),
                db_info=None if db is None else DbInfo.from_dict(db),
                table_info=one,
                table_infos=tuple(each for each in many if each is not None),
                packed=packed,
            )
        except SchemaError as error:
            raise SchemaError(f"DDL job {data.get('id')}: {error.message}", job_id=data.get("id")) from error
        except MISREAD as error:
            found = data.get("id") if isinstance(data, dict) else None
            raise SchemaError(f"DDL job {found} cannot be read: {error!r}", job_id=found) from error


def misread(job: Job, error: Exception) -> SchemaError:
    """The error where a field of a job is not what TiDB writes there."""
    return SchemaError(
        f"DDL job {job.id} cannot be read: {error!r}",
        hint="a later release may read it; else make a new archive: `pumphouse archive init` under another archive id",
        job_id=job.id,
    )


@lru_cache(maxsize=64)
def unpacked(packed: bytes) -> dict[str, Any]:
    """The JSON object of a job's packed text."""
    found: dict[str, Any] = json.loads(zlib.decompress(packed))
    return found


def _check_raw(data: dict[str, Any]) -> None:
    """Fields that are read from the whole job later on."""
    text_of(data.get("query"))
    for name in ("start_ts", "real_start_ts"):
        number_of(data.get(name) or 0)
    reorg = data.get("reorg_meta") or {}
    text_of((reorg.get("server") or {}).get("kind"))
    for each in (data.get("multi_schema_info") or {}).get("sub_jobs") or ():
        each.get("type")


def _tables_of(data: dict[str, Any]) -> list[Any]:
    """JSON objects of a job's tables: that of ``TableInfo``, None where there is none, then all of the others."""
    info = data.get("binlog") or {}
    return [info.get("TableInfo"), *(info.get("MultipleTableInfos") or ())]
