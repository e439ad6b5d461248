"""Warming compiles all there is to compile."""

from __future__ import annotations

import importlib
from typing import Any

from pumphouse.codec.warm import warm

# Called only from other kernels, which have them inside.
MODULES = ("walk", "locate", "scalars", "texts", "jsontext", "hashing")
DOORS = {
    "fill_rows", "locate", "integers", "floats", "texts", "string_offsets", "copy_strings", "json_texts",
    "hash_words", "hash_bytes",
}  # fmt: skip


def dispatchers() -> dict[str, Any]:
    """Kernels that Python calls."""
    found = {}
    for name in MODULES:
        module = importlib.import_module(f"pumphouse.codec.{name}")
        found |= {k: v for k, v in vars(module).items() if k in DOORS and hasattr(v, "signatures")}
    return found


def test_after_warming_nothing_is_left_to_compile_and_one_flavour_of_each_kernel_is_enough() -> None:
    warm()
    kernels = dispatchers()
    assert set(kernels) == DOORS
    assert {name: len(kernel.signatures) for name, kernel in kernels.items()} == dict.fromkeys(DOORS, 1)
