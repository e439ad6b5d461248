"""Rules for registered resolvers, the same for every back end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pumphouse.errors import CorruptionError, ResolverOverlap
from pumphouse.library_log import library_logger
from pumphouse.model import strict
from pumphouse.registry.base import RESOLVER_TTL_S, STOPPED, ResolverRecord

log = library_logger(__name__)

FORMAT_VERSION = 1


def is_live(record: ResolverRecord, now: float) -> bool:
    """Whether its heartbeat is younger than ten seconds; one from the future (a clock went back) is not."""
    return abs(now - record.heartbeat) < RESOLVER_TTL_S


def refuse_overlap(record: ResolverRecord, others: Iterable[ResolverRecord], now: float) -> None:
    """Raise ResolverOverlap if a prefix begins another live resolver's, or the other way round.

    One that stops goes on claiming its keys, whoever is live beside it.
    """
    if record.heartbeat == STOPPED:
        return
    for other in others:
        if other.resolver_id == record.resolver_id or not is_live(other, now):
            continue
        for mine in record.prefixes:
            for theirs in other.prefixes:
                if mine.startswith(theirs) or theirs.startswith(mine):
                    raise ResolverOverlap(
                        f"prefix {mine.hex() or '(all keys)'} of resolver {record.resolver_id!r} overlaps "
                        f"{theirs.hex() or '(all keys)'} of {other.resolver_id!r} at {other.host}",
                        hint="stop the other resolver and wait 10 s, or give the two different prefixes",
                        resolver_id=record.resolver_id,
                        other=other.resolver_id,
                    )


def to_json(record: ResolverRecord) -> bytes:
    """Registry value; prefixes in hex."""
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "id": record.resolver_id,
            "host": record.host,
            "prefixes": [prefix.hex() for prefix in record.prefixes],
            "heartbeat": record.heartbeat,
        },
        separators=(",", ":"),
    ).encode()


def read(name: str, data: bytes) -> ResolverRecord:
    """A registry value of a list, whatever it holds: one that cannot be read counts as stopped.

    It may be a newer program's. So it goes on claiming its prefixes, or every key when these cannot be read, and keeps
    nobody else from being listed.
    """
    try:
        return from_json(data)
    except CorruptionError as error:
        log.warning("resolver_record_unreadable", resolver_id=name, error=error.message)
        return ResolverRecord(resolver_id=name, host="", prefixes=_prefixes(data), heartbeat=STOPPED)


def _prefixes(data: bytes) -> tuple[bytes, ...]:
    try:
        return tuple(bytes.fromhex(prefix) for prefix in strict.loads(data)["prefixes"])
    except (ValueError, KeyError, TypeError):
        return (b"",)


def from_json(data: bytes) -> ResolverRecord:
    """Read a registry value."""
    try:
        value: dict[str, Any] = strict.loads(data)
        version = value["format_version"]
        record = ResolverRecord(
            resolver_id=strict.text(value["id"]),
            host=strict.text(value["host"]),
            prefixes=tuple(bytes.fromhex(prefix) for prefix in value["prefixes"]),
            heartbeat=strict.number(value["heartbeat"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"a registry value is no resolver: {data!r:.200}", reason=str(error)) from error
    if version != FORMAT_VERSION:
        raise CorruptionError(f"a resolver has format_version {version}, this program reads {FORMAT_VERSION}")
    return record
