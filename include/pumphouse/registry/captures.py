"""Registered captures: what each one says of itself, and who may run it. The same for every back end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pumphouse.errors import CorruptionError, UsageError
from pumphouse.model import strict
from pumphouse.registry.base import CAPTURE_TTL_S, CaptureRecord, CaptureState, Cluster

FORMAT_VERSION = 1


def is_live(record: CaptureRecord, now: float) -> bool:
    """Whether a process may be running it: it says so, and its heartbeat is young; one from the future is taken so."""
    return record.state is CaptureState.RUNNING and now - record.heartbeat < CAPTURE_TTL_S


def pause(cluster: Cluster, capture_id: str, since: float) -> None:
    """Say that it is to stand still, and since when; 0 = that it goes on. It hears of it with its next heartbeat.

    Raises:
        UsageError: it is not registered.
    """

    def change(found: CaptureRecord | None) -> CaptureRecord:
        if found is None:
            raise not_registered(capture_id)
        return replace(found, paused=since and (found.paused or since))

    cluster.update_capture(capture_id, change)


def not_registered(capture_id: str) -> UsageError:
    """The error for an id that the cluster does not know."""
    return UsageError(f"no capture {capture_id} is registered", hint="`pumphouse capture status` lists them")


def to_json(record: CaptureRecord) -> bytes:
    """Registry value (docs/formats.md, "Registry")."""
    value = {"format_version": FORMAT_VERSION, **record.to_dict()}
    return json.dumps(value, separators=(",", ":")).encode()


def from_json(data: bytes) -> CaptureRecord:
    """Read a registry value; CorruptionError."""
    try:
        value: dict[str, Any] = strict.loads(data)
        version = value["format_version"]
        record = CaptureRecord.from_dict(value)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"a registry value is no capture: {data!r:.200}", reason=str(error)) from error
    if version != FORMAT_VERSION:
        raise CorruptionError(f"a capture has format_version {version}, this program reads {FORMAT_VERSION}")
    return record
