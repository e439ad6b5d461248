"""JSON documents of an archive, changed as a liar would, or as a release before format version 2 wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.document import dump, sha256
from pumphouse.errors import ObjectNotFound

# What version 2 has and version 1 had not, and the fields that name another document by its digest.
_NEW = ("sha256", "manifest_sha256", "window_sha256")
_DIGESTS = ("previous", "genesis_sha256", "base_sha256")


def changed(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A document with changed content and the digest that belongs to it."""
    value = json.loads(data)
    change(value)
    del value["sha256"], value["format_version"]
    return dump(value.pop("kind"), value)


def to_version_1(archive: Archive) -> None:
    """Write every document of an archive anew as version 1, chained by the digests of the new bytes."""
    store = archive.store
    renamed: dict[str, str] = {}
    for prefix in (layout.GENESIS, layout.WINDOWS, layout.SCHEMA, layout.DECLARED, layout.HEAD):
        for key in [each.key for each in store.list(prefix)]:
            data = store.get(key)
            value = {name: each for name, each in json.loads(data).items() if name not in _NEW}
            value["format_version"] = 1
            value |= {name: renamed[value[name]] for name in _DIGESTS if value.get(name)}
            old = (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
            renamed[sha256(data)] = sha256(old)
            store.put(key, old)
    try:
        if json.loads(store.get(layout.HEAD))["manifest"] == layout.GENESIS:
            store.delete(layout.HEAD)  # it named windows only
    except ObjectNotFound:
        pass
