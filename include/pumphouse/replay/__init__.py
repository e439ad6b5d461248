"""The loader on a stream of transactions, as a library: ``from pumphouse.replay import Replay, …``.

docs/replay.md. Importing one module of this package costs no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumphouse.lazy import offering

if TYPE_CHECKING:
    from pumphouse.replay.change import Ddl, Dml, Txn
    from pumphouse.replay.replay import Replay
    from pumphouse.settings import TargetSettings
else:
    __getattr__ = offering(
        __name__,
        {
            "pumphouse.replay.change": ("Ddl", "Dml", "Txn"),
            "pumphouse.replay.replay": ("Replay",),
            "pumphouse.settings": ("TargetSettings",),
        },
    )

__all__ = ["Ddl", "Dml", "Replay", "TargetSettings", "Txn"]
