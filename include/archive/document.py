"""JSON documents of the archive: canonical bytes out, checked values in, digests over the bytes as stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

from include.archive.layout import FORMAT_VERSION
from include.errors import BadManifest

T = TypeVar("T")


def sha256(data: bytes) -> str:
    """Lower-case hex digest."""
    return hashlib.sha256(data).hexdigest()


def dump(value: dict[str, Any]) -> bytes:
    """Canonical bytes: UTF-8, two-space indent, fields in the order of the format, one newline at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def parse(key: str, data: bytes, kind: str, read: Callable[[dict[str, Any]], T]) -> T:
    """Read one document; BadManifest names the object and what is wrong with it."""
    try:
        value = json.loads(data)
        found_kind, version = value["kind"], value["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadManifest(f"{key} is no {kind} of an archive: {error!r}", path=key, offset=0, reason="json") from error
    if found_kind != kind:
        raise BadManifest(f"{key} is a {found_kind}, not a {kind}", path=key, offset=0, reason="kind")
    if version != FORMAT_VERSION:
        raise BadManifest(
            f"{key} has format version {version}; this release reads {FORMAT_VERSION}",
            hint="use the release that wrote it, or a newer one",
            path=key,
            offset=0,
            reason="format_version",
        )
    try:
        return read(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadManifest(
            f"{key} lacks a field or has one of the wrong type: {error!r}", path=key, offset=0, reason="field"
        ) from error
