"""What a copy of a source lacks: triggers, events, routines, views, users and foreign keys, kept as text with a dump.

One object for each dump, ``base/<begun>/objects``, which ``base.json`` names with its digest. A dump whose
document names none is of a release that kept none. Nothing of ours runs the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from pumphouse.archive.archive import Archive
from pumphouse.archive.base import Base
from pumphouse.archive.document import dump, parse, sha256
from pumphouse.errors import BadManifest, BinlogError
from pumphouse.model.record import Record, Uint64

KIND = "base objects"
# How a server shows that an event runs, behind its schedule.
_ENABLED = re.compile(r"( ON COMPLETION (?:NOT )?PRESERVE) ENABLE\b")
# In the order in which they can be made.
KINDS = ("user", "foreign key", "function", "procedure", "view", "trigger", "event")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceObject(Record):
    """One object of the source, and the statements that make it."""

    kind: str
    name: str
    sql: tuple[str, ...]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        found = cls.read(data)
        if found.kind not in KINDS:
            raise ValueError(f"{found.kind!r:.60} is no kind of object")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceObjects(Record):
    """Those of one dump; ``unseen``: what is not kept, in words."""

    cluster_id: Uint64
    begun: int
    objects: tuple[SourceObject, ...]
    unseen: tuple[str, ...] = ()

    def counts(self) -> str:
        """How many there are of each kind, in words."""
        found = Counter(each.kind for each in self.objects)
        return ", ".join(f"{found[kind]} {kind}{'s' * (found[kind] > 1)}" for kind in KINDS if found[kind])

    def to_json(self) -> bytes:
        """Bytes as stored."""
        return dump(KIND, self.to_dict())

    @classmethod
    def from_json(cls, key: str, data: bytes) -> SourceObjects:
        """Read the stored object; BadManifest."""
        return parse(key, data, KIND, cls.from_dict)


def kept_with(archive: Archive, base: Base) -> SourceObjects | str:
    """The same for people, or why there is nothing: a restore does not stop for it."""
    try:
        return objects_of(archive, base) or "the dump kept nothing of it: it is of an earlier release, or of genesis"
    except BinlogError as error:
        return error.message


def objects_of(archive: Archive, base: Base) -> SourceObjects | None:
    """What a dump has kept; None where it kept nothing. BadManifest where that is not what the dump names."""
    if not base.objects:
        return None
    key = base.objects_key
    data = archive.store.get(key)
    if sha256(data) != base.objects:
        raise BadManifest(f"{key} is not what its dump names: another digest", path=key, offset=0, reason="sha256")
    return SourceObjects.from_json(key, data)


def script(kept: SourceObjects, title: str) -> str:
    """All of it for a MySQL client, in an order in which it can be run; events are made disabled.

    Users stand first, because the others name them, and what users may do stands last, because it names the others.
    """
    lines = [f"-- {_in_a_comment(title)}"]
    lines += [f"-- not kept: {_in_a_comment(each)}" for each in kept.unseen]
    lines += ["", "SET NAMES utf8mb4;"]
    for each in sorted(kept.objects, key=lambda one: KINDS.index(one.kind)):
        lines += _made(each, each.sql[:1] if each.kind == "user" else each.sql)
    for each in kept.objects:
        if each.kind == "user" and each.sql[1:]:
            lines += _made(each, each.sql[1:])
    return "\n".join(lines) + "\n"


def _made(each: SourceObject, statements: Iterable[str]) -> list[str]:
    was = ""
    if each.kind == "event":
        found = [_ENABLED.sub(r"\1 DISABLE", one, count=1) for one in statements]
        was, statements = ", which was enabled" * (found != [*statements]), found
    elif each.kind == "view":  # a restore may have made it, without what it loses on its way
        statements = [re.sub(r"^CREATE ", "CREATE OR REPLACE ", one) for one in statements]
    # A text may end in a comment to its line's end, so the end mark has a line of its own.
    of_it = [f"{one}\n;;" for one in ("SET sql_mode = ''", *statements)]
    return ["", f"-- {each.kind} {_in_a_comment(each.name)}{was}", "DELIMITER ;;", *of_it, "DELIMITER ;"]


def _in_a_comment(name: str) -> str:
    return " ".join(name.split())
