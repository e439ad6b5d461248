"""Values of sequences. TiDB logs one whenever a server takes a new range: ``select setval(`db`.`name`, END)``.

It is no DDL and has no job. What it says is that every value up to END may have been handed out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pumphouse.model.table import Job, TableInfo
from pumphouse.model.tso import Tso
from pumphouse.schema.actions import Action
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import qualified
from pumphouse.schema.table_sql import sequence_raw
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TableVersion

_NAME = r'(?:`((?:[^`]|``)*)`|"((?:[^"]|"")*)")'
_SETVAL = re.compile(rf"\s*select\s+setval\s*\(\s*{_NAME}\s*\.\s*{_NAME}\s*,\s*(-?\d+)\s*\)\s*;?\s*", re.IGNORECASE)
_RESTART = re.compile(r"\brestart\b(?:\s*(?:with|=)?\s*([+-]?\s*\d+))?", re.IGNORECASE)
# What no option of a statement is written in: quoted names, and texts and comments.
_QUOTED = re.compile(
    r"""(`(?:[^`]|``)*`|"(?:[^"\\]|\\.|"")*")|'(?:[^'\\]|\\.|'')*'|/\*.*?\*/|--\s[^\n]*|\#[^\n]*""", re.DOTALL
)
_ALTERS = re.compile(
    r"\s*alter\s+sequence\s+(?:if\s+exists\s+)?(?:``|[^\s.`]+)(?:\s*\.\s*(?:``|[^\s.`]+))?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVal:
    """Every value of a sequence up to ``value`` (in its direction) may be in use from then on."""

    commit_ts: Tso
    db: str
    name: str
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceState:
    """Where a sequence stands: as `version` names it, NEXTVAL gives ``next`` (beyond its end: it is exhausted)."""

    version: TableVersion
    next: int

    def statement(self, dialect: Dialect) -> str:
        """Bring a sequence there. More than once is no error; never back, unless it cycles."""
        name, options = qualified(*self.version.name), sequence_raw(self.version.table)
        low, high, step = (int(options[key]) for key in ("min_value", "max_value", "increment"))
        end = high if step > 0 else low
        beyond = self.next > high or self.next < low
        if options["cycle"]:
            return f"ALTER SEQUENCE {name} RESTART WITH {(low if step > 0 else high) if beyond else self.next}"
        if dialect is Dialect.TIDB:
            # What it is told there counts as given out.
            return f"SELECT SETVAL({name}, {end if beyond else self.next - step})"
        return f"SELECT SETVAL({name}, {end}, 1)" if beyond else f"SELECT SETVAL({name}, {self.next}, 0)"


def parse_setval(commit_ts: Tso, query: bytes) -> SetVal | None:
    """Read the statement; None when it is something else."""
    found = _SETVAL.fullmatch(query.decode("utf-8", "replace"))
    if found is None:
        return None
    db, db2, name, name2, value = found.groups()
    return SetVal(commit_ts=commit_ts, db=_plain(db, db2), name=_plain(name, name2), value=int(value))


def _plain(ticked: str | None, doubled: str | None) -> str:
    return ticked.replace("``", "`") if ticked is not None else (doubled or "").replace('""', '"')


def restart_of(job: Job, info: TableInfo) -> int | None:
    """Value that an ALTER SEQUENCE begins anew with; the job says it in its statement alone."""
    said = _QUOTED.sub(lambda each: "``" if each[1] else " ", job.query)
    found = _RESTART.search(_ALTERS.sub("", said, count=1))
    if found is None:
        return None
    return int("".join(found[1].split()) if found[1] else sequence_raw(info)["start"])


def sequence_states(timeline: Timeline, said: Iterable[SetVal], after: Tso, upto: Tso) -> Iterator[SequenceState]:
    """Where the sequences that there are at ``upto`` stand, of those that moved in (after, upto]."""
    moved = [each for each in said if after < each.commit_ts <= upto]
    if not moved:
        return
    begun = {
        change.after.table.id: event.commit_ts
        for event in timeline.ddls(after, upto)
        for change in event.changes
        if change.after is not None
        and event.action is Action.ALTER_SEQUENCE
        and restart_of(event.job, change.after.table) is not None
    }
    for version in timeline.tables_at(upto):
        if not version.table.is_sequence:
            continue
        values = [
            each.value
            for each in moved
            if each.commit_ts > begun.get(version.table.id, Tso(0)) and _names(timeline, version.table.id, each)
        ]
        if values:
            yield SequenceState(version=version, next=_next(version.table, values))


def _names(timeline: Timeline, table_id: int, said: SetVal) -> bool:
    """Whether it is the sequence of that id which had that name then."""
    before = [v for v in timeline.versions[table_id] if v.commit_ts <= said.commit_ts]
    if not before or before[-1].dropped:
        return False
    return (before[-1].db.lower(), before[-1].table.name.lower()) == (said.db.lower(), said.name.lower())


def _next(info: TableInfo, values: list[int]) -> int:
    """The first value of the progression behind what was handed out.

    Servers take ranges side by side, so what is logged last need not be the farthest; of one that cycles it counts.
    """
    numbers = sequence_raw(info)
    start, step = int(numbers["start"]), int(numbers["increment"])
    farthest = values[-1] if numbers["cycle"] else max(values) if step > 0 else min(values)
    return start + ((farthest - start) // step + 1) * step
