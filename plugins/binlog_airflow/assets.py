"""The assets that join the DAGs. An event's ``extra`` says up to where it moved, as a TSO and as a clock time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from airflow.sdk import Asset

from binlog_airflow.xcom import clock_time


@dataclass(frozen=True, slots=True)
class Assets:
    """The assets of one installation."""

    archive: Asset
    schema: Asset
    target: Asset
    kafka: Asset

    @classmethod
    def of(cls, prefix: str = "") -> Self:
        """By the prefix of its DAGs; '' = the first one."""
        made = (Asset(f"{prefix}pumphouse_{what}", f"x-pumphouse://{what}/{prefix or 'main'}") for what in _KINDS)
        return cls(*made)


_KINDS = ("archive", "schema", "target", "kafka")


def moved(end: str | int, **facts: Any) -> dict[str, Any]:
    """The extra of an event: where its asset stands now, and what else there is to say, in small numbers and texts."""
    return {"end": str(end), "end_time": clock_time(int(end)), **facts}
