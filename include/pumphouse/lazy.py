"""Short imports: a package offers names of its modules and imports a module only when a name of it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from pumphouse.extras import way_out


def offering(package: str, where: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that offers these names, by the module that has them."""
    module_of = {name: module for module, names in where.items() for name in names}

    def look_up(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(module_of[name]), name)
        except ModuleNotFoundError as error:
            if not (said := way_out(error)):
                raise
            raise ModuleNotFoundError(said, name=error.name) from error

    return look_up
