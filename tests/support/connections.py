"""Airflow connections as environment, for what runs without a server of Airflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def connection_variables(connections: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Id -> its fields."""
    return {f"AIRFLOW_CONN_{name.upper()}": json.dumps(dict(fields)) for name, fields in connections.items()}
