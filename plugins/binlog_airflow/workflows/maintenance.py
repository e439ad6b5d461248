"""Verifies the archive, folds a base, copies, lets go of what retention does not keep, packs, deletes orphans.

It runs by the setting `airflow.maintenance_cron`, or by hand. How often a base is folded says `airflow.base_days`, and
where the copy lies `archive.copy_root`; without them none is. What is kept says the section `[retention]`; without
`keep_bases` and `keep_days` nothing expires. With `airflow.maintenance_compact`, small objects of old windows go into
packs. Where anything is wrong with the archive, or a task before it failed, nothing is deleted; the copy is made all
the same, up to what is damaged. Each task may be killed and run again.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, TriggerRule, chain

from binlog_airflow.operators import (
    PumphouseBaseOperator,
    PumphouseCompactOperator,
    PumphouseCopyOperator,
    PumphouseExpireOperator,
    PumphouseOrphansOperator,
    PumphouseVerifyOperator,
)
from binlog_airflow.workflows.names import Names

_A_DAY, _HALF = timedelta(hours=24), timedelta(hours=12)


def make(names: Names) -> DAG:
    """Archive -> a smaller archive."""
    settings = names.parsed("airflow").airflow
    with names.dag(
        "binlog_maintenance",
        __doc__,
        schedule=names.cron("maintenance_cron") or None,
        description="Verifies the archive, folds a base, copies, expires what retention does not keep, "
        "packs small objects, deletes orphans.",
        params={
            "full": Param(
                settings.maintenance_full,
                type="boolean",
                title="Read everything",
                description="verify contents too, not names and sizes alone; the setting airflow.maintenance_full",
            )
        },
    ) as dag:
        verify = PumphouseVerifyOperator(task_id="verify", full="{{ params.full }}", execution_timeout=_A_DAY)
        base = PumphouseBaseOperator(task_id="base", execution_timeout=_A_DAY)
        copy = PumphouseCopyOperator(task_id="copy", execution_timeout=_A_DAY, trigger_rule=TriggerRule.ALL_DONE)
        expire = PumphouseExpireOperator(task_id="expire", execution_timeout=_HALF)
        compact = PumphouseCompactOperator(task_id="compact", execution_timeout=_HALF)
        orphans = PumphouseOrphansOperator(task_id="orphans", execution_timeout=_HALF)
        # The copy holds every object against its digest itself, and ends before what is damaged: it waits for the
        # others, and not for their success. Expiry needs that of all three; it counts the base, and asks the copy.
        chain(verify, base, copy, expire, compact, orphans)
        [verify, base] >> expire
    return dag
