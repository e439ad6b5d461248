"""The DDL that happens while the demo runs, in its order."""

from __future__ import annotations

from dataclasses import dataclass

from pumphouse.demo import statements as ddl
from pumphouse.demo.columns import Col, Idx, Table
from pumphouse.demo.ddl import Step
from pumphouse.demo.plain import plain


@dataclass(frozen=True, slots=True)
class NamedStep:
    """A DDL with the words that the demo prints for it."""

    name: str
    step: Step


_VISITS = Table(
    name="visits",
    columns=plain(id="bigint not null", page="varchar(50)", ms="int unsigned", agent="tinytext"),
    primary=("id",),
)
_PARCELS = Table(
    name="parcels",
    columns=plain(id="int unsigned not null", weight="float", route="json", label="varchar(30)"),
    primary=("id",),
)


def _batch(name: str) -> Table:
    return Table(name=name, columns=plain(id="int not null", v="varchar(30)"), primary=("id",))


_ARRIVALS = Table(
    name="arrivals",
    columns=plain(id="bigint not null", dock="varchar(20)", tons="decimal(9,3)"),
    primary=("id",),
)

# In this order, spread over the run. Twenty kinds.
WHILE_RUNNING: tuple[NamedStep, ...] = (
    NamedStep("create table", ddl.create_table("shop", _VISITS)),
    NamedStep(
        "add column",
        ddl.add_column("shop", "orders", Col(name="weight", type="decimal(8,3)", null=False, default="1.500")),
    ),
    NamedStep("add index", ddl.create_index("shop", "items", Idx(name="by_price", columns=("price",)))),
    NamedStep("create schema", ddl.create_schema("depot")),
    NamedStep("create table", ddl.create_table("depot", _PARCELS)),
    NamedStep(
        "modify column",
        ddl.modify_column("shop", "tokens", Col(name="uses", type="bigint unsigned", null=False, default="0")),
    ),
    NamedStep("drop column", ddl.drop_column("legacy", "customers", "old_code")),
    NamedStep("truncate table", ddl.truncate_table("shop", "events")),
    NamedStep("rename table", ddl.rename_table("shop", "visits", "page_visits")),
    NamedStep("create view", ddl.create_view("shop", "order_states", "orders", ["id", "status", "qty"])),
    NamedStep(
        "add column",
        ddl.add_column("legacy", "ledger", Col(name="approved", type="bit(3)", default="5"), after="amount"),
    ),
    NamedStep("set default", ddl.set_default("shop", "metrics", "label", "unknown")),
    NamedStep("rename index", ddl.rename_index("legacy", "customers", "by_name", "by_full_name")),
    NamedStep("create table", ddl.create_table("depot", _batch("batch_a"))),
    NamedStep("create table", ddl.create_table("depot", _batch("batch_b"))),
    NamedStep("add partition", ddl.add_partition("shop", "metrics", "p3", "4000000000")),
    NamedStep(
        "multi-schema change",
        ddl.multi_change(
            "shop",
            "words",
            add=Col(name="lang", type="char(2)", null=False, default="xx"),
            drop="spare",
            index=Idx(name="by_n", columns=("n",)),
        ),
    ),
    NamedStep(
        "rolled-back add index",
        ddl.failed_unique_index("shop", "orders", Idx(name="bad", columns=("status",), unique=True)),
    ),
    NamedStep("truncate partition", ddl.truncate_partition("shop", "metrics", "p0")),
    NamedStep("modify table comment", ddl.comment_table("shop", "tokens", "it's a `comment`; -- really")),
    NamedStep(
        "rename tables", ddl.rename_tables("depot", [("batch_a", "tmp"), ("batch_b", "batch_a"), ("tmp", "batch_b")])
    ),
    NamedStep("drop index", ddl.drop_index("shop", "items", "by_price")),
    NamedStep("drop partition", ddl.drop_partition("shop", "metrics", "p1")),
    NamedStep("drop view", ddl.drop_view("shop", "order_states")),
    NamedStep("create view", ddl.create_view("shop", "rich", "accounts", ["id", "balance"])),
    NamedStep("create schema", ddl.create_schema("passing")),
    NamedStep("create table", ddl.create_table("passing", _batch("scratch"))),
    NamedStep("drop table", ddl.drop_table("depot", "batch_b")),
    NamedStep("drop schema", ddl.drop_schema("passing")),
)

# At once, while the first load of the target is under way: a load that took the schema of before for these would lose
# a column, or a table.
IN_FIRST_LOAD: tuple[NamedStep, ...] = (
    NamedStep(
        "add column", ddl.add_column("legacy", "customers", Col(name="tier", type="smallint", null=False, default="3"))
    ),
    NamedStep("create table", ddl.create_table("shop", _ARRIVALS)),
    NamedStep("rename table", ddl.rename_table("legacy", "notes", "remarks")),
)
