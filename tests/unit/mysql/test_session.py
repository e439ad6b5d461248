"""What sessions set, on servers that are not here."""

from __future__ import annotations

from typing import Any, Self

import pytest
from pymysql.err import OperationalError

from pumphouse.errors import ConfigError
from pumphouse.mysql import DUMP, HISTORY, LOAD
from pumphouse.mysql.session import Session, begin


class Keeping:
    """A server that keeps a variable as it is."""

    open = True

    def __init__(self, name: str, value: str, why: str) -> None:
        self._name, self._value, self._why = name, value, why
        self._rows: list[tuple[str, str]] = []

    def cursor(self, _: Any = None) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, statement: str) -> None:
        if statement.startswith("SHOW"):
            here = [(self._name, self._value)] if f"'{self._name}'" in statement else []
            self._rows = [("max_sort_length", "1024"), *here]
        elif self._name in statement:
            raise OperationalError(1238, self._why)

    def fetchall(self) -> list[tuple[str, str]]:
        return self._rows


@pytest.mark.row("L4", "A5")
def test_what_counts_for_tables_that_are_made_keeps_no_source_from_being_read() -> None:
    """A MariaDB before 10.6.9 has it OFF, and reads it when it starts."""
    old: Any = Keeping("explicit_defaults_for_timestamp", "OFF", "it is a read only variable")
    for session in (DUMP, HISTORY):
        begin(old, session, "there")
    with pytest.raises(ConfigError, match=r"explicit_defaults_for_timestamp is OFF there.*read only") as refused:
        begin(old, LOAD, "there")
    assert "in its configuration file" in refused.value.hint


@pytest.mark.row("L4", "A5")
@pytest.mark.parametrize("session", [DUMP, HISTORY, LOAD])
def test_a_limit_of_space_that_the_user_may_not_lift_stops_no_session(session: Session) -> None:
    kept: Any = Keeping("max_tmp_session_space_usage", str(1 << 40), "Access denied")
    begin(kept, session, "there")
