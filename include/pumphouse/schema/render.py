"""From what a DDL did, in structure, to the statements that do it on a target.

Rendered from the table infos before and after, never by editing the source's text: parsers of MySQL's SQL fail on much
of TiDB's, and the text depends on a sql_mode that the binlog does not carry. On a TiDB it would not do the same either:
DEFAULT CURRENT_TIMESTAMP fills old rows by the target's clock, RECOVER TABLE BY JOB names another job, a TTL deletes
rows. Which function here renders a type, its facts say (`pumphouse.schema.actions`); a type without is UnknownDdl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from pumphouse import advice
from pumphouse.errors import SchemaError, UnknownDdl
from pumphouse.model.table import MISREAD, TableInfo, misread
from pumphouse.model.tso import show
from pumphouse.schema.actions import Action, Facts, Form, Reach, is_system
from pumphouse.schema.alter import AlterClauses, alter_clauses, partition_names
from pumphouse.schema.conversion import Cast
from pumphouse.schema.dialect import Dialect, charset_sql
from pumphouse.schema.ident import columns as column_list
from pumphouse.schema.ident import qualified, quote
from pumphouse.schema.sequence import restart_of
from pumphouse.schema.table_sql import (
    add_foreign_keys,
    auto_increment_column,
    create_database,
    create_object,
    hash_condition,
    is_hashed,
    left_out,
    partition_definition,
    partition_definitions,
    partition_sql,
    sequence_options,
    spread_otherwise,
)
from pumphouse.schema.versions import Change, DdlEvent, TableVersion

# Where tables wait that a later RECOVER or FLASHBACK brings back: our own schema on the target.
KEEP_SCHEMA = "pumphouse"
# STRICT_TRANS_TABLES and STRICT_ALL_TABLES in the bits of TiDB's sql_mode.
_STRICT_MODES = 1 << 21 | 1 << 22


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement for a target.

    ``objects``: the tables as (database, name), and databases as (database, ''), whose looks tell whether it ran; of
    them, those in ``gone`` are not there afterwards, and the others are.
    ``repeatable``: running it twice, with no rows between, is the same as running it once; so where looks do not tell,
    it may run again. ``engine_only``: SHOW CREATE is the same before and after, only the engine's table ids differ.
    ``db``: the database to be in, for statements that are the source's own text. ``needs``: a table that must be there.
    ``strict``: False where the source ran it without a strict sql_mode, and so cut values instead of refusing.
    ``rounds``: False where the source cut fractions of seconds.
    ``time_zone``: what the session's is to be, '' = UTC as ever: an offset or a name.
    ``ruled``: of a rule, in place of what the source says.
    ``optional``: no row and no later statement is different without it (a foreign key); refused, it is left out.
    ``doubts``: changes of types whose values are not known to be TiDB's on the target, each with a condition on rows,
    '' = any: the first object is the table, and must have no such rows.
    """

    sql: str
    objects: tuple[tuple[str, str], ...]
    repeatable: bool = False
    engine_only: bool = False
    db: str = ""
    needs: tuple[str, str] | None = None
    strict: bool = True
    rounds: bool = True
    gone: tuple[tuple[str, str], ...] = ()
    time_zone: str = ""
    optional: bool = False
    ruled: bool = False
    doubts: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON object, as the target's table ``ddl`` keeps it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(
            sql=str(data["sql"]),
            objects=tuple((str(db), str(name)) for db, name in data["objects"]),
            repeatable=bool(data["repeatable"]),
            engine_only=bool(data["engine_only"]),
            db=str(data["db"]),
            needs=None if data["needs"] is None else (str(data["needs"][0]), str(data["needs"][1])),
            strict=bool(data["strict"]),
            rounds=bool(data.get("rounds", True)),
            gone=tuple((str(db), str(name)) for db, name in data["gone"]),
            time_zone=str(data.get("time_zone", "")),
            optional=bool(data.get("optional", False)),
            ruled=bool(data.get("ruled", False)),
            doubts=tuple((str(what), str(where)) for what, where in data.get("doubts", ())),
        )


@dataclass(frozen=True, slots=True)
class Rendered:
    """Statements of one DDL, in order, and what of it the target cannot say."""

    statements: tuple[Statement, ...] = ()
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Statement]:
        return iter(self.statements)

    def __len__(self) -> int:
        return len(self.statements)


