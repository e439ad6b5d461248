"""What Airflow asks a plugin: its timetable, and its page. Connection types are in `provider`.

The package announces itself by its entry points alone (pyproject.toml). Airflow would execute a file directly below
plugins/ under its bare file name, beside the same module under its own.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from binlog_airflow.timetable import BackfillTimetable


class Page:
    """The page's app, made at the first request: schedulers and tasks load plugins too, and serve none."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI has it."""
        if self._app is None:
            from binlog_airflow.page.app import make

            self._app = make()
        await self._app(scope, receive, send)


class PumphousePlugin(AirflowPlugin):  # type: ignore[misc]  # airflow has no types for strict mode
    """The timetable of `binlog_apply`, the page, and its tile on the dashboard."""

    # ruff: noqa: RUF012 - as Airflow declares them
    name = "pumphouse"
    timetables = [BackfillTimetable]
    fastapi_apps = [{"app": Page(), "url_prefix": "/pumphouse", "name": "Pumphouse"}]
    external_views = [
        {
            "name": "Pumphouse",
            "href": "pumphouse/",
            "destination": "nav",
            "url_route": "pumphouse",
            "icon": "pumphouse/icon.svg",
            "nav_top_level": True,
        }
    ]
    react_apps = [
        {
            "name": "Pumphouse tile",
            "bundle_url": "pumphouse/tile.js",
            "destination": "dashboard",
            "url_route": "pumphouse-tile",
        }
    ]
