"""What the shop's customers do, and what the shop has when it opens."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

import pymysql
from pymysql.connections import Connection

from deploy.shop.server import Row, connect, query

if TYPE_CHECKING:
    from deploy.shop import plain, store

    Transaction = plain.Transaction | store.Transaction


def now() -> str:
    """For a DATETIME(3)."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


class Shop(Protocol):
    """Where transactions come from, and where they end: `deploy.shop.plain`, and with binlogs `deploy.shop.store`."""

    @property
    def away(self) -> tuple[type[Exception], ...]:
        """What it raises when nothing can be sold now."""

    def transaction(self, connection: Connection[Any]) -> AbstractContextManager[Callable[[], Any]]:
        """What begins transactions; what is not committed in the block rolls back."""

    def commit(self, transaction: Any) -> None:
        """Commit it."""

    def deliver(self, transactions: Sequence[Any]) -> int:
        """Commit several of one connection; how many transactions they are."""


class Seller(threading.Thread):
    """Serves one customer after the other, until the shop closes."""

    def __init__(self, shop: Shop, number: int, rate: float, stop: threading.Event) -> None:
        super().__init__(name=f"seller-{number}")
        self.shop, self.pause_s = shop, 1 / rate if rate else 0.0
        self.stop = stop
        self.sold: Counter[str] = Counter()
        self.random = random.Random()  # noqa: S311 - no secret
        self.failed: Counter[str] = Counter()
        self.error: BaseException | None = None
        self.customers: list[int] = []
        self.skus: list[str] = []
        self.orders: deque[int] = deque(maxlen=500)

    def run(self) -> None:
        """The loop."""
        try:
            with closing(connect()) as connection:
                self.customers = [row["id"] for row in query(connection, "SELECT id FROM shop.customers LIMIT 5000")]
                self.skus = [row["sku"] for row in query(connection, "SELECT sku FROM shop.stock ORDER BY sku")]
                self.orders.extend(row["id"] for row in query(connection, "SELECT id FROM shop.orders LIMIT 500"))
                due = time.monotonic()
                while not self.stop.wait(max(0.0, due - time.monotonic())):
                    due = max(due + self.pause_s, time.monotonic() - 2.0)
                    self.serve(connection)
        except BaseException as error:  # noqa: BLE001 - `sell` raises it
            self.error = error
            self.stop.set()

    def serve(self, connection: Connection[Any]) -> None:
        """One transaction. A failure here is the customer's, or it passes."""
        actions = (self.buy, self.pay, self.cancel, self.exchange, self.register, self.swap, self.photograph)
        action = self.random.choices(actions, (60, 12, 12, 6, 6, 3, 0.2))[0]
        try:
            with self.shop.transaction(connection) as begin:
                if self.random.random() < 0.01:
                    self.deliver(begin)
                    return
                transaction = begin()
                action(transaction)
                if transaction.changes:
                    self.shop.commit(transaction)
                    self._note(1, transaction.changes)
        except pymysql.IntegrityError:
            self.sold["rolled back"] += 1  # the email is taken; or a Pump had the transaction decided
        except pymysql.OperationalError as error:  # a deadlock, or a lock that took too long
            self.failed[f"server error {error.args[0]}"] += 1
        except self.shop.away:
            self.failed["no Pump"] += 1

    def _note(self, transactions: int, rows: int) -> None:
        self.sold.update({"transactions": transactions, "rows": rows})

    def articles(self, transaction: Transaction, count: int) -> list[Row]:
        """Some articles, locked in one order for all: fewer deadlocks."""
        skus = sorted(self.random.sample(self.skus, count))
        return transaction.lock("stock", "sku IN %s ORDER BY sku", skus)

    def buy(self, transaction: Transaction) -> None:
        """An order with its lines; the stock and the customer change, and the visit is noted."""
        articles = [row for row in self.articles(transaction, self.random.randint(2, 6)) if row["pieces"] > 0]
        customers = transaction.lock("customers", "id = %s", self.random.choice(self.customers))
        if not articles or not customers:
            return
        (customer,), order = customers, transaction.number
        total = sum(Decimal(row["price"]) for row in articles)
        note = self.random.choice((None, "", "bitte klingeln", "l'eau, s'il vous plaît", "水 \\ 'now'\t🚰"))
        row = {"id": order, "customer": customer["id"], "state": "new", "placed": now(), "total": f"{total:.2f}"}
        # `weight` is a column to come: the shop knows it before the DDL adds it.
        transaction.insert("orders", {**row, "note": note, "weight": "1.250"})
        lines = [{"order_id": order, "sku": row["sku"], "pieces": 1, "price": row["price"]} for row in articles]
        transaction.insert("order_lines", *lines)
        transaction.update("stock", *((row, {**row, "pieces": row["pieces"] - 1}) for row in articles))
        seen = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        credit = f"{Decimal(customer['credit']) - total:.2f}"
        transaction.update("customers", (customer, {**customer, "credit": credit, "seen": seen}))
        visits = "visits" if ("shop", "visits") in transaction.known else "page_visits"  # before and after a RENAME
        page = f"/order/{order}"
        transaction.insert(visits, {"customer": customer["id"], "at": now(), "page": page}, handle=order)
        self.orders.append(order)

    def an_order(self, transaction: Transaction) -> Row | None:
        """One of the orders that we know, locked; None when somebody has cancelled it."""
        found = transaction.lock("orders", "id = %s", self.random.choice(self.orders)) if self.orders else []
        return found[0] if found else None

    def pay(self, transaction: Transaction) -> None:
        """An order goes on by one state."""
        if order := self.an_order(transaction):
            transaction.update("orders", (order, {**order, "state": "paid" if order["state"] == "new" else "sent"}))

    def cancel(self, transaction: Transaction) -> None:
        """An order and its lines end, and its articles go back."""
        if order := self.an_order(transaction):
            lines = transaction.lock("order_lines", "order_id = %s ORDER BY sku", order["id"])
            transaction.delete("orders", ["id"], order)
            if lines:
                transaction.delete("order_lines", ["order_id", "sku"], *lines)
                back = transaction.lock("stock", "sku IN %s ORDER BY sku", [line["sku"] for line in lines])
                transaction.update("stock", *((row, {**row, "pieces": row["pieces"] + 1}) for row in back))
            if ("shop", "returns") in transaction.known:  # a table to come
                row = {"id": transaction.number, "order_id": order["id"], "at": now(), "why": "xx"}
                transaction.insert("returns", row)

    def exchange(self, transaction: Transaction) -> None:
        """One article for another: the line gets another key, which is a DELETE and an INSERT."""
        order = self.an_order(transaction)
        lines = transaction.lock("order_lines", "order_id = %s ORDER BY sku", order["id"]) if order else []
        free = sorted({*self.random.sample(self.skus, 8)} - {line["sku"] for line in lines})
        if lines and free:
            transaction.delete("order_lines", ["order_id", "sku"], lines[0])
            transaction.insert("order_lines", {**lines[0], "sku": free[0]})

    def register(self, transaction: Transaction) -> None:
        """A new customer; the email may be taken, which the server finds in `prewrite`."""
        taken = self.random.random() < 0.3
        number = transaction.number
        customer = customer_of(number)
        if taken:
            customer["email"] = customer_of(self.random.randint(1, 20))["email"]
        transaction.insert("customers", {**customer, "tier": 3})
        if not taken and len(self.customers) < 20_000:
            self.customers.append(number)

    def swap(self, transaction: Transaction) -> None:
        """Two articles change places: a unique value goes from row to row, which takes the server three statements."""
        transaction.swap("stock", "sku", "shelf", *self.articles(transaction, 2))

    def photograph(self, transaction: Transaction) -> None:
        """A picture of a megabyte or more, in place of the one before."""
        sku = self.random.choice(self.skus)
        if before := transaction.lock("photos", "sku = %s", sku):
            transaction.delete("photos", ["sku"], *before)
        transaction.insert("photos", {"sku": sku, "picture": os.urandom(1 << 16) * self.random.randint(16, 32)})

    def deliver(self, begin: Callable[[], Transaction]) -> None:
        """Goods arrive: twenty articles, each a transaction of its own for a Pump, and one commit of the server."""
        deliveries = [begin() for _ in range(20)]
        for each, row in zip(deliveries, self.articles(deliveries[0], len(deliveries)), strict=True):
            each.update("stock", (row, {**row, "pieces": row["pieces"] + 50}))
        self._note(self.shop.deliver(deliveries), len(deliveries))


