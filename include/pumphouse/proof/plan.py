"""What a proof reads of the archive: that of a restore to the moment, in one go, of the tables whose rows it tells.

A restore carries each DDL out where it stands among the rows, on a server. A proof has no server: it takes all changes
since the dump at once, as rows of the table as it is at the moment. So it cannot say what a DDL made of rows that
nobody wrote afterwards, where that is more than a column with a default: such tables are unproven, by name.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pumphouse.archive.view import ArchiveView, has_rows
from pumphouse.codec.datum import Kind, kind_of
from pumphouse.codec.retype import keeps_values
from pumphouse.loader.keys import key_columns
from pumphouse.loader.plan import Mode, Plan, bucket_counts
from pumphouse.loader.rules import LeftOut, Rules
from pumphouse.loader.work import Work
from pumphouse.model.table import FieldType, MysqlType
from pumphouse.model.tso import show
from pumphouse.restore.plan import RestorePlan
from pumphouse.schema.actions import Effect, Reach, Rows
from pumphouse.schema.alter import match_columns
from pumphouse.schema.route import Routes
from pumphouse.schema.versions import DdlEvent, TableVersion
from pumphouse.settings import LoadSettings

_NEW_DUMP = "a proof that begins from a later dump can tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A table that there is at the moment; ``why``: why its rows cannot be told from the archive alone, or ''."""

    version: TableVersion
    why: str = ""

    @property
    def name(self) -> str:
        """``database.table`` of the source."""
        return ".".join(self.version.name)


def subjects(
    view: ArchiveView, plan: RestorePlan, rules: Rules, left_out: Mapping[str, LeftOut], only: Collection[str] = ()
) -> list[Subject]:
    """The tables with rows at the moment of a plan, by name.

    Args:
        view: what the plan was made from.
        plan: of a restore to the moment.
        rules: what it goes by.
        left_out: tables that the target itself says it does not follow.
        only: names of the tables that are asked for, in lower case; () = all.
    """
    out = replace(rules, tables={**left_out, **rules.tables})
    events = view.timeline.ddls(plan.base_low, plan.to)
    found = []
    for version in view.timeline.tables_at(plan.to):
        name = ".".join(version.name).lower()
        if not has_rows(version) or (only and name not in only):
            continue
        rule = out.left_out(name)
        why = str(rule) if rule is not None else untold(version, events, rules, _NEW_DUMP)
        found.append(Subject(version=version, why=why))
    return found


def untold(version: TableVersion, events: list[DdlEvent], rules: Rules, remedy: str) -> str:
    """Why changes before and after these DDLs do not say which rows a table has now, or ''; ``remedy`` if one can."""
    for event in events:
        everywhere = event.facts.reach is Reach.CLUSTER
        if not everywhere and version.table.id not in event.table_ids:
            continue
        what = f"the DDL at {show(event.commit_ts)} ({event.action.name})"
        rule = rules.rule_of(event)
        if rule is not None:
            return f"a rule says {rule.do} of {what}: {rule.why}"
        if event.problem:
            return f"{what}: {event.problem}"
        if not _tells_rows(event):
            return f"{what} changed rows without a binlog; {remedy}"
        if changed := _converted(event, version.table.id):
            return f"{what} changed the type of {changed}; {remedy}"
    return ""


def _tells_rows(event: DdlEvent) -> bool:
    """Whether the changes before and after a DDL of a table say which rows it has."""
    rows, effect = event.facts.rows, event.facts.effect
    if rows is Rows.GO:  # with the table, which came back
        return effect in (Effect.DROP, Effect.DROP_DATABASE)
    renumbered = rows is Rows.STAY and effect is Effect.RENUMBER
    return rows in (Rows.STAY, Rows.BEGIN, Rows.RENEW, Rows.RETURN) and not renumbered


def _converted(event: DdlEvent, table_id: int) -> str:
    """The column of a table whose values a DDL made others of, or ''."""
    for change in event.changes:
        before, after = change.before, change.after
        if before is None or after is None or {before.table.id, after.table.id} != {table_id}:
            continue
        for old, new in match_columns(event.job, before.table, after.table):
            if old is None or new is None or new.generated:
                continue
            if old.id != new.id or old.generated or not _same_values(old.type, new.type):
                return new.name
    return ""


