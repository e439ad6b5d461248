"""What an application that writes binlogs imports (docs/client.md): ``from pumphouse.client import PumpClient, …``.

Importing one module of this package costs no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumphouse.lazy import offering

if TYPE_CHECKING:
    from pumphouse.client.pump_client import ClientStats, PumpClient
    from pumphouse.client.resolver import PENDING, ROLLED_BACK, Outcome, OutcomeKind, ResolverServer, committed
    from pumphouse.client.schema import Tables, named_row, tables
    from pumphouse.client.transaction import AddedLatency, StoreTransaction, TransactionBinlog, TransactionRunner
    from pumphouse.codec.payload import PrewriteValueBuilder
    from pumphouse.codec.row import encode_delete, encode_insert, encode_update
    from pumphouse.errors import PumpUnavailable
    from pumphouse.model.tso import Tso
    from pumphouse.registry.open import open_cluster
else:
    __getattr__ = offering(
        __name__,
        {
            "pumphouse.client.pump_client": ("ClientStats", "PumpClient"),
            "pumphouse.client.resolver": (
                "PENDING",
                "ROLLED_BACK",
                "Outcome",
                "OutcomeKind",
                "ResolverServer",
                "committed",
            ),
            "pumphouse.client.schema": ("Tables", "named_row", "tables"),
            "pumphouse.client.transaction": (
                "AddedLatency",
                "StoreTransaction",
                "TransactionBinlog",
                "TransactionRunner",
            ),
            "pumphouse.codec.payload": ("PrewriteValueBuilder",),
            "pumphouse.codec.row": ("encode_delete", "encode_insert", "encode_update"),
            "pumphouse.errors": ("PumpUnavailable",),
            "pumphouse.model.tso": ("Tso",),
            "pumphouse.registry.open": ("open_cluster",),
        },
    )

__all__ = [
    "PENDING",
    "ROLLED_BACK",
    "AddedLatency",
    "ClientStats",
    "Outcome",
    "OutcomeKind",
    "PrewriteValueBuilder",
    "PumpClient",
    "PumpUnavailable",
    "ResolverServer",
    "StoreTransaction",
    "Tables",
    "TransactionBinlog",
    "TransactionRunner",
    "Tso",
    "committed",
    "encode_delete",
    "encode_insert",
    "encode_update",
    "named_row",
    "open_cluster",
    "tables",
]
