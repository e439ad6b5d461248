"""What ``pumphouse snapshot`` says on stderr while it waits."""

import json
import threading

import pytest
from click.testing import CliRunner

from pumphouse.archive.window import PullProgress
from pumphouse.cli import cli
from pumphouse.commands.archive import naming_holders
from pumphouse.model.tso import Tso


class Clock:
    """A time that the test sets."""

    now = 0.0

    def monotonic(self):
        return self.now


def progress(node: str, *, silent_at: str = "", waiting_for: str = "") -> PullProgress:
    return PullProgress(
        node_id=node, start=Tso(0), end=Tso(9), reached=Tso(0), rows=0, payload_bytes=0, waiting_for=waiting_for,
        silent_at=silent_at,
    )  # fmt: skip


@pytest.mark.row("A2")
def test_a_pump_that_is_down_is_named_with_address_and_what_to_do_and_json_is_left_alone(world):
    options = world.sets(**{"archive.poll_interval_s": 0.05, "archive.pull_timeout_s": 20.0})
    world.pump("pump-1")
    two = world.pump("pump-2")
    world.init()
    two.transaction()
    two.stop()
    starter = threading.Timer(0.5, two.start)
    starter.start()
    done = CliRunner().invoke(cli, [*options, "--log-level", "error", "snapshot", "--json"])
    starter.join()
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["windows"]) == 1
    (line,) = done.stderr.splitlines()  # asked again many times, said once
    assert f"waiting for Pump pump-2 at {two.addr}" in line
    assert "Start it" in line
    assert "When a window is held" in line


@pytest.mark.row("A2")
def test_it_is_said_at_once_and_every_30_s(capsys):
    clock, seen = Clock(), []
    sink = naming_holders(seen.append, clock)
    lines = {}
    for second in range(95):
        clock.now = float(second)
        for node in ("a", "b"):
            away = "h:1" if node == "a" else ""
            sink(progress(node, silent_at=away))
        if said := capsys.readouterr().err:
            lines[second] = said
    assert list(lines) == [0, 30, 60, 90]
    assert not any("Pump b" in said for said in lines.values())
    assert len(seen) == 190


@pytest.mark.row("A2")
def test_a_pump_that_answers_and_waits_is_named_when_it_has_waited_for_ten_seconds(capsys):
    clock = Clock()
    sink = naming_holders(lambda _: None, clock)
    said = {}
    for second in range(100):
        clock.now = float(second)
        for node, why in (("a", "it began and has no outcome"), ("b", "" if second % 9 == 0 else "a moment")):
            why = "" if second in (50, 51) else why
            sink(progress(node, waiting_for=why))
        if text := capsys.readouterr().err:
            said[second] = text
    assert list(said) == [10, 40, 70]
    for text in said.values():
        assert text.count("\n") == 1
        assert "Pump a holds the window: it began and has no outcome. `pumphouse pump status a` lists" in text
