"""The only file of plugins/ that Airflow executes.

Airflow runs every .py below plugins/ under its bare file name, so the package beside it is kept out by .airflowignore
and imported under its own name, `binlog_airflow`.
"""

from airflow.plugins_manager import AirflowPlugin


class PumphousePlugin(AirflowPlugin):
    """Announces the plugin; connection types come from the provider entry point (binlog_airflow.provider)."""

    name = "pumphouse"
