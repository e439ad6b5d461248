"""``pumphouse dags``: where the DAG files are."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from pumphouse.errors import UsageError


def dags_folder() -> Path:
    """The folder of the DAG files: beside binlog_airflow in a wheel, dags/ in a checkout."""
    spec = find_spec("binlog_airflow")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError("the package binlog_airflow is not importable", hint="pip install 'pumphouse[airflow]'")
    package = Path(spec.submodule_search_locations[0])
    found = next(
        (f for f in (package / "dags", package.parents[1] / "dags") if (f / "binlog_snapshot.py").exists()), None
    )
    if found is None:
        raise UsageError(f"there are no DAG files beside {package}", hint="pip install --force-reinstall pumphouse")
    return found


@click.command()
def dags() -> None:
    """Print the folder of the DAG files: Airflow reads them where a link in its own DAG folder leads here.

    \b
    ln -s "$(pumphouse dags)" "$AIRFLOW_HOME/dags/pumphouse"
    """  # noqa: D301 - of click
    click.echo(str(dags_folder()))
