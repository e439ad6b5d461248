"""Registered captures: what each one says of itself, and who may run it. The same for every back end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pumphouse.errors import CorruptionError, UsageError
from pumphouse.library_log import library_logger
from pumphouse.model import strict
from pumphouse.registry.base import CAPTURE_TTL_S, CaptureRecord, CaptureState, Cluster

log = library_logger(__name__)

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


def from_json(data: bytes, where: str) -> CaptureRecord:
    """Read a registry value; CorruptionError, which names its file or key."""
    try:
        value: dict[str, Any] = strict.loads(data)
        version = value["format_version"]
        if version == FORMAT_VERSION:
            return CaptureRecord.from_dict(value)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(
            f"{where}: a registry value is no capture ({error}): {data!r:.200}",
            hint="put back what was there: without it nobody knows up to where the capture had read",
            path=where,
            reason=str(error),
        ) from error
    raise CorruptionError(
        f"{where}: a capture has format_version {version}, this program reads {FORMAT_VERSION}",
        hint="a newer release wrote it: use that one",
        path=where,
        reason="format_version",
    )


def readable(values: Iterable[tuple[bytes, str]]) -> list[CaptureRecord]:
    """Of registry values, each with its place, those that can be read, sorted by id; the others are logged."""
    found = []
    for data, where in values:
        try:
            found.append(from_json(data, where))
        except CorruptionError as error:
            log.warning("capture_unreadable", error=str(error))
    return sorted(found, key=lambda record: record.capture_id)
