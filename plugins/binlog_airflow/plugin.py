"""What Airflow asks a plugin: its timetable. Connection types are in `provider`.

The package announces itself by its entry points alone (pyproject.toml). Airflow would execute a file directly below
plugins/ under its bare file name, beside the same module under its own.
"""

from airflow.plugins_manager import AirflowPlugin

from binlog_airflow.timetable import BackfillTimetable


class PumphousePlugin(AirflowPlugin):  # type: ignore[misc]  # airflow has no types for strict mode
    """The timetable of `binlog_apply`."""

    name = "pumphouse"
    timetables = [BackfillTimetable]  # noqa: RUF012 - as Airflow declares it
