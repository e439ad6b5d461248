"""What an error advises: a small closed family of values, and how the command line says each.

A hint is text with such values in it. Who shows an error words them: the command line here, and so do logs and whoever
uses the library; Airflow in `binlog_airflow.advice`, which names its DAGs and connections. So a command that does not
exist, or an option that it does not have, cannot be advised (tests/architecture/test_advice.py).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, assert_never, get_args

# What somebody fills in.
ANY = "…"
# The section of the settings with the target of loads.
TARGET = "target"


class Do(Enum):
    """Commands that take nothing."""

    BEGIN_ARCHIVE = "archive init"
    SNAPSHOT = "snapshot"
    FOLD = "archive base"
    LIST_BASES = "archive ls"
    FIND = "archive find"
    VERIFY = "archive verify"
    VERIFY_NAMES = "archive verify --quick"
    SHOW_EXPIRY = "archive expire --dry-run"
    PROVE = "archive prove"
    SHOW_DDLS = "schema show --history"
    REBUILD_SCHEMA = "schema rebuild"
    START_PUMP = "pump run"
    LIST_PUMPS = "pumps"
    LIST_DRAINERS = "drainers"
    LIST_CONSUMERS = "consumer list"
    COMPARE = "diff"


@dataclass(frozen=True, slots=True)
class Dump:
    """Dump the source; of it ``tables``, where any are named."""

    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportSchema:
    """Write what the DDL history lacks; ``drop``: an object that goes."""

    drop: str = ""


@dataclass(frozen=True, slots=True)
class ShowSchema:
    """List the tables of a moment; '' = the newest."""

    at: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """Load; ``table``: make that one anew; ``equal_at``: the moment at which the target is the source."""

    table: str = ""
    equal_at: str = ""
    target: str = TARGET


@dataclass(frozen=True, slots=True)
class Restore:
    """Restore everything, or ``table``; ``into``: a target, '' = the restore target."""

    to: str = ANY
    into: str = ""
    table: str = ""
    objects: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CompareTable:
    """Compare the database of ``table`` on the two servers."""

    table: str


@dataclass(frozen=True, slots=True)
class DeclareLost:
    """Give up what a Pump no longer has."""

    node: str


@dataclass(frozen=True, slots=True)
class Accept:
    """Take a commit as a Pump has it."""

    node: str
    start_ts: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Say what became of a transaction; ``rolled_back``, where nothing else can be."""

    start_ts: str
    rolled_back: bool = False


@dataclass(frozen=True, slots=True)
class ShowPump:
    """Ask a Pump itself."""

    node: str


