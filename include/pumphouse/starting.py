"""How a command starts quickly and small: what it imports lies apart from garbage collection, and pandas stays out.

Garbage collection would look at all that the libraries make, again and again, and once more at the end: a third of the
start and the end of a command. pyarrow imports pandas at its first array where that is installed (Spark needs it):
a fifth of a second and 50 MB, for nothing that a command does. Both are for a process of our own.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out while a command is imported", name="pandas")
        return None


@contextmanager
def imported_to_stay() -> Iterator[None]:
    """What is imported within stays until the process ends.

    pyarrow looks for pandas once and finds none; whoever imports pandas later and asks pyarrow for a frame gets it.
    """
    finder = _NoPandas()
    gc.disable()
    sys.meta_path.insert(0, finder)
    try:
        yield
        if "pyarrow" in sys.modules:
            sys.modules["pyarrow"].array([1])
    finally:
        sys.meta_path.remove(finder)
        gc.enable()
    gc.freeze()
