"""Who writes the groups of a store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.syncs import stores_on_this_loop


@pytest.fixture(params=["thread", "loop"])
def who_writes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The writer thread, and the event loop on which a store is opened."""
    with stores_on_this_loop(monkeypatch) if request.param == "loop" else contextlib.nullcontext():
        yield