def customer_of(number: int) -> Row:
    """A customer by number."""
    return {
        "id": number,
        "email": f"c{number}@example.com",
        "name": f"{('Ada', 'Grace', 'Zoë', '美咲')[number % 4]} {number}",
        "born": f"{1930 + number % 80}-0{1 + number % 9}-1{number % 10}",
        "credit": "100.00",
        "address": json.dumps({"street": f"Am Wehr {number % 90}", "flats": [number % 7, None]}, ensure_ascii=False),
        "seen": None,
        "old_code": f"x{number}",
    }


def first_rows(customers: int) -> Iterator[tuple[str, list[Row]]]:
    """Rows that are older than the archive: no binlog has them, a dump does."""
    for first in range(1, customers + 1, 500):
        yield "customers", [customer_of(n) for n in range(first, min(first + 500, customers + 1))]
    skus = [f"article-{n:03}" for n in range(200)]
    yield "stock", [
        {"sku": sku, "shelf": n + 1, "price": f"{n % 50}.{n % 100:02}", "pieces": 1000, "weight": n / 3,
         "hazards": ("", "glass", "glass,cold")[n % 3]}
        for n, sku in enumerate(skus)
    ]  # fmt: skip
    for first in range(1, customers // 2 + 1, 200):
        numbers = range(first, min(first + 200, customers // 2 + 1))
        yield (
            "orders",
            [
                {"id": n, "customer": n, "state": "paid", "placed": now(), "total": "9.90", "note": None}
                for n in numbers
            ],
        )
        yield (
            "order_lines",
            [
                {"order_id": n, "sku": skus[(n + m) % 200], "pieces": 1, "price": "3.30"}
                for n in numbers
                for m in range(3)
            ],
        )
