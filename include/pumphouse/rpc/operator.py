"""How an operator's call proves to a Pump who sends it: the first of ``cluster.operator_token`` (docs/security.md).

Only calls that need it carry it: on a connection without TLS whoever reads along has it from then on.
"""

from __future__ import annotations

from pumphouse.settings import ClusterSettings

# Header fields of a call, gRPC's metadata and HTTP's alike; empty = nothing is proved.
Proof = tuple[tuple[str, str], ...]


def proof(cluster: ClusterSettings) -> Proof:
    """What operators' calls carry."""
    return tuple(("authorization", f"Bearer {token}") for token in cluster.operator_tokens[:1])
