"""A history on a MySQL server that is not what the setting says: the error names what is wrong, not the weather."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from pumphouse.errors import ConfigError, SchemaError
from pumphouse.loader.target import TargetConnection
from pumphouse.schema.history import open_history
from pumphouse.settings import TargetSettings
from tests.support import mariadb

pytestmark = pytest.mark.row("S1")


def jobs(server: TargetSettings, table: str, password: str) -> list[object]:
    url = f"mysql://root:{password}@{server.host}:{server.port}/{table}"
    told = mariadb.as_history(server, table).model_copy(update={"history": url, "history_password": SecretStr("")})
    history = open_history(told)
    assert history is not None
    return list(history.jobs())


@pytest.mark.parametrize("table", ["there.missing", "nowhere.jobs"])
def test_a_missing_table_is_no_server_that_does_not_answer(
    server: TargetSettings, target: TargetConnection, table: str
) -> None:
    target.execute("CREATE DATABASE there")
    password = server.password.get_secret_value()
    with pytest.raises(
        SchemaError, match=f"there is no table {table}.*capture run.*pumphouse schema import"
    ) as refused:
        jobs(server, table, password)
    assert not refused.value.retryable
    assert password not in str(refused.value)


def test_a_wrong_password_is_no_server_that_does_not_answer(server: TargetSettings) -> None:
    with pytest.raises(ConfigError, match=r"does not let us in.*schema\.history_password") as refused:
        jobs(server, "s.t", "wr0ng")
    assert "wr0ng" not in f"{refused.value} {refused.value.facts}"
