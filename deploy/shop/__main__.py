"""A shop that writes binlogs: ``python -m deploy.shop VERB``. Its server: SHOP_HOST, SHOP_PORT, SHOP_PASSWORD.

``open`` makes the tables and the first rows, and imports the schema. ``answer`` answers the Pumps. ``sell`` lets
customers buy, pay and change their mind until SIGTERM. ``change`` runs a DDL while the shop is open. ``mistake``
deletes orders that nobody wanted to delete, in one transaction: something to find, and to take back.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing

from deploy.shop.seller import Seller, first_rows
from deploy.shop.store import PREFIX, Shop, answer, change, connect, is_open, open_shop
from pumphouse.client import PumpClient, ResolverServer, open_cluster


def sell(
    cluster_url: str, threads: int, rate: float, seconds: float, new_client: Callable[..., PumpClient] = PumpClient
) -> None:
    """Sell until SIGTERM, or so many seconds; the transactions under way end first. Prints what binlogs cost."""
    cluster = open_cluster(cluster_url, create=False)
    with new_client(cluster, write_timeout_s=5.0) as client:
        shop = Shop(client)
        on_sigterm(shop.stop)
        sellers = [Seller(shop, number, rate / threads) for number in range(threads)]
        for each in sellers:
            each.start()
        if seconds and not shop.stop.wait(seconds):
            shop.stop.set()
        for each in sellers:
            each.join()
        shop.runner.close()
    cluster.close()
    latency, failed = shop.runner.added_latency, sum((each.failed for each in sellers), Counter[str]())
    added = [round(each * 1000, 2) for each in (latency.p50_s, latency.p99_s)]
    print(json.dumps({"added_ms": added, "failed": failed}), flush=True)
    for each in sellers:
        if each.error is not None:
            raise each.error


def mistake(cluster_url: str, orders: int) -> None:
    """Delete the oldest orders, as somebody does who forgets half of a WHERE; prints how many there were."""
    cluster = open_cluster(cluster_url, create=False)
    with PumpClient(cluster) as client, closing(connect()) as connection:
        shop = Shop(client)
        with shop.transaction(connection) as begin:
            transaction = begin()
            rows = transaction.lock("orders", "TRUE ORDER BY id LIMIT %s", orders)
            if rows:
                transaction.delete("orders", ["id"], *rows)
                shop.runner.run(transaction.binlog(), transaction)
        shop.runner.close()
    cluster.close()
    print(json.dumps({"deleted": len(rows)}), flush=True)


def on_sigterm(stop: threading.Event) -> None:
    """End in order."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


def answer_pumps(cluster_url: str, addr: str) -> None:
    """Answer until SIGTERM."""
    stop = threading.Event()
    on_sigterm(stop)
    cluster = open_cluster(cluster_url, create=False)
    with ResolverServer(cluster, "shop", [PREFIX], answer, addr=addr):
        stop.wait()
    cluster.close()


def main(argv: Sequence[str] | None = None, new_client: Callable[..., PumpClient] = PumpClient) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("open").add_argument("--customers", type=int, default=600)
    answering = verbs.add_parser("answer")
    answering.add_argument("--addr", default="127.0.0.1:0", help="where we listen, and where the Pumps call")
    selling = verbs.add_parser("sell")
    selling.add_argument("--threads", type=int, default=2)
    selling.add_argument("--rate", type=float, default=5.0, help="transactions a second; 0 = as fast as it goes")
    selling.add_argument("--seconds", type=float, default=0.0, help="for how long; 0 = until SIGTERM")
    erring = verbs.add_parser("mistake")
    erring.add_argument("--orders", type=int, default=100)
    for each in (answering, selling, erring):
        each.add_argument("cluster")
    changing = verbs.add_parser("change")
    changing.add_argument("statements", nargs="+")
    for name in ("--drop", "--rename"):
        changing.add_argument(name, action="append", default=[], help="as for `pumphouse schema import`")
    options = parser.parse_args(argv)
    if options.verb == "open":
        if not is_open():
            open_shop(first_rows(options.customers))
    elif options.verb == "answer":
        answer_pumps(options.cluster, options.addr)
    elif options.verb == "sell":
        sell(options.cluster, options.threads, options.rate, options.seconds, new_client)
    elif options.verb == "mistake":
        mistake(options.cluster, options.orders)
    else:
        said = [f"--drop={each}" for each in options.drop] + [f"--rename={each}" for each in options.rename]
        change(options.statements, said)


if __name__ == "__main__":
    main()
