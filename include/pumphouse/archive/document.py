"""JSON documents of the archive: canonical bytes out, checked values in, digests over the bytes as stored.

A document's last field is the digest of all bytes before it, so that no byte of it can change unseen (version 1 had
none). What another object says of it, `previous` of a manifest above all, is the digest of the whole object.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from pumphouse.advice import Hint, Part
from pumphouse.errors import BadManifest, BinlogError
from pumphouse.model import strict

T = TypeVar("T")

FORMAT_VERSION = 2
LISTS_ALL = "pumphouse archive verify lists everything that is wrong"
_WITHOUT_DIGEST = 1
_PUT_BACK = f"put it back from a copy of the archive; {LISTS_ALL}"
_LOOKS_SEALED = re.compile(rb',\n  "sha256": "[0-9a-f]{64}"\n}\n')


def sha256(data: bytes) -> str:
    """Lower-case hex digest."""
    return hashlib.sha256(data).hexdigest()


def dump(kind: str, fields: dict[str, Any]) -> bytes:
    """Canonical bytes: UTF-8, two-space indent, fields in the order of the format, one newline at the end."""
    value = {"kind": kind, "format_version": FORMAT_VERSION, **fields}
    body = json.dumps(value, indent=2, ensure_ascii=False).removesuffix("\n}").encode()
    return body + _seal(body)


def parse(
    key: str, data: bytes, kind: str, read: Callable[[dict[str, Any]], T], *, remedy: Part | Hint = _PUT_BACK
) -> T:
    """Read one document; BadManifest names the object, what is wrong with it and the ``remedy``."""
    body, end = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
    sealed = end == _seal(body)
    if not sealed and _LOOKS_SEALED.fullmatch(end):
        raise _refused(key, f"is damaged: its bytes have the digest {sha256(body)}, it says another", "sha256", remedy)
    try:
        value = strict.loads(data)
        found_kind, version = value["kind"], value["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise _refused(key, f"is no {kind} of an archive: {error!r}", "json", remedy) from error
    if found_kind != kind:
        raise _refused(key, f"is a {found_kind}, not a {kind}", "kind", remedy)
    if version not in (_WITHOUT_DIGEST, FORMAT_VERSION):
        what = f"has format version {version}; this release reads {_WITHOUT_DIGEST} and {FORMAT_VERSION}"
        raise _refused(key, what, "format_version", "use the release that wrote it, or a newer one")
    if version == _WITHOUT_DIGEST and "sha256" in value:
        raise _refused(key, "has format version 1 and a digest of its own", "sha256", remedy)
    if version == FORMAT_VERSION and not sealed:
        raise _refused(key, "does not end in the digest of its bytes", "sha256", remedy)
    try:
        return read(value)
    except (LookupError, TypeError, ValueError, AttributeError, BinlogError) as error:
        what = f"lacks a field or has one of the wrong type: {error!r:.300}"
        raise _refused(key, what, "field", remedy) from error


def _seal(body: bytes) -> bytes:
    """The end of a document after ``body``: of fixed length, and no other bytes will do."""
    return f',\n  "sha256": "{sha256(body)}"\n}}\n'.encode()


_SEAL_BYTES = len(_seal(b""))


def _refused(key: str, what: str, reason: str, hint: Part | Hint) -> BadManifest:
    return BadManifest(f"{key} {what}", hint=hint, path=key, offset=0, reason=reason)
