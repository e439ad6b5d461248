"""The DAGs of an installation: `pumphouse_dags()` makes the first one's, and with a prefix those of another one.

In a file of Airflow's DAG folder:

    from binlog_airflow.factory import pumphouse_dags

    pumphouse_dags(prefix="eu_", targets=["eu_reporting"], restore_targets=["eu_spare"])
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING

from binlog_airflow.advice import SOURCE
from binlog_airflow.hooks import ARCHIVE, CLUSTER, RESTORE_TARGET
from binlog_airflow.installation import Installation
from binlog_airflow.workflows import apply, drill, dump, gc, kafka, load, maintenance, restore, schema, snapshot
from binlog_airflow.workflows.names import DEFAULT_POOL, Names
from pumphouse.errors import ConfigError
from pumphouse.settings import DOWNSTREAM

if TYPE_CHECKING:
    from airflow.sdk import DAG

MAKERS = {
    "binlog_snapshot": snapshot.make,
    "binlog_schema": schema.make,
    "binlog_load": load.make,
    "binlog_kafka": kafka.make,
    "pump_gc": gc.make,
    "binlog_dump": dump.make,
    "binlog_restore": restore.make,
    "binlog_apply": apply.make,
    "binlog_drill": drill.make,
    "binlog_maintenance": maintenance.make,
}


def pumphouse_dags(
    prefix: str = "",
    *,
    cluster: str = "",
    archive: str = "",
    source: str = "",
    targets: Sequence[str] = (),
    restore_targets: Sequence[str] = (),
    settings_file: str | Path = "",
    pool: str = DEFAULT_POOL,
    deferrable: bool = True,
    only: Collection[str] = (),
) -> dict[str, DAG]:
    """Make the DAGs of one installation; Airflow finds them without an assignment.

    Args:
        prefix: of the DAGs' ids, the assets, and the connections that are not named here; '' = the first installation.
        cluster: connection of the Pumps' cluster; '' = ``<prefix>pumphouse_cluster``.
        archive: connection of the archive; '' = ``<prefix>pumphouse_archive``.
        source: connection of the database that dumps read; '' = ``<prefix>pumphouse_source``.
        targets: connections, or NAMEs of [targets.NAME], that are loaded and that GC waits for where it follows the
            load; none = ``<prefix>pumphouse_downstream``, and for the first installation what its settings say.
        restore_targets: connections that restores may replace; none = ``<prefix>pumphouse_restore``, and for the first
            installation what its settings say.
        settings_file: for what no connection says, in place of pumphouse.toml; the environment beats it.
        pool: of all tasks.
        deferrable: tasks wait in triggers; False = in the worker, where there is no triggerer.
        only: DAGs by their ids without the prefix; none = all.

    Returns:
        The DAGs by id.

    Raises:
        ConfigError: a setting or an argument is wrong: an import error of this file, which takes no other along.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]{0,64}", prefix):
        raise ConfigError(f"{prefix!r} is no prefix of DAGs", hint="use letters, digits, _, - and .")
    for name, given in (("targets", targets), ("restore_targets", restore_targets), ("only", only)):
        if isinstance(given, str) or not all(isinstance(each, str) and each for each in given):
            raise ConfigError(f"{name} = {given!r} is no list of names", hint=f'{name}=["…", "…"]')
    if unknown := sorted(set(only) - set(MAKERS)):
        raise ConfigError(f"there is no DAG {', '.join(unknown)}", hint=f"known are {', '.join(MAKERS)}")
    if prefix:
        targets = targets or (f"{prefix}{DOWNSTREAM}",)
        restore_targets = restore_targets or (f"{prefix}{RESTORE_TARGET}",)
    names = Names(
        prefix=prefix,
        pool=pool,
        deferrable=deferrable,
        installation=Installation(
            archive=archive or f"{prefix}{ARCHIVE}",
            cluster=cluster or f"{prefix}{CLUSTER}",
            source=source or f"{prefix}{SOURCE}",
            targets=tuple(targets),
            restore_targets=tuple(restore_targets),
            settings_file=fspath(settings_file) if settings_file else "",
        ),
    )
    made = [make(names) for name, make in MAKERS.items() if not only or name in only]
    return {each.dag_id: each for each in made}
