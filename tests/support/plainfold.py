"""The fold of changes to their net change, one at a time: what `pumphouse.loader.fold` is held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Change:
    """One row change: ``kind`` insert, update or delete; values by column name."""

    kind: str
    values: dict[str, Any]
    old: dict[str, Any] | None = None


_FOLDS: dict[tuple[str, str], Callable[[Change, Change], Change]] = {
    ("insert", "insert"): lambda _, new: new,
    ("insert", "update"): lambda _, new: Change("insert", new.values),
    ("insert", "delete"): lambda _, new: new,
    ("update", "insert"): lambda _, new: new,
    ("update", "update"): lambda old, new: Change("update", new.values, old.old),
    ("update", "delete"): lambda _, new: new,
    ("delete", "insert"): lambda _, new: new,
    ("delete", "update"): lambda _, new: new,
    ("delete", "delete"): lambda _, new: new,
}


def fold_reference(changes: Iterable[Change], key: Sequence[str]) -> list[Change]:
    """Net change per key, as the Go loader's merge does it (wire-format 6.4).

    An update that moves its key is a delete and an insert.
    """
    net: dict[tuple[Any, ...], Change] = {}

    def add(change: Change) -> None:
        at = tuple(change.values[name] for name in key)
        before = net.pop(at, None)
        net[at] = change if before is None else _FOLDS[before.kind, change.kind](before, change)

    for change in changes:
        if change.kind == "update" and change.old is not None and any(change.old[k] != change.values[k] for k in key):
            add(Change("delete", change.old))
            add(Change("insert", change.values))
        else:
            add(change)
    return list(net.values())
