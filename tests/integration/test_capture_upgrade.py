"""A source that is of another version than before: its statements are run by a server of the version that it has now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pumphouse.capture.schemas import Schemas, StoredSchema
from pumphouse.parts import Parts
from pumphouse.registry.base import CaptureState
from pumphouse.schema.history import MysqlTableSource
from tests.stack.local import CAPTURE
from tests.support import mariadb
from tests.support.capturedstack import CapturedStack, captured_stack
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.row("Q3")]


def restart_source(stack: CapturedStack, *more: str) -> None:
    """With more arguments than those of the stack."""
    server = stack.databases["source"]
    server.stop()
    arguments, server.arguments = server.arguments, (*server.arguments, *more)
    server.start()
    server.arguments = arguments


def stored(stack: CapturedStack, change: Callable[[StoredSchema], StoredSchema] = lambda found: found) -> StoredSchema:
    """The newest stored schema, changed first."""
    with Parts(stack.read_settings) as parts:
        assert isinstance(parts.history, MysqlTableSource)
        schemas = Schemas(parts.history, "main", lambda: None)
        number = schemas.newest()
        found = schemas.load(number)
        if change(found) != found:
            schemas.save(number, schemas.position(number) or "", change(found))
        return schemas.load(number)


@pytest.mark.mariadb("a MySQL's version is that of its program")
def test_a_source_of_another_version_stops_the_capture_and_its_next_start_takes_that_version() -> None:
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)", "INSERT INTO shop.a VALUES (1)")
        stack.begin()
        stack.captured()
        real = stored(stack).server
        # Under the capture, and the shadow's program is not of the new version.
        restart_source(stack, "--version=11.4.2-MariaDB")
        eventually(lambda: not stack.supervisor.alive(CAPTURE))
        said = stack.capture_record()
        assert said.state is CaptureState.FAILED
        assert "the source is 11.4.2-MariaDB" in said.reason
        assert f"the shadow is of {real.version}" in said.reason
        refused = stack.pumphouse("capture", "run")
        assert f"is {real.version.removesuffix('-log')}, and the source was 11.4.2-MariaDB" in refused.stderr, (
            refused.stderr
        )
        assert stored(stack).server == real
        # As after an upgrade of both: what is stored is of the version before.
        stack.run("ALTER TABLE shop.a ADD COLUMN b INT", "INSERT INTO shop.a VALUES (2, 2)")
        restart_source(stack)
        stored(stack, lambda found: replace(found, server=replace(real, version="10.6.20-MariaDB", time_zone="+07:00")))
        stack.start_capture()
        assert stored(stack).server == real
        stack.run("ALTER TABLE shop.a ADD COLUMN c INT", "INSERT INTO shop.a VALUES (3, 3, 3)")
        stack.require_equal()
        # Names would mean something else.
        stack.stop_capture()
        stored(stack, lambda found: replace(found, server=replace(real, lower_case_table_names=1)))
        refused = stack.pumphouse("capture", "run")
        assert "lower_case_table_names = 0, and what was captured is of" in refused.stderr, refused.stderr
        assert "--anew" in refused.stderr