def _same_values(old: FieldType, new: FieldType) -> bool:  # noqa: PLR0911 - one a kind
    """Whether a value of the old type has the same text in the new one."""
    if keeps_values(old, new):
        return True
    kinds = kind_of(old), kind_of(new)
    if kinds[0] is not kinds[1] or (old.charset == "binary") != (new.charset == "binary"):
        return False
    match kinds[0]:
        case Kind.ENUM | Kind.SET:
            return new.elems[: len(old.elems)] == old.elems
        case Kind.DECIMAL:
            return old.decimal == new.decimal and old.flen <= new.flen
        case Kind.DATETIME | Kind.TIME | Kind.FLOAT | Kind.DOUBLE:
            return old.decimal == new.decimal
        case Kind.BYTES:
            fixed = MysqlType.STRING in (old.tp, new.tp)
            return (old.tp, old.flen) == (new.tp, new.flen) if fixed else old.flen <= new.flen or new.flen < 0
        case Kind.INT | Kind.UINT | Kind.DATE | Kind.JSON:
            return MysqlType.YEAR not in (old.tp, new.tp) or old.tp == new.tp


def digest_of(plan: RestorePlan, routes: Routes) -> str:
    """SHA-256 of what the archive's side is computed from, whatever the archive got since, and of names there."""
    digest = hashlib.sha256(f"{plan.to} {routes or ''}".encode())
    for work in plan.works:
        digest.update(work.plan.digest().encode())
        for piece in work.pieces:
            digest.update(f"{piece.segment.key} {piece.segment.sha256} {piece.after} {piece.upto}\n".encode())
    return digest.hexdigest()


def sizes_of(plan: RestorePlan) -> dict[int, int]:
    """Bytes of each table that a restore reads."""
    sizes: dict[int, int] = defaultdict(int)
    for work in plan.works:
        for table_id, size in work.sizes.items():
            sizes[table_id] += size
    return dict(sizes)


def work_of(plan: RestorePlan, view: ArchiveView, settings: LoadSettings, wanted: Collection[str]) -> Work:
    """All that a restore would read of some tables, as one work whose rows are those of its end.

    Args:
        plan: of the restore.
        view: what the plan was made from.
        settings: how tables are cut into buckets.
        wanted: names of the tables at the moment, ``database.table`` of the source.
    """
    base = plan.works[0]
    there = [(".".join(version.name), version.table) for version in view.timeline.tables_at(plan.to)]
    skipped = {name: why for work in plan.works for name, why in work.plan.skipped.items()}
    skipped |= {name: "not asked for" for name, _ in there}
    asked = [table for name, table in there if name in wanted]
    ids = {table.id for table in asked}
    ids |= {part for part, table_id in view.timeline.partitions.items() if table_id in ids}
    sizes = {table_id: size for table_id, size in sizes_of(plan).items() if table_id in ids}
    buckets = bucket_counts(
        sizes,
        unit_bytes=settings.unit_bytes,
        connections=settings.connections,
        scanned={table.id for table in asked if not key_columns(table)},
    )
    return Work(
        plan=Plan(
            task="proof",
            number=0,
            from_ts=base.plan.from_ts,
            to_ts=plan.to,
            mode=Mode.REPEAT,  # so rows are of the table as it is at the end
            buckets=buckets,
            skipped={name: why for name, why in skipped.items() if name not in wanted},
            without=tuple(sorted({ts for work in plan.works for ts in work.plan.without})),
            where=base.plan.where,
        ),
        pieces=tuple(
            piece for work in plan.works for piece in work.pieces if piece.table_id is None or piece.table_id in ids
        ),
        tables=frozenset(ids).union(*(work.tables for work in plan.works)),  # also those without any row
        events=(),
        losses=plan.losses,
        lows=base.lows,
        sizes=sizes,
    )
