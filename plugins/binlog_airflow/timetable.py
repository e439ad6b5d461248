"""The schedule of a DAG that is driven by backfill alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.timetables.interval import CronDataIntervalTimetable

if TYPE_CHECKING:
    from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction


class BackfillTimetable(CronDataIntervalTimetable):  # type: ignore[misc]  # airflow has no types for strict mode
    """Intervals of a cron expression, for backfills; the scheduler makes no run of it by itself.

    A scheduled run would be in the way: `airflow backfill create` passes over an interval that has a run.
    """

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """The next interval; None for the scheduler: it asks without catchup, as the DAG says, and backfill with it."""
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )

    @property
    def summary(self) -> str:
        """What the pages of Airflow show."""
        return f"backfill ({super().summary})"
