"""The demo's tables that are older than the archive, and how busy each table is."""

from __future__ import annotations

from pumphouse.demo import statements as ddl
from pumphouse.demo.columns import Col, Idx, Table
from pumphouse.demo.ddl import Step
from pumphouse.demo.plain import plain

# Rows that are there before genesis, by (database, table).
PRELOADED = {
    ("legacy", "customers"): 3000,
    ("legacy", "ledger"): 1500,
    ("legacy", "notes"): 800,
    ("shop", "accounts"): 400,
}

_ALL_TYPES = (
    Col(name="ti", type="tinyint"),
    Col(name="tiu", type="tinyint unsigned"),
    Col(name="si", type="smallint"),
    Col(name="mi", type="mediumint unsigned"),
    Col(name="i", type="int", null=False, default="7"),
    Col(name="bi", type="bigint"),
    Col(name="biu", type="bigint unsigned"),
    Col(name="f", type="float"),
    Col(name="d", type="double"),
    Col(name="dc", type="decimal(30,10)"),
    Col(name="dc0", type="decimal(65,0)"),
    Col(name="da", type="date"),
    Col(name="dt", type="datetime"),
    Col(name="dt6", type="datetime(6)"),
    Col(name="ts", type="timestamp(3)"),
    Col(name="tm", type="time(2)"),
    Col(name="y", type="year"),
    Col(name="ch", type="char(12)"),
    Col(name="vc", type="varchar(60)"),
    Col(name="bin", type="binary(9)"),
    Col(name="vb", type="varbinary(40)"),
    Col(name="tt", type="tinytext"),
    Col(name="tx", type="text"),
    Col(name="mt", type="mediumtext"),
    Col(name="tb", type="tinyblob"),
    Col(name="bl", type="blob"),
    Col(name="lb", type="longblob"),
    Col(name="en", type="enum('red','green','blue')"),
    Col(name="st", type="set('a','b','c','d')"),
    Col(name="bt", type="bit(17)"),
    Col(name="js", type="json"),
)

_CUSTOMERS = Table(
    name="customers",
    columns=(
        Col(name="id", type="bigint", null=False),
        Col(name="name", type="varchar(60)", null=False),
        Col(name="email", type="varchar(80)", null=False),
        Col(name="credit", type="decimal(14,2)", null=False, default="0.00"),
        Col(name="born", type="date"),
        Col(name="remark", type="text"),
        Col(name="seen", type="timestamp(6)"),
        Col(name="old_code", type="varchar(20)"),
    ),
    primary=("id",),
    indexes=(Idx(name="by_name", columns=("name",)), Idx(name="email", columns=("email",), unique=True)),
    comment="older than the archive",
)
_LEDGER = Table(
    name="ledger",
    columns=plain(
        branch="varchar(12) not null",
        seq="bigint unsigned not null",
        amount="decimal(20,6) not null",
        at="datetime(6)",
        doc="json",
        ratio="double",
    ),
    primary=("branch", "seq"),
)
_NOTES = Table(
    name="notes",
    columns=plain(tag="int not null", body="varchar(200)", weight="float", raw="varbinary(30)"),
    indexes=(Idx(name="tag", columns=("tag",)),),
)
_ACCOUNTS = Table(
    name="accounts",
    columns=(
        Col(name="id", type="int", null=False),
        Col(name="slot", type="int", null=False),
        Col(name="balance", type="decimal(16,2)", null=False, default="0.00"),
        Col(name="owner", type="varchar(40)"),
    ),
    primary=("id",),
    indexes=(Idx(name="slot", columns=("slot",), unique=True),),
)
_ORDERS = Table(
    name="orders",
    columns=(
        Col(name="id", type="bigint", null=False),
        Col(name="status", type="enum('new','paid','sent','done')", null=False, default="new"),
        Col(name="qty", type="int"),
        Col(name="price", type="decimal(12,4)"),
        Col(name="doubled", type="bigint", expr="`qty` * 2", stored=True),
        Col(name="placed", type="datetime(3)"),
        Col(name="attrs", type="json"),
        Col(name="flags", type="set('gift','rush','fragile')"),
        Col(name="memo", type="varchar(80)"),
    ),
    primary=("id",),
    indexes=(
        Idx(name="by_status", columns=("status", "placed")),
        Idx(name="by_memo", columns=("memo",), lengths={"memo": 10}),
    ),
)
_ITEMS = Table(
    name="items",
    columns=(
        Col(name="order_id", type="bigint", null=False),
        Col(name="sku", type="varchar(40)", null=False),
        Col(name="width", type="int", expr="length(`sku`)"),
        Col(name="qty", type="smallint unsigned", null=False, default="1"),
        Col(name="price", type="decimal(10,2)"),
    ),
    primary=("order_id", "sku"),
    clustered=False,
)
_EVENTS = Table(
    name="events",
    columns=plain(tag="int not null", at="timestamp(3)", kind="varchar(30)", payload="varbinary(64)"),
    indexes=(Idx(name="tag", columns=("tag",)),),
)
_TYPES = Table(name="types", columns=(Col(name="id", type="bigint unsigned", null=False), *_ALL_TYPES), primary=("id",))
_METRICS = Table(
    name="metrics",
    columns=(
        Col(name="id", type="bigint", null=False),
        Col(name="value", type="double"),
        Col(name="label", type="varchar(30)", null=False, default="none"),
    ),
    primary=("id",),
    ranges={"p0": "15000000", "p1": "35000000", "p2": "2000000000"},
)
_DOCS = Table(
    name="docs",
    columns=plain(id="int not null", title="varchar(40)", body="longblob", text="longtext"),
    primary=("id",),
)
_TOKENS = Table(
    name="tokens",
    columns=(
        Col(name="token", type="varchar(40)", null=False),
        Col(name="secret", type="varbinary(16)", null=False),
        Col(name="uses", type="int unsigned", null=False, default="0"),
    ),
    primary=("token",),
    clustered=False,
    indexes=(Idx(name="secret", columns=("secret",), unique=True),),
)
_WORDS = Table(
    name="words",
    columns=(
        Col(name="word", type="varchar(40)", null=False, collate="utf8mb4_general_ci"),
        Col(name="n", type="int"),
        Col(name="spare", type="varchar(20)", null=False, default="-"),
    ),
    primary=("word",),
)

# Weight of each table in the workload: how often a transaction goes there.
WEIGHTS = {
    "customers": 10,
    "ledger": 10,
    "notes": 4,
    "remarks": 4,
    "accounts": 6,
    "orders": 24,
    "items": 16,
    "events": 6,
    "types": 6,
    "metrics": 8,
    "tokens": 8,
    "words": 6,
    "visits": 4,
    "page_visits": 4,
    "parcels": 8,
    "batch_a": 3,
    "batch_b": 3,
    "scratch": 3,
    "arrivals": 6,
}

BEFORE_GENESIS: tuple[Step, ...] = (
    ddl.create_schema("legacy"),
    ddl.create_table("legacy", _CUSTOMERS),
    ddl.create_table("legacy", _LEDGER),
    ddl.create_table("legacy", _NOTES),
    ddl.create_schema("shop"),
    ddl.create_table("shop", _ACCOUNTS),
    ddl.create_table("shop", _ORDERS),
    ddl.create_table("shop", _ITEMS),
    ddl.create_table("shop", _EVENTS),
    ddl.create_table("shop", _TYPES),
    ddl.create_table("shop", _METRICS),
    ddl.create_table("shop", _DOCS),
    ddl.create_table("shop", _TOKENS),
    ddl.create_table("shop", _WORDS),
)
