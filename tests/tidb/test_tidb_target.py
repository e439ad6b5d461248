"""Who owns a TiDB that is loaded: no shared row locks there, no word on who holds a named lock, ids of 64 bits."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pumphouse.errors import FenceLost, LoadError, TargetBusy
from pumphouse.loader import fence
from pumphouse.loader.target import TargetConnection
from pumphouse.settings import Settings, TargetSettings
from pumphouse.status.look import look
from tests.support import mariadb
from tests.support.setclock import QuickClock
from tests.support.tidb import MISSING, UnistoreServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"), pytest.mark.row("L6")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with UnistoreServer(tmp_path_factory.mktemp("tidb")) as tidb:
        yield tidb.settings


def test_another_run_is_kept_out_and_may_take_over(server: TargetSettings) -> None:
    with mariadb.owned(server, run="first") as (owner, first), TargetConnection.open(server) as other:
        with pytest.raises(TargetBusy, match="being loaded by run first") as busy:
            fence.acquire(other, run="second")
        assert str(owner.connection_id) in busy.value.message
        fence.check_lock(owner)
        second = fence.acquire(other, run="second", take_over=True)
        assert second.number > first.number
        (row,) = look(Settings(), {"target": server}).targets
        assert row.held_by.startswith("second "), row
        with pytest.raises(LoadError):  # its session was ended
            fence.check_lock(owner)
        fence.check_lock(other)
    with TargetConnection.open(server) as later:
        eventually(lambda: not fence.owned_by(later), what="nobody owns it")


def test_a_holder_that_never_raised_the_fence_is_waited_for_a_minute_at_most(server: TargetSettings) -> None:
    with TargetConnection.open(server) as holder, TargetConnection.open(server, owner=True) as other:
        other.create_tables()
        other.execute(f"DELETE FROM {other.table('fence')}")
        assert holder.value("SELECT GET_LOCK(%s, 0)", (fence.lock_name(server.schema_name),)) == 1
        with pytest.raises(TargetBusy, match="still held after 60 s, by unknown"):
            fence.acquire(other, run="second", take_over=True, clock=QuickClock(pace=20))


def test_units_of_an_earlier_owner_change_nothing_and_those_of_one_run_do_not_wait(server: TargetSettings) -> None:
    with mariadb.owned(server, run="mine") as (owner, mine):
        units = [TargetConnection.open(server) for _ in range(3)]
        try:
            for unit in units:
                unit.execute("SET innodb_lock_wait_timeout = 2")
                unit.execute("BEGIN")
                fence.hold_shared(unit, mine.number)
            # Whoever raises the number waits for all of them.
            raised: list[fence.Ownership] = []
            thread = threading.Thread(target=lambda: raised.append(fence.raise_again(owner, mine)))
            thread.start()
            units[0].execute("COMMIT")
            units[1].execute("COMMIT")
            thread.join(1.5)
            assert not raised
            units[2].execute("COMMIT")
            eventually(lambda: raised, what="the number is raised")
            thread.join()
            units[0].execute("BEGIN")
            with pytest.raises(FenceLost):
                fence.hold_shared(units[0], mine.number)
        finally:
            for unit in units:
                unit.close()
