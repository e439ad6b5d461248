"""The shop with a network that is bad on purpose: lost commits, and prewrites whose answer comes too late.

``python -m tests.e2e.trouble`` takes what ``python -m deploy.shop`` takes.
"""

from __future__ import annotations

import json
import random
import threading
from typing import Any

from deploy.shop.__main__ import main
from pumphouse.client.pump import PumpConnection
from pumphouse.client.pump_client import PumpClient
from pumphouse.errors import BinlogError
from pumphouse.registry.base import Cluster

LOST = TWICE = 0.01


class TroubledClient(PumpClient):
    """Loses a share of the Cs and Rollbacks, and stores a share of the Ps on two Pumps.

    A P on two Pumps is what a write that timed out and was retried elsewhere leaves behind; only one of them gets the
    C, the other one must ask.
    """

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        super().__init__(cluster, **options)
        self._trouble = threading.Lock()
        self._second: dict[str, PumpConnection] = {}
        self.lost_on_purpose = 0
        self.stored_twice = 0

    def write_prewrite(self, payload: bytes, start_ts: int) -> str:
        """As the parent; now and then another Pump has stored it as well."""
        node_id = super().write_prewrite(payload, start_ts)
        if random.random() < TWICE and self._write_elsewhere(payload, node_id):
            with self._trouble:
                self.stored_twice += 1
        return node_id

    def write_commit(self, payload: bytes, start_ts: int) -> None:
        """As the parent, or never sent."""
        if random.random() < LOST:
            self.forget(start_ts)
            with self._trouble:
                self.lost_on_purpose += 1
            return
        super().write_commit(payload, start_ts)

    def close(self, flush_s: float = 5.0) -> None:
        """Close everything."""
        super().close(flush_s)
        for connection in self._second.values():
            connection.close()
        print(json.dumps({"lost commits": self.lost_on_purpose, "stored twice": self.stored_twice}), flush=True)

    def _write_elsewhere(self, payload: bytes, taken_by: str) -> bool:
        for pump in self.available():
            if pump.node_id != taken_by:
                with self._trouble:
                    connection = self._second.get(pump.host)
                    if connection is None:
                        connection = PumpConnection(pump.node_id, pump.host, self.cluster.cluster_id())
                        self._second[pump.host] = connection
                try:
                    connection.write(payload, 2.0)
                except BinlogError:
                    return False
                return True
        return False


if __name__ == "__main__":
    main(new_client=TroubledClient)
