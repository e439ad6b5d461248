"""What the DAGs of one installation have in common: their ids, assets, pool, and the connections of their tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow.exceptions import AirflowTimetableInvalid
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from binlog_airflow.assets import Assets
from binlog_airflow.installation import Installation
from binlog_airflow.retry import default_args
from pumphouse.errors import ConfigError
from pumphouse.settings import Settings

DEFAULT_POOL = "default_pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """``prefix``: of every id and asset; '' = the first installation's. ``pool``: of every task.

    ``deferrable``: they wait in triggers.
    """

    installation: Installation = field(default_factory=Installation)
    prefix: str = ""
    pool: str = DEFAULT_POOL
    deferrable: bool = True

    @property
    def assets(self) -> Assets:
        """What joins the DAGs."""
        return Assets.of(self.prefix)

    def parsed(self, *sections: str) -> Settings:
        """Settings of these sections, for a schedule or a form."""
        return self.installation.parsed(*sections)

    def cron(self, setting: str) -> str:
        """The schedule that a setting of [airflow] says, '' = none; ConfigError where it is no cron expression."""
        found: str = getattr(self.parsed("airflow").airflow, setting)
        if found and not found.startswith("@"):
            try:
                CronDataIntervalTimetable(found, timezone="UTC").validate()
            except AirflowTimetableInvalid as error:
                raise ConfigError(f"setting 'airflow.{setting}': {found!r} is no cron expression: {error}") from None
        return found

    def dag(self, name: str, doc: str | None, *, schedule: Any, description: str, active: int = 1, **more: Any) -> DAG:
        """One DAG; its operators get their connections by ``default_args``."""
        here = self.installation
        return DAG(
            f"{self.prefix}{name}",
            schedule=schedule,
            description=description,
            start_date=datetime(2024, 1, 1, tzinfo=UTC),
            catchup=False,
            max_active_runs=active,
            default_args={
                **default_args(),
                "pool": self.pool,
                "archive_conn_id": here.archive,
                "cluster_conn_id": here.cluster,
                "source_conn_id": here.source,
                "targets": list(here.targets),
                "restore_targets": list(here.restore_targets),
                "settings_file": here.settings_file,
                "deferrable": self.deferrable,
            },
            tags=["pumphouse"],
            doc_md=doc,
            **more,
        )
