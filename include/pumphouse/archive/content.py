"""What makes two binlogs the same transaction: the P's content. The C's own bytes may differ between Pumps."""

from __future__ import annotations

import hashlib

from pumphouse.errors import BadBinlog
from pumphouse.proto.binlog_pb2 import Binlog


def parse_binlog(payload: bytes) -> Binlog:
    """Parse a merged Binlog; BadBinlog."""
    binlog = Binlog()
    try:
        binlog.ParseFromString(payload)
    except Exception as error:  # google.protobuf has an error class of its own per implementation
        raise BadBinlog(f"a payload of {len(payload)} bytes does not parse: {error}") from error
    return binlog


def content_digest(payload: bytes) -> str:
    """Digest over prewrite_value, ddl_query, ddl_job_id and ddl_schema_state."""
    binlog = parse_binlog(payload)
    digest = hashlib.sha256()
    for part in (
        binlog.prewrite_value,
        binlog.ddl_query,
        str(binlog.ddl_job_id).encode(),
        str(binlog.ddl_schema_state).encode(),
    ):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
