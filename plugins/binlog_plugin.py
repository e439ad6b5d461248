"""The only file of plugins/ that Airflow executes.

Airflow runs every .py below plugins/ under its bare file name, so the package beside it is kept out by .airflowignore
and imported under its own name, `binlog_airflow`.
"""

from airflow.plugins_manager import AirflowPlugin

from binlog_airflow.timetable import BackfillTimetable


class PumphousePlugin(AirflowPlugin):
    """Announces the plugin and its timetable; connection types come from the entry point (binlog_airflow.provider)."""

    name = "pumphouse"
    timetables = [BackfillTimetable]  # noqa: RUF012 - as Airflow declares it
