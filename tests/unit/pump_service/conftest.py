"""Who writes the groups of a store."""

from __future__ import annotations

import pytest

from tests.support.writers import nothing_is_short


@pytest.fixture(params=["thread", "loop"])
def who_writes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's thread alone, and the event loop where that is short."""
    if request.param == "thread":
        nothing_is_short(monkeypatch)
