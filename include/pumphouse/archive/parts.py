"""A transaction that is too large for one cell, cut at row boundaries (row P17).

Each part is a Binlog that decodes alone: the same outer fields, and a PrewriteValue with the same schema version and a
run of the row changes, in the order of ``sequence``. The parts together hold every row change once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pumphouse.errors import BadBinlog
from pumphouse.model.binlog import MutationType
from pumphouse.proto import binlog_pb2


def split_payload(payload: Any, part_bytes: int) -> list[bytes]:
    """Cut a merged Binlog (bytes or a buffer) into parts of about ``part_bytes``; one row is never cut.

    BadBinlog when the payload does not parse or its ``sequence`` does not fit its rows.
    """
    binlog = binlog_pb2.Binlog()
    value = binlog_pb2.PrewriteValue()
    try:
        binlog.ParseFromString(payload.to_pybytes() if hasattr(payload, "to_pybytes") else payload)
        value.ParseFromString(binlog.prewrite_value)
    except Exception as error:  # google.protobuf raises an error class of its own per implementation
        raise BadBinlog(f"a payload of {len(payload)} bytes does not parse: {error}") from error
    binlog.ClearField("prewrite_value")

    parts: list[bytes] = []
    fragment = _new_fragment(value)
    room = part_bytes
    for mutation in value.mutations:
        rows = {
            MutationType.INSERT: mutation.inserted_rows,
            MutationType.UPDATE: mutation.updated_rows,
            MutationType.DELETE_ROW: mutation.deleted_rows,
        }
        sequence = np.array(mutation.sequence, dtype=np.int64)
        sizes = _sizes(sequence, rows)
        taken = dict.fromkeys(rows, 0)
        at = 0
        while at < len(sequence):
            # As many rows as fit, one at least when the part is empty.
            fit = int(np.searchsorted(np.cumsum(sizes[at:]), room, side="right"))
            if fit == 0 and room == part_bytes:
                fit = 1
            if fit == 0:
                parts.append(_close(binlog, fragment))
                fragment, room = _new_fragment(value), part_bytes
                continue
            piece = fragment.mutations.add(table_id=mutation.table_id)
            piece.sequence.extend(sequence[at : at + fit].tolist())
            for kind, target in (
                (MutationType.INSERT, piece.inserted_rows),
                (MutationType.UPDATE, piece.updated_rows),
                (MutationType.DELETE_ROW, piece.deleted_rows),
            ):
                count = int(np.count_nonzero(sequence[at : at + fit] == kind))
                target.extend(rows[kind][taken[kind] : taken[kind] + count])
                taken[kind] += count
            room = max(room - int(sizes[at : at + fit].sum()), 0)
            at += fit
    parts.append(_close(binlog, fragment))
    return parts


def _sizes(sequence: np.ndarray[Any, Any], rows: dict[MutationType, Any]) -> np.ndarray[Any, Any]:
    """Encoded bytes of each row change, in order of sequence."""
    sizes = np.zeros(len(sequence), np.int64)
    known = np.zeros(len(sequence), bool)
    for kind, values in rows.items():
        where = sequence == kind
        if int(np.count_nonzero(where)) != len(values):
            raise BadBinlog(f"sequence names {int(where.sum())} rows of kind {kind.name}, there are {len(values)}")
        sizes[where] = np.fromiter(map(len, values), np.int64, len(values)) + 8
        known |= where
    if not known.all():
        raise BadBinlog(f"unknown or obsolete mutation type {int(sequence[~known][0])}")
    return sizes


def _new_fragment(value: Any) -> Any:
    fragment = binlog_pb2.PrewriteValue()
    if value.HasField("schema_version"):
        fragment.schema_version = value.schema_version
    return fragment


def _close(outer: Any, fragment: Any) -> bytes:
    part = binlog_pb2.Binlog()
    part.CopyFrom(outer)
    part.prewrite_value = fragment.SerializeToString()
    return part.SerializeToString()
