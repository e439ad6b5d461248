"""`schema import` before it connects to anything, and rows by column name."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from pumphouse.cli import cli
from pumphouse.client.schema import Tables, named_row
from pumphouse.commands.schema import source_of
from pumphouse.errors import CodecError, ConfigError, UnknownTable, UsageError
from pumphouse.model.table import ColumnFlag, MysqlType, TableInfo
from pumphouse.settings import ServerSettings

SECRET = SecretStr("secret")


def test_the_password_is_never_on_the_command_line_and_never_that_of_another_server() -> None:
    with pytest.raises(UsageError, match="PUMPHOUSE_SOURCE__PASSWORD") as caught:
        source_of(ServerSettings(host="", password=SECRET), "mysql://u:hidden@db:3307/shop")
    assert "hidden" not in str(caught.value)
    server, database = source_of(ServerSettings(host="", password=SECRET), "mysql://u@db:3307/my%20shop")
    assert (server.host, server.port, server.user, database) == ("db", 3307, "u", "my shop")
    assert server.password == SECRET
    known = ServerSettings(host="db", port=3307, user="u", password=SECRET)
    assert source_of(known, None) == (known, "")
    assert source_of(known, "mysql://u@db:3307") == (known, "")
    for other in ("mysql://u@other:3307", "mysql://u@db", "mysql://root@db:3307"):
        with pytest.raises(ConfigError, match="another server or user"):
            source_of(known, other)
    for wrong in ("postgres://u@db", "mysql:///shop", "mysql://u@db:port"):
        with pytest.raises(UsageError, match="mysql://user@host:port/database"):
            source_of(known, wrong)


def test_a_history_that_cannot_be_written_is_named() -> None:
    answer = CliRunner().invoke(cli, ["schema", "import", "mysql://u@db"])
    assert isinstance(answer.exception, ConfigError)
    assert "schema.history names no table" in str(answer.exception)


def _column(id_: int, name: str, tp: MysqlType, **more: object) -> dict[str, object]:
    kind = {"Tp": int(tp), "Flag": int(ColumnFlag.UNSIGNED) if tp is MysqlType.BIT else 0, **more}
    return {"id": id_, "name": {"O": name, "L": name.lower()}, "offset": id_ - 1, "type": kind}


TABLE = TableInfo.from_dict(
    {
        "id": 1,
        "name": "t",
        "cols": [
            _column(1, "Id", MysqlType.LONG),
            _column(2, "kind", MysqlType.ENUM, Elems=["a", "b"]),
            _column(3, "marks", MysqlType.SET, Elems=["x", "y", "z"]),
            _column(4, "twice", MysqlType.LONG) | {"generated_expr_string": "id * 2"},
        ],
    }
)


def test_a_row_by_name_has_every_column_and_members_as_text() -> None:
    assert named_row(TABLE, {"ID": 1, "kind": "b", "marks": "x,z"}) == {1: 1, 2: 2, 3: 5}
    assert named_row(TABLE, {"id": 1, "kind": 1, "marks": None, "twice": 2}) == {1: 1, 2: 1, 3: None, 4: 2}
    with pytest.raises(CodecError, match="lacks marks"):
        named_row(TABLE, {"id": 1, "kind": "b"})
    with pytest.raises(CodecError, match="no column nothing"):
        named_row(TABLE, {"id": 1, "kind": "b", "marks": "", "nothing": 1})
    with pytest.raises(CodecError, match="column kind"):
        named_row(TABLE, {"id": 1, "kind": "c", "marks": ""})


def test_a_table_that_the_history_has_not_says_what_to_type() -> None:
    found = Tables({("d", "t"): TABLE}, 7)
    assert list(found) == [("d", "t")] and ("d", "u") not in found
    with pytest.raises(UnknownTable, match=r"d\.u at schema version 7.*pumphouse schema import"):
        found["d", "u"]
