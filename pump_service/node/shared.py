"""One question at a time to a server that may not answer, however many want to know.

Each has one thread of its own: a server that is silent takes nobody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Answers of one blocking function. Owned by the event loop."""

    def __init__(self, ask: Callable[[], T], name: str) -> None:
        """Ask through ``ask``, on a thread called ``name``."""
        self._ask = ask
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._question: asyncio.Task[T] | None = None

    def question(self) -> tuple[asyncio.Task[T], bool]:
        """The question that is under way, or a new one, and whether it is new. Wait for it with `asyncio.shield`."""
        # Not one that has ended: to wait for that is no wait, and whoever asks until an answer will do would never end.
        if self._question is not None and not self._question.done():
            return self._question, False
        self._question = asyncio.create_task(self._run())
        self._question.add_done_callback(_answered)
        return self._question, True

    async def current(self) -> T:
        """The answer to a question that may have been under way already."""
        return await asyncio.shield(self.question()[0])

    async def fresh(self) -> T:
        """The answer to a question that began after this call."""
        question, new = self.question()
        if not new:
            await asyncio.wait([question])
            question, _ = self.question()  # whoever began it did so after our call
        return await asyncio.shield(question)

    async def _run(self) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask)


def _answered(question: asyncio.Task[Any]) -> None:
    if not question.cancelled():
        question.exception()  # who asked may have gone
