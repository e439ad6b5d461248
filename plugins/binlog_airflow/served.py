"""What the served versions of Airflow have in different places, or not at all: 3.1, 3.2 and 3.3."""

from __future__ import annotations

from typing import Any

import airflow.sdk
import airflow.sdk.exceptions

try:
    from airflow.sdk.exceptions import (
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        TaskDeferred,
    )
except ImportError:  # 3.1
    from airflow.exceptions import (
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        TaskDeferred,
    )
try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable

# 3.3: a task asks its policy whether it is tried again, and waits for an answer in no trigger.
ExceptionRetryPolicy: Any = getattr(airflow.sdk, "ExceptionRetryPolicy", object)
RetryDecision: Any = getattr(airflow.sdk, "RetryDecision", None)
TaskAwaitingInput: Any = getattr(airflow.sdk.exceptions, "TaskAwaitingInput", None)

__all__ = [
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "CronDataIntervalTimetable",
    "ExceptionRetryPolicy",
    "RetryDecision",
    "TaskAwaitingInput",
    "TaskDeferred",
]
