"""Between messages and what the store takes. Translates only; decides nothing but whether bytes are a Binlog."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from pump_service.store.store import Item
from pumphouse.codec.jit import frozen
from pumphouse.codec.walk import REASONS, payload_problem
from pumphouse.errors import BadBinlog
from pumphouse.model.binlog import MAX_TRANSACTION_BYTES, BinlogType
from pumphouse.proto.binlog_pb2 import Binlog

_TAKEN = (BinlogType.PREWRITE, BinlogType.COMMIT, BinlogType.ROLLBACK)


def item_of(payload: bytes) -> Item:
    """Parse a payload and serialize it again, as the Go Pump does: always-emitted fields are set explicitly.

    Raises:
        BadBinlog: it does not parse, has an obsolete or unknown type, times that cannot be, or is over the limit on
            a transaction: once answered it could neither be pulled nor archived.
    """
    if len(payload) > MAX_TRANSACTION_BYTES:
        raise BadBinlog(
            f"a binlog of {len(payload)} bytes is over the limit of {MAX_TRANSACTION_BYTES}",
            hint="split the transaction",
            size=len(payload),
            limit=MAX_TRANSACTION_BYTES,
        )
    try:
        message = Binlog.FromString(payload)
    except DecodeError as error:
        raise BadBinlog(f"a payload of {len(payload)} bytes is no Binlog: {error}", size=len(payload)) from error
    tp, start_ts, commit_ts = message.tp, message.start_ts, message.commit_ts
    _check(message, tp, start_ts, commit_ts)
    message.tp = tp
    message.start_ts = start_ts
    message.commit_ts = commit_ts
    message.ddl_job_id = message.ddl_job_id
    message.ddl_schema_state = message.ddl_schema_state
    return Item(
        payload=message.SerializeToString(),
        tp=int(tp),
        start_ts=start_ts,
        commit_ts=commit_ts,
        prewrite_key=message.prewrite_key,
    )


def refuse_unreadable(item: Item) -> None:
    """BadBinlog where the rows of a prewrite cannot be read: no archive and no Drainer would get past it."""
    if item.tp != BinlogType.PREWRITE:
        return
    data = frozen(np.frombuffer(item.payload, np.uint8))
    if problem := int(payload_problem(data, 0, len(data))):
        raise BadBinlog(
            f"the rows of the Prewrite of start ts {item.start_ts} cannot be read: {REASONS[problem]}",
            hint="write a PrewriteValue as TiDB does, or set pump.check_rows = false",
            start_ts=item.start_ts,
        )


def _check(message: Binlog, tp: int, start_ts: int, commit_ts: int) -> None:
    if tp not in _TAKEN or (not message.HasField("tp") and _has_unknown_type(message)):
        # A type that the enum does not know lands in the unknown fields and would look like a Prewrite.
        raise BadBinlog(f"a Binlog of type {tp or 'unknown'} is refused", hint="0, 1 and 2 are in use", tp=tp)
    if start_ts < 0 or commit_ts < 0:
        raise BadBinlog(f"negative time in a Binlog: start {start_ts}, commit {commit_ts}", start_ts=start_ts)
    # The index has rollbacks under 0: such a C would take one of them for its prewrite, and no pull would get past it.
    if start_ts == 0 and commit_ts != 0:
        raise BadBinlog(f"a Binlog without a start time: commit {commit_ts}", commit_ts=commit_ts)
    # Such a C would end its P's wait and be invisible to pullers: the transaction would be lost in silence.
    if tp == BinlogType.COMMIT and commit_ts <= start_ts:
        raise BadBinlog(
            f"a Commit must be above its start: start {start_ts}, commit {commit_ts}",
            start_ts=start_ts,
            commit_ts=commit_ts,
        )
    if tp == BinlogType.ROLLBACK and commit_ts not in (0, start_ts):
        raise BadBinlog(
            f"a Rollback has no commit time: start {start_ts}, commit {commit_ts}",
            start_ts=start_ts,
            commit_ts=commit_ts,
        )


def _has_unknown_type(message: Binlog) -> bool:
    unknown: Any = UnknownFieldSet(message)
    return any(field.field_number == 1 for field in unknown)
