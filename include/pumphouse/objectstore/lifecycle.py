"""Rules of a bucket that delete objects by themselves, or make them unreadable: an archive needs them all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Objects there are read only after somebody asked for them, hours later.
_UNREADABLE = ("GLACIER", "DEEP_ARCHIVE")


def losing(rules: Iterable[Mapping[str, Any]], prefix: str) -> tuple[str, ...]:
    """What the rules of a bucket (S3's ``Rules``) do to objects below a prefix, one phrase for each rule that harms.

    A rule for objects with a tag harms nothing: ours have none.
    """
    return tuple(what for rule in rules if _concerns(rule, prefix) for what in _harm(rule))


def _concerns(rule: Mapping[str, Any], prefix: str) -> bool:
    chosen = rule.get("Filter") or {}
    both = chosen.get("And") or {}
    if rule.get("Status") != "Enabled" or chosen.get("Tag") or both.get("Tags"):
        return False
    of = str(both.get("Prefix") or chosen.get("Prefix") or rule.get("Prefix") or "")
    return of.startswith(prefix) or prefix.startswith(of)


def _harm(rule: Mapping[str, Any]) -> Iterator[str]:
    name = f"the lifecycle rule {str(rule.get('ID') or '(without a name)')!r}"
    expires = rule.get("Expiration") or {}
    if "Days" in expires or "Date" in expires:
        yield f"{name} deletes objects {_when(expires)}"
    for move in rule.get("Transitions") or ():
        if move.get("StorageClass") in _UNREADABLE:
            yield f"{name} moves objects {_when(move)} to {move['StorageClass']}, where they cannot be read"


def _when(of: Mapping[str, Any]) -> str:
    return f"after {of['Days']} days" if "Days" in of else f"on {of.get('Date')}"
