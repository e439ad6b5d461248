"""JSON documents of an archive, changed as a liar would, or as a release before format version 2 wrote them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.document import dump, sha256

# The fields that name another document by its digest.
_DIGESTS = ("previous", "genesis_sha256")


def changed(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A document with changed content and the digest that belongs to it."""
    value = json.loads(data)
    change(value)
    del value["sha256"], value["format_version"]
    return dump(value.pop("kind"), value)


def resealed(value: Any) -> bytes:
    """A document of any content, with the digest that belongs to its bytes."""
    fields = {name: each for name, each in value.items() if name != "sha256"} if isinstance(value, dict) else {}
    body = json.dumps(fields, indent=2, ensure_ascii=False).removesuffix("\n}").encode(errors="replace")
    return body + f',\n  "sha256": "{sha256(body)}"\n}}\n'.encode()


def to_version_1(archive: Archive) -> None:
    """Write genesis, windows and declarations anew as version 1; HEAD, schema/ and index/, which follow, go."""
    store = archive.store
    renamed: dict[str, str] = {}
    for prefix in (layout.GENESIS, layout.WINDOWS, layout.DECLARED):
        for key in [each.key for each in store.list(prefix)]:
            data = store.get(key)
            value = {name: each for name, each in json.loads(data).items() if name != "sha256"}
            value["format_version"] = 1
            value |= {name: renamed[value[name]] for name in _DIGESTS if value.get(name)}
            old = (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
            renamed[sha256(data)] = sha256(old)
            store.put(key, old)
    derived = [each.key for prefix in (layout.SCHEMA, layout.INDEX) for each in store.list(prefix)]
    for key in [layout.HEAD, *derived]:
        store.delete(key)


# What a writer with a bug, or a stranger, could put in the place of any value.
JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 1, 1 << 31, 1 << 63, 1 << 64, -(1 << 63), 1e308, 0.5, "", "x", "\0", "0", "a" * 300, "../../x",
    "NaN", [], {}, [[]], {"a": 1}, [None], 99,
)  # fmt: skip


def mutated(value: Any, random_: random.Random) -> Any:
    """A JSON object with one to four values lost, doubled, moved, shifted or replaced by junk, at any depth."""
    value = copy.deepcopy(value)
    for _ in range(random_.choice([1, 1, 1, 2, 4])):
        place: tuple[Any, Any] | None = None
        node = value
        while isinstance(node, dict | list) and node and (place is None or random_.random() < 0.85):
            key = random_.choice(list(node)) if isinstance(node, dict) else random_.randrange(len(node))
            place, node = (node, key), node[key]
        if place is None:
            continue
        parent, key = place
        what = random_.random()
        if what < 0.2:
            del parent[key]
        elif what < 0.3 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        elif what < 0.4 and isinstance(parent, dict):
            other = random_.choice(list(parent))
            parent[other] = parent.pop(key)
        elif what < 0.6 and type(parent[key]) is int:
            parent[key] += random_.choice([-1, 1, 256, -256, 1 << 40])
        else:
            parent[key] = copy.deepcopy(random_.choice(JUNK))
    return value
