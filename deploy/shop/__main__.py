"""A shop on a MariaDB: ``python -m deploy.shop VERB``. Its server: SHOP_HOST, SHOP_PORT, SHOP_PASSWORD.

``open`` makes the tables and the first rows. ``sell`` lets customers buy, pay and change their mind until SIGTERM.
``change`` runs a DDL while the shop is open. ``mistake`` deletes orders that nobody wanted to delete, in one
transaction: something to find, and to take back. All of that is SQL alone, and a capture reads it from the binlog.

With a cluster, the shop writes binlogs itself, by `pumphouse.client`: ``open`` and ``change`` import the schema then,
and ``answer`` answers the Pumps.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from deploy.shop import plain, store
from deploy.shop.seller import Seller, Shop, first_rows
from deploy.shop.server import connect
from pumphouse.client import PumpClient, ResolverServer, open_cluster

_SAY_S = 1.0


@contextmanager
def opened(cluster_url: str | None, new_client: Callable[..., PumpClient], *, costs: bool) -> Iterator[Shop]:
    """The shop; with a cluster, the one that writes binlogs, and in the end says what they cost if that is asked."""
    if not cluster_url:
        yield plain.Shop()
        return
    cluster = open_cluster(cluster_url, create=False)
    with new_client(cluster, write_timeout_s=5.0) as client:
        shop = store.Shop(client)
        yield shop
        shop.runner.close()
        latency = shop.runner.added_latency
        if costs:
            say({"added_ms": [round(each * 1000, 2) for each in (latency.p50_s, latency.p99_s)]})
    cluster.close()


def say(what: dict[str, Any]) -> None:
    """A line for whoever reads the log."""
    print(json.dumps(what), flush=True)


def sell(shop: Shop, threads: int, rate: float, seconds: float) -> None:
    """Sell until SIGTERM, or so many seconds; the transactions under way end first. Prints each second what is sold."""
    stop = threading.Event()
    on_sigterm(stop)
    sellers = [Seller(shop, number, rate / threads, stop) for number in range(threads)]
    for each in sellers:
        each.start()
    left = seconds or float("inf")
    while left > 0 and not stop.wait(min(_SAY_S, left)):
        left -= _SAY_S
        say(sold(sellers))
    stop.set()
    for each in sellers:
        each.join()
    say(sold(sellers) | {"failed": sum((each.failed for each in sellers), Counter[str]())})
    for each in sellers:
        if each.error is not None:
            raise each.error


def sold(sellers: Sequence[Seller]) -> dict[str, Any]:
    """What has become of transactions so far."""
    counts = sum((each.sold.copy() for each in sellers), Counter[str]())
    return {name: counts[name] for name in ("transactions", "rows", "rolled back")}


def mistake(shop: Shop, orders: int) -> None:
    """Delete the oldest orders, as somebody does who forgets half of a WHERE; prints how many there were."""
    with closing(connect()) as connection, shop.transaction(connection) as begin:
        transaction = begin()
        rows = transaction.lock("orders", "TRUE ORDER BY id LIMIT %s", orders)
        if rows:
            transaction.delete("orders", ["id"], *rows)
            shop.commit(transaction)
    say({"deleted": len(rows)})


def on_sigterm(stop: threading.Event) -> None:
    """End in order."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


def answer_pumps(cluster_url: str, addr: str) -> None:
    """Answer until SIGTERM."""
    stop = threading.Event()
    on_sigterm(stop)
    cluster = open_cluster(cluster_url, create=False)
    with ResolverServer(cluster, "shop", [store.PREFIX], store.answer, addr=addr):
        stop.wait()
    cluster.close()


def main(argv: Sequence[str] | None = None, new_client: Callable[..., PumpClient] = PumpClient) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    opening = verbs.add_parser("open")
    opening.add_argument("--customers", type=int, default=600)
    answering = verbs.add_parser("answer")
    answering.add_argument("--addr", default="127.0.0.1:0", help="where we listen, and where the Pumps call")
    answering.add_argument("cluster")
    selling = verbs.add_parser("sell")
    selling.add_argument("--threads", type=int, default=2)
    selling.add_argument("--rate", type=float, default=5.0, help="transactions a second; 0 = as fast as it goes")
    selling.add_argument("--seconds", type=float, default=0.0, help="for how long; 0 = until SIGTERM")
    erring = verbs.add_parser("mistake")
    erring.add_argument("--orders", type=int, default=100)
    for each in (selling, erring):
        each.add_argument("cluster", nargs="?", help="write binlogs to its Pumps; without it: SQL alone")
    changing = verbs.add_parser("change")
    changing.add_argument("statements", nargs="+")
    for name in ("--drop", "--rename"):
        changing.add_argument(name, action="append", default=[], help="with --client: as for `schema import`")
    for each in (opening, changing):
        each.add_argument("--client", action="store_true", help="import the schema: the shop writes binlogs itself")
    options = parser.parse_args(argv)
    if options.verb == "open":
        way = store if options.client else plain
        if not way.is_open():
            way.open_shop(first_rows(options.customers))
    elif options.verb == "answer":
        answer_pumps(options.cluster, options.addr)
    elif options.verb == "change" and options.client:
        said = [f"--drop={each}" for each in options.drop] + [f"--rename={each}" for each in options.rename]
        store.change(options.statements, said)
    elif options.verb == "change":
        plain.change(options.statements)
    else:
        with opened(options.cluster, new_client, costs=options.verb == "sell") as shop:
            if options.verb == "sell":
                sell(shop, options.threads, options.rate, options.seconds)
            else:
                mistake(shop, options.orders)


if __name__ == "__main__":
    main()
