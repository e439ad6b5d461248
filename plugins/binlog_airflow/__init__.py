"""Airflow's side of Pumphouse: hooks, assets, tasks. Importing it is cheap; heavy libraries load inside tasks."""

from importlib import metadata

SDK_FLOOR = (1, 1)  # Airflow 3.1: the first one with approvals


def _require_airflow() -> None:
    """ImportError in one sentence where a DAG would fail with a name that an older Airflow lacks."""
    try:
        found = metadata.version("apache-airflow-task-sdk")
    except metadata.PackageNotFoundError:
        found = ""
    if not found or tuple(int(part) for part in found.split(".")[:2]) < SDK_FLOOR:
        what = f"its task SDK is {found}" if found else "there is no task SDK"
        raise ImportError(f"Pumphouse needs Airflow 3.1 or later (task SDK 1.1); here {what}: see docs/operations.md")


_require_airflow()
