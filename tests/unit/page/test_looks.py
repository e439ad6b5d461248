"""What viewers are shown while a look is under way: one that is fresh, or that there is none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from binlog_airflow.installation import Installation
from binlog_airflow.page import looks
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("O2")
HERE = Installation()
SAFE = looks.Seen(problem="safe")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the looks."""
    held = [1000.0]
    monkeypatch.setattr(looks.time, "monotonic", lambda: held[0])
    monkeypatch.setattr(looks, "_WITHIN_S", 0.1)
    return held


@contextmanager
def _hanging(kept: looks.Looks, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody's look that does not come back."""
    begun, on = threading.Event(), threading.Event()

    def hangs(*_: object) -> looks.Seen:
        begun.set()
        on.wait()
        return SAFE

    monkeypatch.setattr(looks, "_look", hangs)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(kept.at, HERE)
        eventually(begun.is_set)
        try:
            yield
        finally:
            on.set()


def test_what_was_safe_an_hour_ago_is_not_shown_while_somebody_looks(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = looks.Looks()
    monkeypatch.setattr(looks, "_look", lambda *_: SAFE)
    assert kept.at(HERE) is SAFE
    now[0] += 6
    with _hanging(kept, monkeypatch):
        assert kept.at(HERE) is SAFE
        now[0] += 3600
        assert "gets no answer" in kept.at(HERE).problem


def test_nobody_waits_for_the_look_of_another_without_end(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    kept = looks.Looks()
    with _hanging(kept, monkeypatch):
        assert "gets no answer" in kept.at(HERE).problem
    assert kept.at(HERE) is SAFE
