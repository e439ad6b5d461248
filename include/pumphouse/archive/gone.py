"""Why an object that another one names is not there: it expired while somebody read, or something else deleted it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pumphouse.archive.document import parse
from pumphouse.archive.layout import BASE, RANGE, WINDOWS, base_low, folder_start, window_start
from pumphouse.archive.packs import PUT_BACK, lost_documents
from pumphouse.errors import BinlogError
from pumphouse.model import strict
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore
from pumphouse.objectstore.probe import KEEP

RANGE_KIND = "range"


def told(restorable: Tso, start: Tso, who: str, at_ms: int) -> str:
    """From when on an archive is kept, for an error about what was before."""
    at = datetime.fromtimestamp(at_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
    return (
        f"the archive keeps moments from {show(restorable)} on, and windows from {show(start)} on: what was before "
        f"expired at {at} UTC, by {who}"
    )


def why_gone(store: ObjectStore, key: str) -> tuple[str, str]:
    """(why, what to do) of an object that is missing; each may be ''."""
    rules = store.losing(key)
    doers = "; ".join(rules) or "a hand or a rule of the store did"
    try:
        lost = "; ".join(lost_documents(store, [key]).values())
        newest = max((each.key for each in store.list(RANGE)), default=None)
        if newest is None:
            return (lost, PUT_BACK) if lost else ("; ".join(rules), KEEP if rules else "")
        expired, begun, start = parse(newest, store.get(newest), RANGE_KIND, _read)
    except BinlogError:  # told when it is read for its own sake
        return "; ".join(rules), KEEP if rules else ""
    window = window_start(key) if key.startswith(WINDOWS) else folder_start(key)
    if expired and (window is not None and window < start):
        return f"it expired meanwhile: {expired}", "run again: the archive is read anew"
    if lost:
        return lost, PUT_BACK
    if expired and key.startswith(BASE) and base_low(key) < begun:
        return f"it is of a dump that expired: {expired}", "run again; `pumphouse archive verify` says what is missing"
    kept = f"{newest} keeps what begins at {show(start)} or later, and `archive expire` deletes none of it: {doers}"
    return kept, KEEP if rules else "put it back from a copy of the archive; pumphouse archive verify"


def _read(value: dict[str, Any]) -> tuple[str, Tso, Tso]:
    start, base = Tso(strict.integer(value["start"])), value["base"]
    if base is None:
        return "", Tso(0), start
    by, at = strict.text(value["expired_by"]), strict.integer(value["expired_ms"])
    return told(Tso(strict.integer(base["ts"])), start, by, at), Tso(strict.integer(base["begun"])), start