@dataclass(frozen=True, slots=True)
class Unregister:
    """Take a consumer out of the cluster."""

    node: str = ANY


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of loads of a target, or of dumps where ``do`` is ''."""

    do: str
    table: str = ""
    database: str = ""
    to: str = ""
    ddl: int = 0
    target: str = TARGET


@dataclass(frozen=True, slots=True)
class Section:
    """The section of the settings that names a server. Airflow has a connection for it."""

    name: str = TARGET


Advice = (
    Do
    | Dump
    | ImportSchema
    | ShowSchema
    | Load
    | Restore
    | CompareTable
    | DeclareLost
    | Accept
    | Settle
    | ShowPump
    | Unregister
    | Rule
    | Section
)
Part = str | Advice
Hint = tuple[Part, ...]
_KINDS = {kind.__name__: kind for kind in get_args(Advice)}


def hint_of(hint: Part | Hint) -> Hint:
    """A hint of one part, or of several; '' says nothing."""
    return tuple(part for part in (hint if isinstance(hint, tuple) else (hint,)) if part != "")


def saying(text: str, *parts: Part | Hint) -> Hint:
    """A hint from its text, in which each ``{}`` stands for a part; what is not ours is a part, too."""
    first, *rest = text.split("{}")
    return hint_of((first, *(each for part, then in zip(parts, rest, strict=True) for each in (*hint_of(part), then))))


def joined(*hints: Part | Hint) -> Hint:
    """Several hints as one; those that say nothing are left out."""
    found: Hint = ()
    for each in filter(None, map(hint_of, hints)):
        apart = bool(found) and not isinstance(found[-1], Rule)  # its lines end with an empty one
        found += ("; ", *each) if apart else each
    return found


def for_target(part: Part, name: str) -> Part:
    """A part of a hint, of the target of that name."""
    if name == TARGET:
        return part
    match part:
        case Load() | Rule():
            return replace(part, target=name) if part.target == TARGET else part
        case Restore(into="target"):
            return replace(part, into=name)
        case Section(name="target"):
            return Section(f"targets.{name}")
    return part


def of_table(part: Part, name: str, called: str) -> Part:
    """A part of a hint that is about the table ``name``, of what that is ``called`` elsewhere."""
    if isinstance(part, Load | Rule | Restore | CompareTable) and part.table == name:
        return replace(part, table=called)
    return part


def command_line(part: Part) -> str:  # noqa: C901, PLR0911, PLR0912 - a case for each kind
    """How the command line says it: a command in backticks, lines of the settings file, or the name of a section."""
    match part:
        case str():
            return part
        case Do():
            return f"`pumphouse {part.value}`"
        case Dump():
            return _call("archive dump", *(("--table", name) for name in part.tables))
        case ImportSchema():
            return _call("schema import", ("--drop", part.drop))
        case ShowSchema():
            return _call("schema show", ("--at", part.at))
        case Load():
            aim = "" if part.target == TARGET else part.target
            return _call("load", ("--target", aim), ("--resync", part.table), ("--equal-at", part.equal_at))
        case Restore():
            options = (("--into", part.into), ("--to", part.to), ("--table", part.table), ("--objects", part.objects))
            return _call("restore", *options, flag="--dry-run" if part.dry_run else "")
        case CompareTable():
            return _call("diff", ("--schema", part.table.partition(".")[0]))
        case DeclareLost():
            return _call("archive declare-lost", ("", part.node), ("--reason", ANY))
        case Accept():
            where = (part.node, str(part.start_ts), str(part.commit_ts))
            return _call("archive accept", *(("", each) for each in where), ("--reason", ANY))
        case Settle():
            flag = "--rolled-back" if part.rolled_back else ""
            return _call("pump settle", ("", part.start_ts), ("--reason", ANY), flag=flag)
        case ShowPump():
            return _call("pump status", ("", part.node))
        case Unregister():
            return _call("consumer unregister", ("", part.node))
        case Rule():
            return _rule(part)
        case Section():
            return f"[{part.name}]"
        case _:
            assert_never(part)


def worded(hint: Hint, door: Callable[[Part], str] = command_line) -> str:
    """A hint as text."""
    return "".join(map(door, hint))


def to_json(hint: Hint) -> list[Any]:
    """A hint on its way to another process."""
    return [part if isinstance(part, str) else {"kind": type(part).__name__, **_fields(part)} for part in hint]


def of_json(found: list[Any]) -> Hint:
    """The hint again."""
    return tuple(each if isinstance(each, str) else _made(**each) for each in found)


def _fields(part: Advice) -> dict[str, Any]:
    return {"value": part.value} if isinstance(part, Do) else asdict(part)


def _made(kind: str, **fields: Any) -> Advice:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    made: Advice = _KINDS[kind](**values)
    return made


def _call(command: str, *options: tuple[str, str], flag: str = "") -> str:
    """A call in backticks; an option without a value is left out."""
    given = [f"{name} {value if value == ANY else shlex.quote(value)}".strip() for name, value in options if value]
    return f"`{' '.join(filter(None, ('pumphouse', command, *given, flag)))}`"


def _rule(rule: Rule) -> str:
    """A rule as lines of a settings file that has none yet, or of its list."""
    rules = "dump.without" if not rule.do else "load.rules" if rule.target == TARGET else f"targets.{rule.target}.rules"
    said = {"do": rule.do, "ddl": rule.ddl, "database": rule.database, "table": rule.table, "to": rule.to}
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in said.items() if value]
    where = "add to pumphouse.toml, or to its list of rules:"
    return "\n".join([where, "", f"[[{rules}]]", *lines, 'why = "…"', "", ""])
