"""Registered captures: what each one says of itself, and who may run it. The same for every back end."""

from __future__ import annotations

import json
from typing import Any

from pumphouse.errors import CorruptionError
from pumphouse.model import strict
from pumphouse.registry.base import CAPTURE_TTL_S, CaptureRecord, CaptureState

FORMAT_VERSION = 1


def is_live(record: CaptureRecord, now: float) -> bool:
    """Whether a process may be running it: it says so, and its heartbeat is young; one from the future is taken so."""
    return record.state is CaptureState.RUNNING and now - record.heartbeat < CAPTURE_TTL_S


def to_json(record: CaptureRecord) -> bytes:
    """Registry value (docs/formats.md, "Registry")."""
    value = {
        "format_version": FORMAT_VERSION,
        "id": record.capture_id,
        "source": record.source,
        "server": record.server,
        "owner": record.owner,
        "host": record.host,
        "state": record.state.value,
        "reason": record.reason,
        "heartbeat": record.heartbeat,
        "gtid": record.gtid,
        "moment": record.moment,
        "lag_s": record.lag_s,
        "transactions": record.transactions,
        "start_ts": record.start_ts,
        "commit_ts": record.commit_ts,
        "anew": record.anew,
        "semi_sync": record.semi_sync,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def from_json(data: bytes) -> CaptureRecord:
    """Read a registry value; CorruptionError."""
    try:
        value: dict[str, Any] = strict.loads(data)
        version = value["format_version"]
        record = CaptureRecord(
            capture_id=strict.text(value["id"]),
            source=strict.text(value["source"]),
            server=strict.text(value["server"]),
            owner=strict.text(value["owner"]),
            host=strict.text(value["host"]),
            state=CaptureState(value["state"]),
            reason=strict.text(value["reason"]),
            heartbeat=strict.number(value["heartbeat"]),
            gtid=strict.text(value["gtid"]),
            moment=strict.number(value["moment"]),
            lag_s=strict.number(value["lag_s"]),
            transactions=strict.integer(value["transactions"], 0, (1 << 63) - 1),
            start_ts=strict.integer(value["start_ts"], 0, (1 << 63) - 1),
            commit_ts=strict.integer(value["commit_ts"], 0, (1 << 63) - 1),
            anew=strict.boolean(value["anew"]),
            semi_sync=None if value.get("semi_sync") is None else strict.boolean(value["semi_sync"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"a registry value is no capture: {data!r:.200}", reason=str(error)) from error
    if version != FORMAT_VERSION:
        raise CorruptionError(f"a capture has format_version {version}, this program reads {FORMAT_VERSION}")
    return record
