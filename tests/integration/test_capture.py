"""`pumphouse capture` on real processes: plain SQL writers, DDL among them, kills of every part."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.capturedstack import captured_stack

pytestmark = pytest.mark.timeout(600)


@pytest.mark.row("Q1", "Q2", "Q3")
def test_what_plain_sql_writes_reaches_a_target(tmp_path: Path) -> None:
    with captured_stack(tmp_path) as stack:
        stack.run("CREATE DATABASE shop")
        stack.run(
            "CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(40), price DECIMAL(10,2), at DATETIME(3))",
            "INSERT INTO orders (name, price, at) VALUES ('a', 1.5, NOW(3)), ('ä', -2.25, '2001-01-01'), (NULL, NULL, NULL)",
            db="shop",
        )
        stack.captured()
        stack.begin()
        stack.run(
            "UPDATE orders SET name = 'b' WHERE id = 1",
            "ALTER TABLE orders ADD COLUMN city VARCHAR(20) NOT NULL DEFAULT 'Ulm'",
            "INSERT INTO orders (name, city) VALUES ('c', 'Bonn')",
            "RENAME TABLE orders TO sales",
            "DELETE FROM sales WHERE id = 2",
            db="shop",
        )
        stack.require_equal()
        stack.run("TRUNCATE TABLE sales", "INSERT INTO sales (name) VALUES ('new')", db="shop")
        stack.stop_capture()
        stack.run("INSERT INTO sales (name) VALUES ('while it was down')", db="shop")
        stack.start_capture()
        stack.require_equal()
