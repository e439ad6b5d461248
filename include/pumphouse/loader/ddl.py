"""DDL on a target: in order, on the connection that owns it, once, also after a crash (row L6).

MySQL's DDL commits by itself, so it cannot be made one with a row that says so. Instead each statement has a row in
the table ``ddl`` of our schema (docs/formats.md):

1. *planned*: all statements of a DDL are written down together, before the first runs. A retry takes those from there
   that were begun, whatever it would render by then; the rest by what it renders, or by a rule, where that goes on.
2. *intent*: with the looks of every object that the statement touches (`pumphouse.loader.looks`), under the exclusive
   fence: no unit of rows is under way, and no earlier owner can follow.
3. the statement; 4. *done*.

A retry that finds an intent looks again. Other looks, and what must be there is there: it ran. The same looks: it did
not, and runs now. On another server than that of the intent (a failover, an upgrade) looks say less; where they cannot
tell, a statement runs again if running twice is the same as once (TRUNCATE), else DdlUncertain asks a human.
A statement that the target refused goes back to planned.
"""

# Names in statements are quoted by pumphouse.schema.ident; values go as parameters.
# ruff: noqa: S608

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from pumphouse.errors import ConversionUnknown, DdlRefused, DdlUncertain, LoadError, SchemaError
from pumphouse.loader.fence import Ownership, check_lock
from pumphouse.loader.looks import Look, Looks, Verdict, settle
from pumphouse.loader.rules import anew_hint, ddl_hint
from pumphouse.loader.state import fenced
from pumphouse.loader.target import NO_SUCH_EXPRESSION, StatementFailed, TargetConnection
from pumphouse.model.tso import show
from pumphouse.mysql import LOOSE_MODE, SQL_MODE
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import qualified, quote
from pumphouse.schema.render import Statement, render
from pumphouse.schema.route import NO_ROUTES, Routes
from pumphouse.schema.versions import DdlEvent

log = structlog.get_logger()


# What a server does with fractions of seconds that do not fit unless it is told: a MariaDB cuts them, a MySQL rounds.
_FRACTIONS = {(Dialect.MARIADB, True): ",TIME_ROUND_FRACTIONAL", (Dialect.MYSQL, False): ",TIME_TRUNCATE_FRACTIONAL"}
# A session leaves its database for another one only: this one every server has, and nothing in it can be changed.
_NOWHERE = "information_schema"


@dataclass(frozen=True, slots=True)
class DdlReport:
    """What one DDL came to. ``skipped``: statements found done, by their row or by looking."""

    statements: tuple[str, ...] = ()
    skipped: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    statement: Statement
    state: str
    looks: list[Look] | None


def forget_ddl(connection: TargetConnection) -> None:
    """Forget every DDL of every task, and the tables kept for a recovery: part of a restore's reset.

    Call it after the fence was raised and before the first change; it drops tables, so it is no transaction.
    """
    schema = connection.settings.schema_name
    kept = connection.query(
        "SELECT table_name FROM information_schema.tables"
        " WHERE table_schema = %s AND table_name REGEXP '^kept_[0-9]+$'",
        (schema,),
    )
    for (name,) in kept:
        connection.execute(f"DROP TABLE IF EXISTS {qualified(schema, str(name))}")
    connection.execute(f"DELETE FROM {connection.table('ddl')}")


def forget_ddl_of(connection: TargetConnection, task: str, commit_ts: Sequence[int]) -> None:
    """Forget DDLs of ranges that are done: a resync runs them again, for its table alone."""
    for ts in commit_ts:
        connection.execute(f"DELETE FROM {connection.table('ddl')} WHERE task = %s AND commit_ts = %s", (task, ts))


