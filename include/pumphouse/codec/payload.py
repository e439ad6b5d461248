"""Binlog messages: building, checking and merging their bytes (docs/formats.md, "Binlog messages").

TiDB Binlog's own marshaller always writes the scalar fields, also when they are zero; so they are set explicitly here
and the bytes are the same.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from pumphouse.codec.number import append_uvarint
from pumphouse.errors import BadBinlog
from pumphouse.model.binlog import BinlogType
from pumphouse.proto import binlog_pb2 as pb


def _binlog(
    tp: BinlogType,
    start_ts: int,
    commit_ts: int,
    *,
    key: bytes | None,
    value: bytes | None = None,
    ddl_query: bytes | None = None,
    ddl_job_id: int = 0,
    ddl_schema_state: int = 0,
) -> bytes:
    binlog = pb.Binlog(
        tp=int(tp),  # type: ignore[arg-type]
        start_ts=start_ts,
        commit_ts=commit_ts,
        prewrite_key=key,
        prewrite_value=value,
        ddl_query=ddl_query,
        ddl_job_id=ddl_job_id,
        ddl_schema_state=ddl_schema_state,
    )
    return binlog.SerializeToString()


def make_prewrite(
    start_ts: int,
    key: bytes,
    prewrite_value: bytes | None = None,
    *,
    ddl_query: bytes | None = None,
    ddl_job_id: int = 0,
    ddl_schema_state: int = 0,
) -> bytes:
    """A P: of DML with its prewrite value, or of DDL with query, job id and schema state."""
    return _binlog(
        BinlogType.PREWRITE,
        start_ts,
        0,
        key=key,
        value=prewrite_value,
        ddl_query=ddl_query,
        ddl_job_id=ddl_job_id,
        ddl_schema_state=ddl_schema_state,
    )


def around_prewrite(start_ts: int, key: bytes, size: int) -> tuple[bytes, bytes]:
    """What stands before and behind a prewrite value of so many bytes in the P of DML (`make_prewrite`)."""
    whole = make_prewrite(start_ts, key, b"")
    behind = whole.rindex(b"\x2a\0") + 2  # two varints of zero follow
    before = bytearray(whole[: behind - 1])
    append_uvarint(before, size)
    return bytes(before), whole[behind:]


def make_commit(
    start_ts: int,
    commit_ts: int,
    key: bytes | None,
    *,
    ddl_query: bytes | None = None,
    ddl_job_id: int = 0,
    ddl_schema_state: int = 0,
) -> bytes:
    """A C. One that a Pump writes by itself has no key (None); TiDB repeats the DDL fields."""
    return _binlog(
        BinlogType.COMMIT,
        start_ts,
        commit_ts,
        key=key,
        ddl_query=ddl_query,
        ddl_job_id=ddl_job_id,
        ddl_schema_state=ddl_schema_state,
    )


def make_rollback(start_ts: int, key: bytes | None) -> bytes:
    """A C that ends its P without effect."""
    return _binlog(BinlogType.ROLLBACK, start_ts, 0, key=key)


def parse(payload: bytes) -> pb.Binlog:
    """Parse a Binlog; BadBinlog when it does not parse or is of an obsolete or unknown type."""
    binlog = pb.Binlog()
    try:
        binlog.ParseFromString(payload)
    except DecodeError as error:
        raise BadBinlog(f"a payload of {len(payload)} bytes does not parse as a Binlog: {error}") from error
    if int(binlog.tp) > BinlogType.ROLLBACK:
        raise BadBinlog(f"binlog type {binlog.tp} is obsolete", start_ts=binlog.start_ts)
    # A closed enum keeps a number that it does not know among the unknown fields.
    if not binlog.HasField("tp") and payload[:1] == b"\x08":
        raise BadBinlog(f"binlog type {payload[1] if len(payload) > 1 else None} is unknown", start_ts=binlog.start_ts)
    return binlog


def canonical(binlog: pb.Binlog) -> bytes:
    """Bytes as the Go Pump stores them: the scalar fields always written."""
    for name in ("tp", "start_ts", "commit_ts", "ddl_job_id", "ddl_schema_state"):
        if not binlog.HasField(name):
            setattr(binlog, name, 0)
    return binlog.SerializeToString()


def merge(prewrite: bytes, commit: bytes) -> bytes:
    """What a puller sees of a committed transaction: the C with the P's content, byte-identical with the Go Pump's.

    Timestamps, type and prewrite key are the C's; prewrite value and the DDL fields are the P's.

    Raises:
        BadBinlog: one of them does not parse, they are no P and C of one transaction, or obsolete fields are used.
    """
    p, c = parse(prewrite), parse(commit)
    if p.tp != pb.BinlogType.Prewrite or c.tp == pb.BinlogType.Prewrite or p.start_ts != c.start_ts:
        raise BadBinlog(
            f"type {p.tp} of start ts {p.start_ts} and type {c.tp} of start ts {c.start_ts} are no P and C of one "
            "transaction",
            start_ts=c.start_ts,
        )
    for name in ("prewrite_value", "ddl_query"):
        if p.HasField(name):
            setattr(c, name, getattr(p, name))
        else:
            c.ClearField(name)
    c.ddl_job_id = p.ddl_job_id
    c.ddl_schema_state = p.ddl_schema_state
    return canonical(c)


class PrewriteValueBuilder:
    """Collects the row changes of a transaction, table by table in the order of first touch."""

    def __init__(self, schema_version: int) -> None:
        self._value = pb.PrewriteValue(schema_version=schema_version)
        self._tables: dict[int, pb.TableMutation] = {}
        self.rows = 0

    def _table(self, table_id: int) -> pb.TableMutation:
        mutation = self._tables.get(table_id)
        if mutation is None:
            mutation = self._tables[table_id] = self._value.mutations.add(table_id=table_id)
        self.rows += 1
        return mutation

    def insert(self, table_id: int, row: bytes) -> None:
        """Add an inserted row (:func:`pumphouse.codec.row.encode_insert`)."""
        mutation = self._table(table_id)
        mutation.inserted_rows.append(row)
        mutation.sequence.append(pb.MutationType.Insert)

    def update(self, table_id: int, row: bytes) -> None:
        """Add an updated row (:func:`pumphouse.codec.row.encode_update`)."""
        mutation = self._table(table_id)
        mutation.updated_rows.append(row)
        mutation.sequence.append(pb.MutationType.Update)

    def delete(self, table_id: int, row: bytes) -> None:
        """Add a deleted row (:func:`pumphouse.codec.row.encode_delete`)."""
        mutation = self._table(table_id)
        mutation.deleted_rows.append(row)
        mutation.sequence.append(pb.MutationType.DeleteRow)

    def build(self) -> bytes:
        """Bytes of the prewrite value."""
        return self._value.SerializeToString()
