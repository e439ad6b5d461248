"""Read ahead: the next item of an iterator is made on another thread while the caller is busy with this one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items in the same order, each begun when the one before is handed out; errors come at their place.

    Worth it where both sides leave the interpreter: scans and puts of a replay do. Holds one item more.
    """
    nothing: list[T] = []
    with ThreadPoolExecutor(1, thread_name_prefix="pump-read-ahead") as reader:
        coming = reader.submit(next, items, nothing)
        while True:
            item = coming.result()
            if item is nothing:
                return
            coming = reader.submit(next, items, nothing)
            yield item  # type: ignore[misc]
