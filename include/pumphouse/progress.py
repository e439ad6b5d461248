"""Progress bars of long commands, on stderr, and only where somebody looks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pumphouse.loader.report import Progress as Told
from pumphouse.loader.report import silent


@contextlib.contextmanager
def bar(*, enabled: bool = True) -> Iterator[Told]:
    """A bar for each step that is told; silent where stderr is no terminal."""
    console = Console(stderr=True)
    if not enabled or not console.is_terminal:
        yield silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        steps = {}

        def tell(step: str, done: int, total: int) -> None:
            if step not in steps or done == 0:
                steps[step] = shown.add_task(step, total=total)
            shown.update(steps[step], completed=done, total=total)

        yield tell
