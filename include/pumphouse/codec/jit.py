"""How kernels are compiled: lazily, cached on disk, without the GIL.

Numba's disk cache lies beside the source and looks at the time of the kernel's own file alone. What a kernel calls, and
the constants that it takes, come from other files too: after an update it would go on with their old meaning, in
silence. So each entry of the cache is named by a digest of all that went into it (`stamp_of`).
"""

from __future__ import annotations

import enum
import hashlib
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import IndexDataCacheFile
from numba.core.extending import _Intrinsic
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

Bytes = NDArray[np.uint8]
Int32s = NDArray[np.int32]
Ints = NDArray[np.int64]
UInts = NDArray[np.uint64]


# Kernels get every array from their caller and make none, so nothing in them is reference-counted; without this, numba
# counts references with atomic operations around calls, which made the JSON kernel six times slower.
_OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False}


_NO_PLACE = (
    "this process compiles its kernels and keeps none of them, which takes some twenty seconds each time: neither our "
    "code's directories nor ~/.cache can be written to. Set NUMBA_CACHE_DIR to a directory of this user"
)
_CONSTANTS = (bool, int, float, str, bytes, tuple, np.generic)
_STAMPS: dict[str, str] = {}  # source file -> digest
_KERNELS: list[Any] = []


def kernel(function: F) -> F:
    """Compile with numba at the first call; Python integers in kernels are 64 bits wide."""
    made = _compiled(function)
    _KERNELS.append(made)
    return cast("F", made)


def not_on_disk(package: str) -> list[str]:
    """Names of the kernels of a package, of modules that are imported, of which the disk cache has nothing yet."""
    return [
        f"{made.py_func.__module__}.{made.py_func.__name__}"
        for made in _KERNELS
        if hasattr(getattr(made, "_cache", None), "_cache_file")  # where there is a disk cache at all
        and made.py_func.__module__.startswith(f"{package}.")
        and not Path(made._cache._cache_file._index_path).exists()  # noqa: SLF001
    ]


def primitive(function: F) -> F:
    """Compile a small function into each kernel that calls it: passing arrays to one that is not inlined costs more."""
    return cast("F", _compiled(function, forceinline=True))


def _compiled(function: Callable[..., Any], **more: bool) -> Any:
    """At the first call, with the disk cache where there is a place for it."""
    made = numba.njit(**_OPTIONS, **more)(function)
    if not hasattr(made, "enable_caching"):  # NUMBA_DISABLE_JIT
        return made
    try:
        made.enable_caching()
    except RuntimeError:  # as on a root file system that is read-only, without a home
        warnings.warn(_NO_PLACE, RuntimeWarning, stacklevel=1)  # of this line: once in a process
        return made
    cache, stamp = made._cache, stamp_of(made.py_func)  # noqa: SLF001
    base = f"{cache._impl.filename_base}.{stamp[:16]}"  # noqa: SLF001
    cache._cache_file = IndexDataCacheFile(cache._cache_path, base, stamp)  # noqa: SLF001
    return made


def stamp_of(function: Callable[..., Any]) -> str:
    """Digest of a kernel's file, of this one, and of what that had at hand: others' kernels and constants, modules."""
    path = function.__code__.co_filename
    found = _STAMPS.get(path)
    if found is None:
        # One for all kernels of a file, taken at the first: what comes further down in it is in its text.
        package = function.__module__.partition(".")[0]
        digest = hashlib.sha256(Path(path).read_bytes() + Path(__file__).read_bytes())
        for name, value in _named(function.__globals__):
            digest.update(f"{name}={_meaning(value, package)}\n".encode())
        found = _STAMPS[path] = digest.hexdigest()
    return found


def _meaning(value: Any, package: str) -> str:
    """What a kernel may take from a global name; '' where it cannot take anything."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return repr([(name, member.value) for name, member in value.__members__.items()])
    if isinstance(value, ModuleType):
        ours = value.__name__.partition(".")[0] in (package, __name__.partition(".")[0])
        held = [(name, each) for name, each in _named(vars(value)) if not isinstance(each, ModuleType)] if ours else []
        return repr([(name, _meaning(each, package)) for name, each in held])
    if hasattr(value, "py_func"):
        return stamp_of(value.py_func)
    if isinstance(value, _Intrinsic):
        return hashlib.sha256(Path(str(sys.modules[value.__module__].__file__)).read_bytes()).hexdigest()
    return repr(value) if isinstance(value, _CONSTANTS) else ""


def _named(names: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, names[name]) for name in sorted(names) if not name.startswith("__")]


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: Arrow's buffers are read-only, and a second flavour of input would compile a second kernel."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view
