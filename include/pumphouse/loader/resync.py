"""Bring back one table that a rule left out: from the dump and the log over it, up to where the target stands."""

from __future__ import annotations

from pumphouse.errors import LoadError, UnknownDdl, UsageError
from pumphouse.loader.begin import create_foreign_keys, in_creation_order
from pumphouse.loader.ddl import forget_ddl_of
from pumphouse.loader.report import LoadReport
from pumphouse.loader.rules import Rules, bring_back
from pumphouse.loader.run import Loader
from pumphouse.loader.state import Checkpoint
from pumphouse.loader.work import base_work, works_between
from pumphouse.model.tso import show
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import qualified
from pumphouse.schema.table_sql import create_object

_DUMP = "take a new dump (`pumphouse archive dump`), load beyond it, and try again"


def resync(loader: Loader, checkpoint: Checkpoint, table: str) -> LoadReport:
    """Make one table what the source's is at the checkpoint. Killed, it is left out as before; run it again.

    Raises:
        UsageError: the table is not left out, or a rule of the settings still says so.
        LoadError: a plan is open, or the archive cannot tell this table's rows from those of others.
    """
    connection, view, task = loader.connection, loader.view, loader.task
    loader.require_ready(checkpoint)
    name = table.lower()
    if Rules.of(loader.settings.rules, checkpoint.ts).left_out(name) is not None:
        raise UsageError(
            f"load.rules still leaves {table} out",
            hint="take its rule away, or name it in the rule's `but`, then try again",
        )
    if loader.rules.left_out(name) is None:
        known = ", ".join(sorted(loader.rules.tables)) or "none"
        raise UsageError(f"{table} is not left out on {connection.name}", hint=f"tables that are: {known}")
    if loader.opened() is not None:
        raise LoadError("a plan is open", hint="finish it first: run the load without --resync")
    loader.report.from_ts = loader.report.to_ts = at = checkpoint.ts
    base = view.base_for(at)
    if base is None:
        raise LoadError(f"no dump leads to {show(at)}, where the target stands", hint=_DUMP)
    rules = Rules(only=name, ddls=loader.rules.ddls, txns=loader.rules.txns)
    try:
        first, *later = [
            base_work(view, base, task, loader.settings, rules),
            *works_between(view, base.ts, at, task, loader.settings, rules),
        ]
    except UnknownDdl as error:
        raise LoadError(f"{table} cannot be brought back by itself: {error.message}", hint=_DUMP) from error
    dialect = Dialect.of_version(str(connection.value("SELECT VERSION()")))
    events = [event for work in later for event in work.events]
    forget_ddl_of(connection, task, [int(event.commit_ts) for event in events])
    db, _, short = table.partition(".")
    versions = [v for v in in_creation_order(view.timeline, base.ts, dialect) if ".".join(v.name).lower() == name]
    connection.execute(f"DROP TABLE IF EXISTS {qualified(db, short)}")
    for version in versions:
        connection.execute(create_object(version.db, version.table, dialect))
    loader.run(loader.begin(first))
    loader.report.notes += create_foreign_keys(connection, versions)
    for work in later:
        loader.run(loader.begin(work))
    bring_back(connection, loader.owner, task, name)
    loader.report.parked.pop(name, None)
    loader.report.skipped.pop(name, None)
    return loader.finish(at)
