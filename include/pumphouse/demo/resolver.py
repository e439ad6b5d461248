"""The demo's application answering Pumps: ``python -m pumphouse.demo.resolver``. Ends on SIGTERM."""

from __future__ import annotations

import argparse
import signal
import threading

from pumphouse.client.resolver import ResolverServer
from pumphouse.demo.store import KEY_PREFIX, SourceStore
from pumphouse.log import configure_logging
from pumphouse.mysql.dsn import Dsn
from pumphouse.registry.open import open_cluster


def main() -> int:
    """Entry point. The source's DSN is in ``PUMPHOUSE_DEMO_SOURCE``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--addr", default="127.0.0.1:0", help="host:port to listen on, and where the Pumps call")
    options = parser.parse_args()
    configure_logging("info")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    cluster = open_cluster(options.cluster)
    store = SourceStore(Dsn.of_environment("PUMPHOUSE_DEMO_SOURCE"))
    with ResolverServer(cluster, "demo", [KEY_PREFIX], store.outcome, addr=options.addr):
        stop.wait()
    store.close()
    cluster.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
