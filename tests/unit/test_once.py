"""Values that are made on first use."""

from __future__ import annotations

import threading

from pumphouse.once import once


class Server:
    def __init__(self, answers: threading.Event) -> None:
        self.answers, self.asked = answers, 0

    @once
    def version(self) -> int:
        """What it says."""
        assert self.answers.wait(60)
        self.asked += 1
        return self.asked


def test_a_server_that_does_not_answer_holds_up_nobody_who_asks_another_one() -> None:
    silent, well = Server(threading.Event()), Server(threading.Event())
    well.answers.set()
    waiting = threading.Thread(target=lambda: silent.version, daemon=True)
    waiting.start()
    found: list[int] = []
    other = threading.Thread(target=lambda: found.extend([well.version, well.version]), daemon=True)
    other.start()
    other.join(60)
    silent.answers.set()
    waiting.join(60)
    assert found == [1, 1]
    assert (silent.version, Server.version.__doc__) == (1, "What it says.")
