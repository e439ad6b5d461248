"""Verifies the archive, folds a base, copies, lets go of what retention does not keep, deletes what killed tasks left.

It runs by the setting `airflow.maintenance_cron`, or by hand. How often a base is folded says `airflow.base_days`, and
where the copy lies `archive.copy_root`; without them none is. What is kept says the section `[retention]`; without
`keep_bases` and `keep_days` nothing expires. Where anything is wrong with the archive, or a task before it failed,
nothing is deleted; the copy is made all the same, up to what is damaged. Each task may be killed and run again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, TriggerRule, chain, dag, get_current_context, task

from binlog_airflow import tasks
from binlog_airflow.retry import default_args, one_sentence
from pumphouse.settings import Settings

_SETTINGS = Settings.read_only("airflow")


@dag(
    schedule=_SETTINGS.airflow.maintenance_cron or None,
    description="Verifies the archive, folds a base, copies, expires what retention does not keep, deletes orphans.",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=default_args(),
    params={
        "full": Param(
            _SETTINGS.airflow.maintenance_full,
            type="boolean",
            title="Read everything",
            description="verify contents too, not names and sizes alone; the setting airflow.maintenance_full",
        )
    },
    tags=["pumphouse"],
    doc_md=__doc__,
)
def binlog_maintenance() -> None:
    """Archive -> a smaller archive."""

    @task(execution_timeout=timedelta(hours=24))
    @one_sentence
    def verify() -> dict[str, Any]:
        """Nothing expires from an archive that is not sound."""
        return tasks.verify_archive(full=bool(get_current_context()["params"]["full"]))

    @task(execution_timeout=timedelta(hours=24))
    @one_sentence
    def base() -> dict[str, Any]:
        """The newest base and the windows behind it become the next one, if airflow.base_days says that it is time."""
        return tasks.fold_base_if_due()

    @task(execution_timeout=timedelta(hours=24), trigger_rule=TriggerRule.ALL_DONE)
    @one_sentence
    def copy() -> dict[str, Any]:
        """The copy that archive.copy_root names, if any, gets what it lacks."""
        return tasks.copy_archive()

    @task(execution_timeout=timedelta(hours=12))
    @one_sentence
    def expire() -> dict[str, Any]:
        """The range moves, then what lies below it is deleted; who holds more is in the log and in the result."""
        return tasks.expire_archive()

    @task(execution_timeout=timedelta(hours=12))
    @one_sentence
    def orphans() -> dict[str, Any]:
        """What no document names and no task that runs can name any more."""
        return tasks.delete_orphans()

    # The copy holds every object against its digest itself, and ends before what is damaged: it waits for the others,
    # and not for their success. Expiry needs that of all three; it counts the base, and asks the copy what it has.
    verified, folded, copied, expired = verify(), base(), copy(), expire()
    chain(verified, folded, copied, expired, orphans())
    [verified, folded] >> expired


binlog_maintenance()
