"""What the demo reads in a target tells how far a real first load is."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import pytest

from pumphouse.loader.target import TargetConnection
from pumphouse.mysql.dsn import Dsn
from pumphouse.runs import load
from pumphouse.settings import Settings, TargetSettings
from tests.e2e.first_load import look
from tests.e2e.points import Seen, Stage
from tests.support.madearchive import Churn, MadeSource, column

LOAD = {"engine": "local", "buckets": 3}


@pytest.mark.row("O6")
def test_the_target_of_a_first_load_shows_every_stage_in_order(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    server: TargetSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    for number in range(3):
        churn.work(20)
        source.add_column("t", column(10 + number, f"extra{number}", default="7", origin_default="7"))
    churn.work(20)
    source.cut()
    seen: list[Seen] = []
    one = threading.Lock()
    execute = TargetConnection.execute
    dsn = Dsn(port=server.port, password=server.password.get_secret_value())
    with closing(dsn.connect(autocommit=True)) as beside:

        def watched(self: TargetConnection, *args: Any) -> int:
            rows = execute(self, *args)
            with one:  # units are applied by threads
                seen.append(look(beside))
            return rows

        monkeypatch.setattr(TargetConnection, "execute", watched)
        load.run(settings, run_id="first")
        seen.append(look(beside))
    stages = [each.stage for each in seen]
    assert stages == sorted(stages)
    assert set(stages) == set(Stage)
    assert {each.owner for each in seen} == {"", "first"}
    assert [each.done for each in seen] == sorted(each.done for each in seen)
    assert (seen[-1].intents, seen[-1].done, seen[-1].opened) == (3, 3, "")
    assert max(each.objects for each in seen) >= 4
    merging = [each for each in seen if each.opened == "merge"]
    assert max(each.epoch for each in merging) == 3
    assert max(each.units for each in merging) > 5