# The columns of a table on the target, in lower case, and which of them it computes; None = that is not known.
LookThere = Callable[[tuple[str, str]], Mapping[str, bool] | None]


def _nobody_looks(_: tuple[str, str]) -> None:
    return None


@dataclass(slots=True)
class _Rendering:
    """One DDL and what has been rendered of it so far."""

    dialect: Dialect
    keep_schema: str
    event: DdlEvent
    there: LookThere = _nobody_looks
    bare: bool = False
    statements: list[Statement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def facts(self) -> Facts:
        return self.event.facts

    @property
    def repeatable(self) -> bool:
        """Of the DDL's own statement; what is around that says it by itself."""
        return self.facts.repeatable

    def run(
        self,
        sql: str,
        *objects: tuple[str, str],
        repeatable: bool = False,
        engine_only: bool = False,
        gone: tuple[tuple[str, str], ...] = (),
        needs: tuple[str, str] | None = None,
        time_zone: str = "",
        optional: bool = False,
    ) -> None:
        strict, rounds = _strict(self.event), _rounds(self.event)
        self.statements.append(
            Statement(
                sql, objects, repeatable, engine_only,
                strict=strict, rounds=rounds, gone=gone, needs=needs, time_zone=time_zone, optional=optional,
            )
        )  # fmt: skip


def _strict(event: DdlEvent) -> bool:
    """Whether the source ran it strictly; jobs that rewrite rows keep their sql_mode."""
    mode = (event.job.raw.get("reorg_meta") or {}).get("sql_mode")
    return mode is None or bool(int(mode) & _STRICT_MODES)


def _rounds(event: DdlEvent) -> bool:
    """Whether the source rounded fractions of seconds; a TiDB does."""
    return Cast.of(event.job.raw.get("reorg_meta") or {}, strict=True).rounds is not False


def _time_zone(event: DdlEvent) -> str:
    """Time zone of the session at the source, as MySQL takes it; '' = UTC, or the job does not say.

    TiDB rewrites rows in that zone; it is in the jobs that rewrite rows: ``location``, a name, or '' and an offset in
    seconds.
    """
    location = (event.job.raw.get("reorg_meta") or {}).get("location") or {}
    name, offset = str(location.get("name") or ""), int(location.get("offset") or 0)
    if name.lower() in {"system", "local"}:
        raise SchemaError(
            f"DDL job {event.job.id} rewrote rows in the time zone of a host ({name}), which it does not name",
            hint="make a new archive with `pumphouse archive init` under another archive id, and a new target from it",
            job_id=event.job.id,
        )
    if name:
        return "" if name.upper() in {"UTC", "ETC/UTC"} else name
    hours, minutes = divmod(abs(offset) // 60, 60)
    return f"{'-' if offset < 0 else '+'}{hours:02}:{minutes:02}" if offset else ""


def render(
    event: DdlEvent,
    dialect: Dialect,
    *,
    keep_schema: str = KEEP_SCHEMA,
    there: LookThere = _nobody_looks,
    bare: bool = False,
) -> Rendered:
    """Statements of one DDL; none where it changes nothing that the target has.

    Args:
        event: the DDL.
        dialect: of the target.
        keep_schema: where dropped tables wait.
        there: looks at a table on the target: how it has its generated columns.
        bare: without the expressions of generated columns that a server may refuse.

    Raises:
        UnknownDdl: it cannot be replicated (FLASHBACK CLUSTER), or nothing is known of its type.
        SchemaError: the job does not say enough.
    """
    out = _Rendering(dialect, keep_schema, event, there, bare)
    require_known(event)
    if event.silent or event.facts.silent or _is_system(event):
        return Rendered()
    if event.facts.form is Form.NONE:
        raise UnknownDdl(
            f"DDL job {event.job.id} has the type {event.action.name}, which cannot be rendered",
            job_id=event.job.id,
            type=int(event.action),
        )
    if dialect not in event.facts.on:
        return Rendered((), (f"{event.action.name} has no meaning on {dialect}",))
    try:
        _FORMS[event.facts.form](out)
    except SchemaError as error:
        error.facts.setdefault("job_id", event.job.id)
        raise
    except MISREAD as error:
        raise misread(event.job, error) from error
    return Rendered(tuple(out.statements), tuple(out.notes))


def require_known(event: DdlEvent) -> None:
    """UnknownDdl where nothing can be loaded past an event."""
    if not event.problem:
        return
    if event.facts.reach is Reach.CLUSTER:
        hint = "make a new archive with `pumphouse archive init`, and a new target from it"
    elif event.divided:
        hint = "leave all of its tables out, or none"
    else:
        hint = "a newer release may know it"
    raise UnknownDdl(
        f"{event.problem}. What lies before {show(event.commit_ts)} can be loaded and restored",
        hint=hint,
        job_id=event.job.id,
        type=event.job.type,
        commit_ts=event.commit_ts,
    )


def kept_name(keep_schema: str, table_id: int) -> tuple[str, str]:
    """Where a dropped table waits for its recovery."""
    return keep_schema, f"kept_{table_id}"


def _is_system(event: DdlEvent) -> bool:
    if event.changes:
        return all(is_system(change.known.db) for change in event.changes)
    info = event.db_after or event.db_before
    return info is not None and is_system(info.name)


def _there(version: TableVersion | None, out: _Rendering) -> bool:
    """Whether the target has this table: temporary tables have no rows in binlogs, and MySQL has no sequences."""
    if version is None:
        return False
    if int(version.table.raw.get("temp_table_type") or 0):
        out.notes.append(f"{qualified(*version.name)} is a temporary table: left out")
        return False
    if version.table.is_sequence and out.dialect is Dialect.MYSQL:
        out.notes.append(f"{qualified(*version.name)} is a sequence, which MySQL has not: left out")
        return False
    return True


def _changes(out: _Rendering) -> Iterator[Change]:
    return (c for c in out.event.changes if not is_system(c.known.db) and _there(c.known, out))


def _both(change: Change, out: _Rendering) -> tuple[TableVersion, TableVersion]:
    if change.before is None or change.after is None:
        job = out.event.job
        raise SchemaError(
            f"DDL job {job.id} changes {job.schema_name}.{job.table_name}, whose earlier shape is not in the archive",
            job_id=job.id,
        )
    return change.before, change.after


# -- statements, by form


def _create(out: _Rendering) -> None:
    for change in _changes(out):
        if change.after is None:
            raise SchemaError(f"DDL job {out.event.job.id} creates nothing", job_id=out.event.job.id)
        _create_one(out, change.after, repeatable=out.repeatable)


def _create_one(out: _Rendering, version: TableVersion, *, repeatable: bool = False) -> None:
    sql = create_object(version.db, version.table, out.dialect, bare=out.bare)
    out.notes += left_out(version.table, out.dialect, bare=out.bare)
    out.run(sql, version.name, repeatable=repeatable)
    for key in add_foreign_keys(version.db, version.table, out.dialect):
        out.run(key, version.name, optional=True)


def _drop(out: _Rendering) -> None:
    for change in _changes(out):
        if change.before is not None:
            _drop_one(out, change.before)


def _drop_one(out: _Rendering, version: TableVersion) -> None:
    if _waits(out, version):
        _keep(out, version)
    else:
        _drop_now(out, version, repeatable=out.repeatable)


def _drop_now(out: _Rendering, version: TableVersion, *, repeatable: bool = True) -> None:
    kind = "VIEW" if version.table.is_view else "SEQUENCE" if version.table.is_sequence else "TABLE"
    sql = f"DROP {kind} IF EXISTS {qualified(*version.name)}"
    out.run(sql, version.name, repeatable=repeatable, gone=(version.name,))


def _waits(out: _Rendering, version: TableVersion) -> bool:
    """Whether its rows come back. A view has none and is made again: MariaDB moves none between databases."""
    return version.table.id in out.event.kept and not version.table.is_view and _there(version, out)


def _keep(out: _Rendering, version: TableVersion) -> None:
    """The rows come back later and no binlog will bring them: the table waits aside."""
    kept = kept_name(out.keep_schema, version.table.id)
    # The table is here, so what is called so is left over: of a resync that was killed, of a table that was parked.
    _drop_now(out, replace(version, db=kept[0], table=replace(version.table, name=kept[1])))
    _rename_one(out, version.name, kept)


def _recover_one(out: _Rendering, version: TableVersion) -> None:
    kept = kept_name(out.keep_schema, version.table.id)
    sql = f"RENAME TABLE {qualified(*kept)} TO {qualified(*version.name)}"
    out.run(sql, kept, version.name, gone=(kept,), needs=kept)


def _recover(out: _Rendering) -> None:
    found = [change.after for change in _changes(out) if change.after is not None]
    # Views last: they are of tables.
    for version in sorted(found, key=lambda each: each.table.is_view):
        if version.table.is_view:
            _create_one(out, version, repeatable=True)
        else:
            _recover_one(out, version)


def _truncate(out: _Rendering) -> None:
    for change in _changes(out):
        before, after = change.before, change.after
        if before is not None and after is not None and before.table.id in out.event.kept:
            _keep(out, before)
            _create_one(out, after)
        elif after is not None:
            out.run(f"TRUNCATE TABLE {qualified(*after.name)}", after.name, repeatable=out.repeatable)


def _rename(out: _Rendering) -> None:
    """Renames one by one, each table once from its first name to its last; a circle goes through a reserved name."""
    names: dict[int, tuple[tuple[str, str], tuple[str, str]]] = {}
    for change in _changes(out):
        before, after = _both(change, out)
        first = names.get(after.table.id, (before.name, before.name))[0]
        names[after.table.id] = (first, after.name)
    waiting = {table_id: pair for table_id, pair in names.items() if pair[0] != pair[1]}
    while waiting:
        taken = {_folded(old) for old, _ in waiting.values()}
        free = [
            table_id
            for table_id, (old, new) in waiting.items()
            if _folded(new) not in taken or _folded(new) == _folded(old)
        ]
        if free:
            for table_id in free:
                _rename_one(out, *waiting.pop(table_id))
        else:
            table_id = min(waiting)
            old, new = waiting[table_id]
            aside = (old[0], f"pumphouse_rename_{table_id}")
            _rename_one(out, old, aside)
            waiting[table_id] = (aside, new)


def _rename_one(out: _Rendering, old: tuple[str, str], new: tuple[str, str]) -> None:
    # InnoDB renames what is called OLD_ibfk_N with the table, see `foreign_keys`.
    out.run(f"RENAME TABLE {qualified(*old)} TO {qualified(*new)}", old, new, gone=(old,))


def _folded(name: tuple[str, str]) -> tuple[str, str]:
    return name[0].lower(), name[1].lower()


def _alter(out: _Rendering) -> None:
    for change in _changes(out):
        before, after = _both(change, out)
        if after.table.is_view:
            _create_one(out, after, repeatable=True)
            continue
        computes = any(column.generated for column in before.table.columns)
        clauses = alter_clauses(
            out.event.job, after.db, before.table, after.table, out.dialect, strict=_strict(out.event),
            there=out.there(before.name) if computes else None, bare=out.bare,
        )  # fmt: skip
        begin = len(out.statements)
        for key in clauses.unbound:
            out.run(f"ALTER TABLE {qualified(*before.name)} {key}", before.name, optional=True)
        _fill(out, before, clauses)
        zone = _time_zone(out.event) if clauses.zoned else ""
        if zone:
            _alter_one(out, before.name, clauses.zoned, time_zone=zone)
        _alter_one(out, after.name, clauses.first, ends=clauses.partitions)
        _alter_one(out, after.name, clauses.then)
        if clauses.doubts:
            if len(out.statements) == begin:  # nothing changes there but values: doubts are a statement's
                out.run(f"ALTER TABLE {qualified(*after.name)} FORCE", after.name, repeatable=True)
            out.statements[begin] = replace(out.statements[begin], doubts=clauses.doubts)
        for key in clauses.bound:
            out.run(f"ALTER TABLE {qualified(*after.name)} {key}", after.name, optional=True)
        before_out = left_out(before.table, out.dialect, bare=out.bare)
        out.notes += [n for n in left_out(after.table, out.dialect, bare=out.bare) if n not in before_out]
        _rebase(out, before.table, after)


def _alter_one(
    out: _Rendering, name: tuple[str, str], clauses: tuple[str, ...], *, ends: str = "", time_zone: str = ""
) -> None:
    """One ALTER TABLE. On a TiDB one for each clause: there no two of a statement may be about one column."""
    parts = [(clause,) for clause in clauses] if out.dialect is Dialect.TIDB else [clauses]
    for part in filter(None, parts):
        out.run(f"ALTER TABLE {qualified(*name)} {', '.join(part)} {ends}".rstrip(), name, time_zone=time_zone)


def _fill(out: _Rendering, before: TableVersion, clauses: AlterClauses) -> None:
    """Columns of a new type beside the old ones, with TiDB's values; each statement may be run again."""
    if not clauses.fills:
        return
    table = qualified(*before.name)
    out.run(f"ALTER TABLE {table} {', '.join(f'ADD COLUMN {fill.column}' for fill in clauses.fills)}", before.name)
    for fill in clauses.fills:
        zone = _time_zone(out.event) if fill.zoned else ""
        for step in fill.steps:
            sql = f"UPDATE {table} SET {', '.join((step, *clauses.stamps))}"  # noqa: S608 - names are quoted
            out.run(sql, before.name, repeatable=True, time_zone=zone)


def _rebase(out: _Rendering, before: TableInfo, after: TableVersion) -> None:
    """The base moves with every insert; only a DDL that sets it is news."""
    start = int(after.table.raw.get("auto_inc_id") or 0)
    if out.event.action not in {Action.REBASE_AUTO_ID, Action.MULTI_SCHEMA_CHANGE} or start <= 1:
        return
    if start != int(before.raw.get("auto_inc_id") or 0) and auto_increment_column(after.table) is not None:
        out.run(f"ALTER TABLE {qualified(*after.name)} AUTO_INCREMENT={start}", after.name, repeatable=True)


def _alter_sequence(out: _Rendering) -> None:
    for change in _changes(out):
        _, after = _both(change, out)
        restart = restart_of(out.event.job, after.table)
        begin = "" if restart is None else f" RESTART WITH {restart}"
        sql = f"ALTER SEQUENCE {qualified(*after.name)} {sequence_options(after.table)}{begin}"
        out.run(sql, after.name, repeatable=out.repeatable)


def _add_partition(out: _Rendering) -> None:
    for change in _changes(out):
        before, after = _both(change, out)
        if is_hashed(after.table) and out.dialect is not Dialect.TIDB:
            _repartition_one(out, after)
            continue
        _, fresh = partition_names(before.table, after.table)
        added = ",".join(partition_definition(d) for d in fresh)
        out.run(f"ALTER TABLE {qualified(*after.name)} ADD PARTITION ({added})", after.name)


def _drop_partition(out: _Rendering) -> None:
    for change in _changes(out):
        before, after = _both(change, out)
        gone, _ = partition_names(before.table, after.table)
        out.run(f"ALTER TABLE {qualified(*after.name)} DROP PARTITION {column_list(gone)}", after.name)


def _truncate_partition(out: _Rendering) -> None:
    for change in _changes(out):
        before, after = _both(change, out)
        gone, _ = partition_names(before.table, after.table)
        rows = hash_condition(before.table, gone) if out.dialect is not Dialect.TIDB else ""
        if rows and spread_otherwise(before.table):
            sql = f"DELETE FROM {qualified(*after.name)} WHERE {rows}"  # noqa: S608
        else:
            _require_same_rows(out, before, gone)
            sql = f"ALTER TABLE {qualified(*after.name)} TRUNCATE PARTITION {column_list(gone)}"
        out.run(sql, after.name, repeatable=out.repeatable)
        out.notes.append(
            f"{qualified(*after.name)}: TiDB drops what transactions that were open at TRUNCATE PARTITION commit into"
            " the partition; the target keeps it (docs/interop.md)"
        )


def _reorganize_partition(out: _Rendering) -> None:
    for change in _changes(out):
        before, after = _both(change, out)
        if is_hashed(after.table) and out.dialect is Dialect.TIDB:
            _resize(out, before, after)
            continue
        if is_hashed(after.table):
            # ADD and COALESCE PARTITION of such a table move rows between all of its partitions.
            _repartition_one(out, after)
            continue
        gone, fresh = partition_names(before.table, after.table)
        into = ",".join(partition_definition(d) for d in fresh)
        sql = f"ALTER TABLE {qualified(*after.name)} REORGANIZE PARTITION {column_list(gone)} INTO ({into})"
        out.run(sql, after.name)


def _repartition(out: _Rendering) -> None:
    """PARTITION BY and REMOVE PARTITIONING; the table keeps its rows."""
    for change in _changes(out):
        before, after = _both(change, out)
        if partition_sql(after.table):
            _repartition_one(out, after)
        elif partition_sql(before.table):
            out.run(f"ALTER TABLE {qualified(*after.name)} REMOVE PARTITIONING", after.name)


def _repartition_one(out: _Rendering, after: TableVersion) -> None:
    out.run(f"ALTER TABLE {qualified(*after.name)} {partition_sql(after.table)}", after.name)


def _resize(out: _Rendering, before: TableVersion, after: TableVersion) -> None:
    """ADD or COALESCE PARTITION of HASH and KEY, as a TiDB has them."""
    more = len(partition_definitions(after.table)) - len(partition_definitions(before.table))
    added = ",".join(partition_definition(d) for d in partition_definitions(after.table)[-more:])
    clause = f"ADD PARTITION ({added})" if more > 0 else f"COALESCE PARTITION {-more}"
    if more:
        out.run(f"ALTER TABLE {qualified(*after.name)} {clause}", after.name)


def _require_same_rows(out: _Rendering, before: TableVersion, partitions: list[str]) -> None:
    """SchemaError where no server but a TiDB has the rows in a partition that TiDB has there."""
    if out.dialect is Dialect.TIDB or len(partitions) == len(partition_definitions(before.table)):
        return
    why = spread_otherwise(before.table)
    if why:
        job = out.event.job
        raise SchemaError(
            f"DDL job {job.id} takes the rows of partition {', '.join(partitions)} from {'.'.join(before.name)}, which "
            f"is partitioned {why}: {out.dialect} has other rows in it than TiDB",
            hint="replace it by a DELETE of those rows",
            job_id=job.id,
        )


def _exchange_partition(out: _Rendering) -> None:
    partitioned, plain = out.event.changes
    before, after = _both(partitioned, out)
    table, _ = _both(plain, out)
    gone, _ = partition_names(before.table, after.table)
    _require_same_rows(out, before, gone)
    sql = (
        f"ALTER TABLE {qualified(*after.name)} EXCHANGE PARTITION {quote(gone[0])} WITH TABLE {qualified(*table.name)}"
    )
    if out.dialect is Dialect.TIDB:
        sql += " WITHOUT VALIDATION"  # the source has looked, or did without
    out.run(sql, after.name, table.name, engine_only=True)


def _create_schema(out: _Rendering) -> None:
    info = out.event.db_after
    if info is not None:
        out.run(create_database(info, out.dialect), (info.name, ""), repeatable=out.repeatable)
    _recover(out)


def _alter_schema(out: _Rendering) -> None:
    info = out.event.db_after
    if info is not None:
        charset = charset_sql(out.dialect, info.charset, info.collate)
        out.run(f"ALTER DATABASE {quote(info.name)} {charset}", (info.name, ""), repeatable=out.repeatable)


def _drop_schema(out: _Rendering) -> None:
    info = out.event.db_before
    if info is None:
        return
    if info.name.lower() == out.keep_schema.lower():
        raise SchemaError(
            f"the source drops its database {info.name}, which on the target holds Pumphouse's own tables",
            hint=("set schema_name in ", advice.Section(), " to a name that the source does not use"),
        )
    for before in (change.before for change in out.event.changes if change.before is not None):
        if _waits(out, before):
            _keep(out, before)
        elif before.db.lower() != info.name.lower() and _there(before, out):
            _drop_now(out, before)  # a rule has it in another database there
    name = (info.name, "")
    out.run(f"DROP DATABASE IF EXISTS {quote(info.name)}", name, repeatable=out.repeatable, gone=(name,))


_FORMS: Mapping[Form, Callable[[_Rendering], None]] = {
    Form.CREATE_DATABASE: _create_schema,
    Form.ALTER_DATABASE: _alter_schema,
    Form.DROP_DATABASE: _drop_schema,
    Form.CREATE: _create,
    Form.DROP: _drop,
    Form.RECOVER: _recover,
    Form.TRUNCATE: _truncate,
    Form.RENAME: _rename,
    Form.ALTER: _alter,
    Form.ALTER_SEQUENCE: _alter_sequence,
    Form.ADD_PARTITION: _add_partition,
    Form.DROP_PARTITION: _drop_partition,
    Form.TRUNCATE_PARTITION: _truncate_partition,
    Form.REORGANIZE_PARTITION: _reorganize_partition,
    Form.EXCHANGE_PARTITION: _exchange_partition,
    Form.REPARTITION: _repartition,
}
