"""What a golden case is, and how typed values of the files compare with ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One vector or step, or one side of it. `skip` says why it is not run."""

    id: str
    run: Callable[[Path], None] | None = None
    skip: str = ""
    rows: tuple[str, ...] = ()


class NotCovered(Exception):
    """The door that a case needs is not there."""


def raw_bytes(typed: Json) -> bytes:
    """Bytes of a typed string."""
    return bytes.fromhex(typed["v_hex"]) if "v_hex" in typed else str(typed["v"]).encode()


def native(typed: Json) -> Any:
    """Python value of a typed value; strings as bytes."""
    kind = typed["t"]
    if kind == "null":
        return None
    if kind in ("int64", "uint64"):
        return int(typed["v"])
    if kind == "float32":
        return float(np.float32(typed["v"]))
    if kind == "float64":
        return float(typed["v"])
    if kind in ("string", "bytes"):
        return raw_bytes(typed)
    raise ValueError(f"unknown type of a value: {kind}")


def same(ours: Any, typed: Json) -> bool:
    """Whether a loader value is the one that the file has.

    The files' defaults of numeric columns are texts (as the DDL job has them); ours are numbers.
    """
    wanted = native(typed)
    if isinstance(wanted, bytes):
        return (
            ours if isinstance(ours, bytes) else b"" if ours is None else str(ours).encode()
        ) == wanted and ours is not None
    if wanted is None or ours is None:
        return ours is None and wanted is None
    return type(ours) is type(wanted) and ours == wanted


def assert_same(ours: Any, typed: Json, what: str) -> None:
    """Fail naming both."""
    assert same(ours, typed), f"{what}: {ours!r} is not {typed}"