class DdlExecutor:
    """Runs DDLs for one task on the connection that holds the target's GET_LOCK. Used by one thread."""

    def __init__(
        self,
        connection: TargetConnection,
        owner: Ownership,
        task: str,
        *,
        routes: Routes = NO_ROUTES,
    ) -> None:
        self._connection, self._routes, self.dialect = connection, routes, connection.dialect
        self._owner = owner
        self._task = task
        self._looks = Looks(connection)

    def execute(self, event: DdlEvent, instead: Sequence[str] | None = None) -> DdlReport:
        """Run one DDL, or what is left of it; nothing when it is done already or concerns nothing on the target.

        Args:
            event: the DDL.
            instead: what a rule says in its place; () = nothing.

        Raises:
            DdlUncertain: an earlier attempt may or may not have run a statement, and looking does not tell.
            UnknownDdl, SchemaError: the DDL cannot be rendered.
            DdlRefused: the target took it for wrong; a retry runs it again.
            StatementFailed: the server is full, read-only, …; a retry looks whether it ran.
        """
        steps, notes = self._settled(event, instead)
        ran: list[str] = []
        try:
            notes += self._carry_out(event, steps, ran)
        except DdlRefused as error:
            if error.facts.get("code") not in NO_SUCH_EXPRESSION:
                raise
            plainer, notes = self._settled(event, instead, bare=True)
            if [step.statement for step in plainer] == [step.statement for step in steps]:
                raise
            steps = plainer
            notes += self._carry_out(event, steps, ran)
        report = DdlReport(tuple(ran), len(steps) - len(ran), notes)
        log.info(
            "ddl_executed", task=self._task, commit_ts=int(event.commit_ts), job_id=event.job.id,
            action=event.action.name, statements=len(ran), skipped=report.skipped, notes=notes,
        )  # fmt: skip
        return report

    def _carry_out(self, event: DdlEvent, steps: list[_Step], ran: list[str]) -> tuple[str, ...]:
        """Bring all steps to done; ``ran`` gets the statements that ran now. Returns notes."""
        notes = []
        for step in steps:
            try:
                if step.state != "done" and self._settle_or_run(event, step):
                    ran.append(step.statement.sql)
            except DdlRefused as error:
                if not step.statement.optional:
                    raise
                self._mark(event, step, "done")
                notes.append(f"left out: {error.message}")
        return tuple(notes)

    def _settled(
        self, event: DdlEvent, instead: Sequence[str] | None, *, bare: bool = False
    ) -> tuple[list[_Step], tuple[str, ...]]:
        """What was begun, and what is to follow; with the renderer's notes. ``bare``: as in `render`."""
        steps = self._steps(event)
        if instead is not None:
            ours = tuple(Statement(sql, (), repeatable=True, db=self._database(event), ruled=True) for sql in instead)
            # What an earlier attempt did stays; what it began and did not do, nobody needs any more.
            kept = [
                step for step in steps if step.state == "done" or (step.statement in ours and step.state == "intent")
            ]
            done = [step.statement for step in kept if step.statement.ruled]
            rest = ours[len(done) :] if tuple(done) == ours[: len(done)] else ours
            return self._follow(event, steps, kept, rest), ()
        if steps and all(step.state == "done" for step in steps):
            return steps, ()
        begun = [step for step in steps if step.state != "planned"]
        try:
            there = self._routes.event(event)
            rendered = render(
                there, self.dialect, keep_schema=self._connection.settings.schema_name,
                there=self._connection.columns_there, bare=bare,
            )  # fmt: skip
        except SchemaError as error:
            error.add_hint(ddl_hint(event.job.id))
            raise
        said = tuple(step.statement for step in begun)
        if said != rendered.statements[: len(said)]:
            return steps, rendered.notes  # it began otherwise, and ends so
        return self._follow(event, steps, begun, rendered.statements[len(said) :]), rendered.notes

    def _database(self, event: DdlEvent) -> str:
        """Where the statements of a rule run: in the DDL's database, where there is one."""
        said = event.job.schema_name
        sides = (side.db for each in event.changes for side in (each.before, each.after) if side is not None)
        names = (*sides, *(info.name for info in (event.db_before, event.db_after) if info is not None))
        # A job says it in lower case, the history as it is.
        db = self._routes.database(next((name for name in names if name.lower() == said.lower()), said))
        return db if db and self._looks.show(db, "") is not None else ""

    def _follow(
        self, event: DdlEvent, steps: list[_Step], kept: list[_Step], rest: tuple[Statement, ...]
    ) -> list[_Step]:
        """Write down that ``rest`` comes behind the steps that are kept."""
        if tuple(step.statement for step in steps) == (*(step.statement for step in kept), *rest):
            return steps
        first = max((step.number for step in kept), default=-1) + 1
        keep = [step.number for step in kept]
        with fenced(self._connection, self._owner):
            for step in steps:
                if step.number not in keep:
                    self._connection.execute(
                        f"DELETE FROM {self._table} WHERE task = %s AND commit_ts = %s AND job_id = %s AND step = %s",
                        (*self._key(event), step.number),
                    )
            for number, statement in enumerate(rest, first):
                self._connection.execute(
                    f"INSERT INTO {self._table} (task, commit_ts, job_id, step, statement, state, fence)"
                    " VALUES (%s, %s, %s, %s, %s, 'planned', %s)",
                    (*self._key(event), number, json.dumps(statement.to_dict()), self._owner.number),
                )
        return [*kept, *(_Step(number, statement, "planned", None) for number, statement in enumerate(rest, first))]

    def has_begun(self, event: DdlEvent) -> bool:
        """Whether an earlier attempt began a statement of the DDL; those of a rule do not count."""
        return any(step.state != "planned" and not step.statement.ruled for step in self._steps(event))

    # -- rows

    @property
    def _table(self) -> str:
        return self._connection.table("ddl")

    def _key(self, event: DdlEvent) -> tuple[Any, ...]:
        return self._task, int(event.commit_ts), event.job.id

    def _steps(self, event: DdlEvent) -> list[_Step]:
        rows = self._connection.query(
            f"SELECT step, statement, state, looks FROM {self._table}"
            " WHERE task = %s AND commit_ts = %s AND job_id = %s ORDER BY step",
            self._key(event),
        )
        return [
            _Step(int(step), Statement.from_dict(json.loads(text)), str(state), json.loads(looks) if looks else None)
            for step, text, state, looks in rows
        ]

    def _mark(self, event: DdlEvent, step: _Step, state: str, looks: list[Look] | None = None) -> None:
        with fenced(self._connection, self._owner):
            # Exclusive: waits for the units of the epoch before, and keeps out an owner that was replaced.
            self._connection.execute(
                f"UPDATE {self._table} SET state = %s, looks = COALESCE(%s, looks), fence = %s"
                " WHERE task = %s AND commit_ts = %s AND job_id = %s AND step = %s",
                (state, None if looks is None else json.dumps(looks), self._owner.number, *self._key(event),
                 step.number),
            )  # fmt: skip

    # -- one statement

    def _settle_or_run(self, event: DdlEvent, step: _Step) -> bool:
        """Bring one statement to done; whether it ran now."""
        check_lock(self._connection)
        if step.state == "intent" and self._ran(event, step):
            self._mark(event, step, "done")
            log.info("ddl_settled", task=self._task, commit_ts=int(event.commit_ts), statement=step.statement.sql)
            return False
        if step.state != "intent":
            self._check_needs(event, step.statement)
            self._check_zone(event, step.statement)
            self._check_values(event, step.statement)
            self._mark(event, step, "intent", self._looks.of(step.statement))
        try:
            self._run(event, step.statement)
        except DdlRefused:
            self._mark(event, step, "planned")
            raise
        self._mark(event, step, "done")
        return True

    def _ran(self, event: DdlEvent, step: _Step) -> bool:
        """Whether the statement of an intent took effect before the crash."""
        self._looks.let_end(step.statement)
        before, now = step.looks or [], self._looks.of(step.statement)
        verdict = settle(step.statement, before, now)
        if verdict is Verdict.UNCERTAIN:
            elsewhere = any(a.get("server") != b["server"] for a, b in zip(before, now, strict=True))
            why = ", and the tables were looked at on another server, or another version of it" if elsewhere else ""
            raise DdlUncertain(
                f"the DDL of {show(event.commit_ts)} may or may not have run on target {self._connection.name} before "
                f"a crash{why}: {step.statement.sql}",
                hint="look at the tables, say what you found, and run this again: "
                f"UPDATE {self._table} SET state = 'done' (it ran) or 'planned' (it did not) WHERE task = "
                f"'{self._task}' AND commit_ts = {event.commit_ts} AND step = {step.number}",
                statement=step.statement.sql,
            )
        return verdict is Verdict.RAN

    def _run(self, event: DdlEvent, statement: Statement) -> None:
        connection = self._connection
        if statement.ruled or statement.db:
            # Without a database of its own it must not run in that of the rule before it.
            connection.execute(f"USE {quote(statement.db or _NOWHERE)}")
        mode = SQL_MODE if statement.strict else LOOSE_MODE
        mode += _FRACTIONS.get((self.dialect, statement.rounds), "")
        connection.execute("SET sql_mode = %s", (mode,))
        try:
            if statement.time_zone:
                connection.execute("SET time_zone = %s", (statement.time_zone,))
            connection.execute(statement.sql)
        except StatementFailed as error:
            # In a database that is nowhere nobody has a right: the statement is what is wrong there.
            if error.condition and (statement.db or not statement.ruled):
                raise
            raise DdlRefused(
                f"target {connection.name} refused the DDL of job {event.job.id} at {show(event.commit_ts)}: "
                f"{error.message}",
                hint=(f"what the source says is: {event.job.query[:500]}; ", *ddl_hint(event.job.id)),
                code=error.code,
                statement=statement.sql,
                job_id=event.job.id,
                **_only_table(event),
            ) from error
        finally:
            connection.execute("SET sql_mode = %s", (SQL_MODE,))
            if statement.time_zone:
                connection.execute("SET time_zone = '+00:00'")

    def _check_needs(self, event: DdlEvent, statement: Statement) -> None:
        if statement.needs is not None and self._looks.show(*statement.needs) is None:
            if event.lost:
                raise LoadError(
                    f"DDL job {event.job.id} at {show(event.commit_ts)} brings back a table that was dropped before "
                    f"this archive began; its rows are nowhere in the archive: {event.job.query}",
                    hint="make a new archive with `pumphouse archive init` under another archive id, and a new target "
                    "from it; this one reaches to the moment before",
                    job_id=event.job.id,
                    statement=statement.sql,
                )
            table = self._source_of(event, statement.objects[1])
            raise LoadError(
                f"DDL job {event.job.id} at {show(event.commit_ts)} brings back the rows of a dropped table, which "
                f"this target no longer has: {event.job.query}",
                hint=(*anew_hint(table), "; or restore the target: a restore knows what comes back, and keeps it"),
                job_id=event.job.id,
                table=table,
                statement=statement.sql,
            )

    def _check_zone(self, event: DdlEvent, statement: Statement) -> None:
        zone = statement.time_zone
        if not zone or zone[0] in "+-" or self.dialect is Dialect.TIDB:
            return
        if self._connection.value("SELECT CONVERT_TZ('2020-01-01 00:00:00', '+00:00', %s)", (zone,)) is None:
            raise LoadError(
                f"DDL job {event.job.id} at {show(event.commit_ts)} turned TIMESTAMP into another type or back, in the "
                f"time zone {zone}, which target {self._connection.name} does not know: {event.job.query}",
                hint="load its time zone tables (mariadb-tzinfo-to-sql /usr/share/zoneinfo | mariadb mysql), then run "
                "again",
                job_id=event.job.id,
                time_zone=zone,
            )

    def _source_of(self, event: DdlEvent, there: tuple[str, str]) -> str:
        """The source's name of a table of a DDL."""
        sides = (side.name for each in event.changes for side in (each.before, each.after) if side is not None)
        return self._routes.source_of(".".join(there), sides)

    def _check_values(self, event: DdlEvent, statement: Statement) -> None:
        found = []
        for what, where in statement.doubts:
            rows = f"SELECT 1 FROM {qualified(*statement.objects[0])} WHERE {where or 'TRUE'} LIMIT 1"
            if self._connection.query(rows):
                found.append(f"{what}{f' where {where}' if where else ''}")
        if not found:
            return
        table = self._source_of(event, statement.objects[0])
        raise ConversionUnknown(
            f"DDL job {event.job.id} at {show(event.commit_ts)} changes the columns of {table}: "
            f"{'; '.join(found)}. What the source makes of the values there is not known here, and target "
            f"{self._connection.name} might make others",
            hint=(*ddl_hint(event.job.id), "; or, in a load, ", *anew_hint(table)),
            job_id=event.job.id,
            table=table,
            statement=statement.sql,
        )


def _only_table(event: DdlEvent) -> dict[str, str]:
    """The fact ``table`` of a DDL that is about one, as the source names it before."""
    names = {".".join((change.before or change.known).name) for change in event.changes}
    return {"table": names.pop()} if len(names) == 1 and event.db_before is None else {}
