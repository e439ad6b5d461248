"""A capture that is paused from outside stands still, over a restart of its process too, until it is resumed."""

from __future__ import annotations

import time

import pytest

from pumphouse.capture.lease import RENEW_S
from pumphouse.capture.passed import waiter
from pumphouse.errors import WindowHeld
from tests.support import mariadb
from tests.support.capturedstack import CapturedStack, as_json, captured_stack
from tests.support.waiting import eventually


def state(stack: CapturedStack) -> str:
    """As it is shown."""
    (found,) = as_json(stack.pumphouse("capture", "status", "--json"))
    return str(found["state"])


@pytest.mark.mysql
@pytest.mark.row("Q1")
def test_a_paused_capture_publishes_nothing_until_it_is_resumed_and_loses_nothing() -> None:
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)", "INSERT INTO shop.a VALUES (1)")
        stack.begin()
        stack.captured()
        assert stack.pumphouse("capture", "pause", "main").returncode == 0
        assert state(stack) == "paused"
        time.sleep(2 * RENEW_S)  # it hears of it with its next heartbeat
        before = stack.capture_record()
        stack.run(
            "INSERT INTO shop.a VALUES (2)", "ALTER TABLE shop.a ADD COLUMN b INT", "DELETE FROM shop.a WHERE id = 1"
        )
        time.sleep(2 * RENEW_S)
        assert stack.capture_record().transactions == before.transactions
        # Whoever needs it hears what to type.
        findings = as_json(stack.pumphouse("status", "--json"))["findings"]
        assert "pumphouse capture resume main" in [each["next"] for each in findings]
        with pytest.raises(WindowHeld, match="it is paused") as held:
            waiter(stack.cluster, stack.read_settings.source, stack.read_settings.capture)(1)
        assert "pumphouse capture resume main" in str(held.value)
        # Another process stands still as well, and a second pause changes nothing.
        stack.stop_capture()
        assert state(stack) == "stopped"
        stack.start_capture()
        eventually(lambda: state(stack) == "paused")
        stack.pumphouse("capture", "pause", "main")
        time.sleep(RENEW_S)
        assert (stack.capture_record().transactions, stack.capture_record().paused) == (
            before.transactions,
            before.paused,
        )
        assert stack.pumphouse("capture", "resume", "main").returncode == 0
        stack.require_equal()
        assert state(stack) == "running"
        refused = stack.pumphouse("capture", "pause", "other")
        assert refused.returncode == 2, refused.stderr
        assert "no capture other is registered" in refused.stderr
