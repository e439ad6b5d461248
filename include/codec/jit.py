"""How kernels are compiled: lazily, cached on disk, without the GIL.

The disk cache lies beside the source and notices only changes of the kernel's own file, not of kernels that it calls
from other files; so primitives that several files call live in :mod:`include.codec.wire`, and who changes those
touches the callers too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

Bytes = NDArray[np.uint8]
Int32s = NDArray[np.int32]
Ints = NDArray[np.int64]
UInts = NDArray[np.uint64]


# Kernels get every array from their caller and make none, so nothing in them is reference-counted; without this, numba
# counts references with atomic operations around calls, which made the JSON kernel six times slower.
_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: F) -> F:
    """Compile with numba at the first call; Python integers in kernels are 64 bits wide."""
    return cast("F", numba.njit(**_OPTIONS)(function))


def primitive(function: F) -> F:
    """Compile a small function into each kernel that calls it: passing arrays to one that is not inlined costs more."""
    return cast("F", numba.njit(**_OPTIONS, forceinline=True)(function))


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: Arrow's buffers are read-only, and a second flavour of input would compile a second kernel."""
    view = array.view()
    view.flags.writeable = False
    return view
