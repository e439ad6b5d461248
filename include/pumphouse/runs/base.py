"""When the DAG `binlog_maintenance` folds the next base."""

from __future__ import annotations

from pumphouse.archive.archive import Archive
from pumphouse.archive.view import read_view
from pumphouse.model.tso import Tso, physical_ms, show

_DAY_MS = 86_400_000


def why_not_due(archive: Archive, now: Tso, days: float | None) -> str:
    """Why it is not time for a base, in words; '' = it is. ``days``: of the setting ``airflow.base_days``."""
    if days is None:
        return "airflow.base_days is not set"
    bases = read_view(archive).bases
    if not bases:
        return "there is no dump to begin from: pumphouse archive dump"
    newest = bases[-1].ts
    age = (physical_ms(now) - physical_ms(newest)) / _DAY_MS
    return (
        ""
        if age >= days
        else f"the newest base, of {show(newest)}, is {age:.1f} days old: airflow.base_days is {days:g}"
    )
