"""The loader as a library: ``from pumphouse.loader import Loader, …``; changes as SQL text: ``Dml``, ``statement``.

Importing one module of this package costs no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumphouse.lazy import offering

if TYPE_CHECKING:
    from pumphouse.archive.view import ArchiveView, read_view
    from pumphouse.loader.begin import begin_equal, begin_from_base, is_beginning
    from pumphouse.loader.engine import Engine, LocalEngine
    from pumphouse.loader.report import LoadReport
    from pumphouse.loader.run import Loader, own_target
    from pumphouse.loader.sql import Dml, safe_statements, statement
    from pumphouse.loader.state import Checkpoint, TargetState
    from pumphouse.loader.target import TargetConnection, read_checkpoint
else:
    __getattr__ = offering(
        __name__,
        {
            "pumphouse.archive.view": ("ArchiveView", "read_view"),
            "pumphouse.loader.begin": ("begin_equal", "begin_from_base", "is_beginning"),
            "pumphouse.loader.engine": ("Engine", "LocalEngine"),
            "pumphouse.loader.report": ("LoadReport",),
            "pumphouse.loader.run": ("Loader", "own_target"),
            "pumphouse.loader.sql": ("Dml", "safe_statements", "statement"),
            "pumphouse.loader.state": ("Checkpoint", "TargetState"),
            "pumphouse.loader.target": ("TargetConnection", "read_checkpoint"),
        },
    )

__all__ = [
    "ArchiveView",
    "Checkpoint",
    "Dml",
    "Engine",
    "LoadReport",
    "Loader",
    "LocalEngine",
    "TargetConnection",
    "TargetState",
    "begin_equal",
    "begin_from_base",
    "is_beginning",
    "own_target",
    "read_checkpoint",
    "read_view",
    "safe_statements",
    "statement",
]
