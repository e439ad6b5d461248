"""Who holds a window, as a fact of `WindowHeld`: a small dict, so that an error stays plain data wherever it goes."""

from __future__ import annotations

from typing import Any

DDL_HISTORY = "ddl history"  # stands where a node id does


def holder(node_id: str, why: str, start_ts: int = 0, **more: str | int) -> dict[str, Any]:
    """One holder: who, why, and the start ts of the transaction that blocks it, 0 = none."""
    return {"node_id": node_id, "why": why, "start_ts": int(start_ts), **more}


def named(holders: list[dict[str, Any]]) -> str:
    """Each holder with its reason, for the message."""
    return "; ".join(f"{each['node_id']}: {each['why']}" for each in holders)
