"""What sessions set, on servers that are not here."""

from __future__ import annotations

from typing import Any, Self

import pytest
from pymysql.err import OperationalError

from pumphouse.errors import ConfigError
from pumphouse.mysql import DUMP, HISTORY, LOAD
from pumphouse.mysql.session import Session, begin


class MariaDb1060:
    """As a MariaDB before 10.6.9: explicit_defaults_for_timestamp is OFF, and read when the server starts."""

    open = True

    def __init__(self) -> None:
        self._rows: list[tuple[str, str]] = []

    def cursor(self, _: Any = None) -> MariaDb1060:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, statement: str) -> None:
        name = "explicit_defaults_for_timestamp"
        if statement.startswith("SHOW"):
            self._rows = [("max_sort_length", "1024"), *([(name, "OFF")] if f"'{name}'" in statement else [])]
        elif name in statement:
            raise OperationalError(1238, f"Variable '{name}' is a read only variable")

    def fetchall(self) -> list[tuple[str, str]]:
        return self._rows


@pytest.mark.row("L4", "A5")
@pytest.mark.parametrize("session", [DUMP, HISTORY])
def test_what_counts_for_tables_that_are_made_keeps_no_source_from_being_read(session: Session) -> None:
    begin(MariaDb1060(), session, "there")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="explicit_defaults_for_timestamp is OFF there") as refused:
        begin(MariaDb1060(), LOAD, "there")  # type: ignore[arg-type]
    assert "in its configuration file" in refused.value.hint
