"""The DDL that happens while the shop is open, in its order. Kinds that it lacks: tests/recorded, of a real TiDB."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """Statements of different tables that one `schema import` takes up, by kind, and what it must be told of them."""

    statements: dict[str, str]
    told: tuple[str, ...] = ()


WHILE_RUNNING: tuple[Step, ...] = (
    Step(
        {
            "add column": "ALTER TABLE shop.orders ADD COLUMN weight DECIMAL(8,3) NOT NULL DEFAULT 1.5",
            "add index": "CREATE INDEX by_price ON shop.order_lines (price)",
            "create table": "CREATE TABLE shop.returns (id BIGINT PRIMARY KEY, order_id BIGINT, at DATETIME(3))",
        }
    ),
    Step(
        {
            "modify column": "ALTER TABLE shop.stock MODIFY pieces BIGINT UNSIGNED NOT NULL",
            "drop column": "ALTER TABLE shop.customers DROP COLUMN old_code",
            "create view": "CREATE VIEW shop.order_states AS SELECT id, state, total FROM shop.orders",
        },
        ("--drop=shop.customers.old_code",),
    ),
    Step(
        {
            "set default": "ALTER TABLE shop.orders ALTER COLUMN total SET DEFAULT 1.25",
            "rename index": "ALTER TABLE shop.customers RENAME INDEX by_name TO by_full_name",
            "truncate table": "TRUNCATE TABLE shop.photos",
        },
        ("--drop=shop.photos",),
    ),
    Step(
        {
            "modify table comment": "ALTER TABLE shop.stock COMMENT 'it''s a `comment`; -- really'",
            "drop index": "DROP INDEX by_price ON shop.order_lines",
            "multi-schema change": "ALTER TABLE shop.returns ADD COLUMN why CHAR(2) NOT NULL DEFAULT 'xx',"
            " ADD KEY by_order (order_id), COMMENT 'back'",
            "drop view": "DROP VIEW shop.order_states",
        }
    ),
)

# While the first load of the target is under way: one that took the schema of before would lose a column or a table.
IN_FIRST_LOAD = Step(
    {
        "add column": "ALTER TABLE shop.customers ADD COLUMN tier SMALLINT NOT NULL DEFAULT 3",
        "create table": "CREATE TABLE shop.suppliers (id BIGINT PRIMARY KEY, name VARCHAR(20))",
        "rename table": "RENAME TABLE shop.visits TO shop.page_visits",
    },
    ("--rename=shop.visits=page_visits",),
)
