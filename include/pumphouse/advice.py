"""What an error advises where not everybody says it alike: a command, a rule of the settings, a server's section.

A hint is text with such values in it. The command line, logs and who uses the library word them as it is done here;
Airflow names its DAGs and connections (`binlog_airflow.advice`). A command that the command line alone has is text,
in backticks. Click takes each of both (tests/architecture/test_advice.py).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Any

# What somebody fills in.
ANY = "…"
# The target of the run that failed, whatever its name is: `for_target` names it.
THIS = ""
# Sections of the settings. Any other name is one of [targets.NAME].
TARGET, RESTORE_TARGET, SOURCE = "target", "restore_target", "source"
_AIMS = ("--target", "--into")


@dataclass(frozen=True, slots=True)
class Command:
    """A call of ``pumphouse``: its words, and options with their values (None: a flag)."""

    words: str
    options: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the loads of a target, or of dumps where ``do`` is ''."""

    do: str
    table: str = ""
    database: str = ""
    to: str = ""
    ddl: int = 0
    target: str = THIS


@dataclass(frozen=True, slots=True)
class Section:
    """The section of the settings that names a server; Airflow has a connection for it."""

    name: str = THIS


@dataclass(frozen=True, slots=True)
class Option:
    """An option of `restore` that is to be given, and what somebody fills in; Airflow has a field for it."""

    name: str
    value: str


Part = str | Command | Rule | Section | Option
Hint = tuple[Part, ...]
SNAPSHOT = Command("snapshot")
REBUILD_SCHEMA = Command("schema rebuild")
NAME_THERE = Option("--as", "DATABASE.TABLE")
DATABASE_THERE = Option("--into-database", "DATABASE")


def _options(of: dict[str, str]) -> tuple[tuple[str, str | None], ...]:
    return tuple((f"--{name.replace('_', '-')}", value) for name, value in of.items())


def dump(*tables: str) -> Command:
    """Dump the source, or ``tables`` of it."""
    return Command("archive dump", tuple(("--table", table) for table in tables))


def load(**options: str) -> Command:
    """Load this run's target; ``resync``: make that table anew."""
    return Command("load", (("--target", THIS), *_options(options)))


def restore(to: str = ANY, *, dry_run: bool = False, **options: str) -> Command:
    """Restore all, or a ``table``; without ``into``, the restore target."""
    return Command("restore", (*_options(options), ("--to", to), *((("--dry-run", None),) if dry_run else ())))


RESTORE_THIS, EQUAL_AT = restore(into=THIS), load(equal_at=ANY)


def compare(database: str) -> Command:
    """Compare a database on two servers."""
    return Command("diff", (("--schema", database),))


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
    """A part of a hint; what it says of the run's target is of the one of that name, or of that section."""
    alone = name in (RESTORE_TARGET, SOURCE)  # nothing loads it
    if isinstance(part, Section) and part.name == THIS:
        return Section(name if alone or name == TARGET else f"targets.{name}")
    if isinstance(part, Rule) and part.do and part.target == THIS and not alone:
        return replace(part, target=name)
    if isinstance(part, Command) and not (alone and part.words == "load"):
        return _with(part, lambda option, value: name if option in _AIMS and value == THIS else value)
    return part


def of_table(part: Part, name: str, called: str) -> Part:
    """A part of a hint that is about the table ``name``, of what that is ``called`` elsewhere."""
    if isinstance(part, Rule) and part.table == name:
        return replace(part, table=called)
    if isinstance(part, Command):
        now = {("--table", name): called, ("--resync", name): called}
        now["--schema", name.partition(".")[0]] = called.partition(".")[0]
        return _with(part, lambda *each: now.get(each, each[1]))
    return part


def command_line(part: Part) -> str:
    """How the command line says it: a command in backticks, lines of the settings file, or the name of a section."""
    if isinstance(part, Section):
        return f"[{part.name or TARGET}]"
    if isinstance(part, Rule):
        return _rule(part)
    if isinstance(part, Option):
        return f"{part.name} {part.value}"
    return part if isinstance(part, str) else f"`{' '.join(['pumphouse', part.words, *_said(part)])}`"


def worded(hint: Hint, door: Callable[[Part], str] = command_line) -> str:
    """A hint as text."""
    return "".join(map(door, hint))


def to_json(hint: Hint) -> list[Any]:
    """A hint on its way to another process; with each part its text, for one that does not know the part."""
    return [
        part if isinstance(part, str) else [type(part).__name__, command_line(part), *astuple(part)] for part in hint
    ]


def of_json(found: list[Any] | str) -> Hint:
    """The hint again; an older release sends its text."""
    return hint_of(found) if isinstance(found, str) else tuple(map(_part, found))


def _part(found: Any) -> Part:
    match found:
        case ["Command", _, words, options]:
            return Command(words, tuple((name, value) for name, value in options))
        case ["Rule", _, do, table, database, to, ddl, target]:
            return Rule(do, table, database, to, ddl, target)
        case ["Section", _, name]:
            return Section(name)
        case ["Option", _, name, value]:
            return Option(name, value)
        case [_, text, *_]:
            return str(text)
    return str(found)


def _with(command: Command, change: Callable[[str, str | None], str | None]) -> Command:
    return replace(command, options=tuple((option, change(option, value)) for option, value in command.options))


def _said(command: Command) -> list[str]:
    """Options and values of a call; what the command aims at by itself is left out."""
    said = []
    for name, value in command.options:
        if name == "--target" and value in (THIS, TARGET):
            continue
        said.append(name)
        if value is not None:
            said.append(value if value == ANY else shlex.quote(value or TARGET))
    return said


def _rule(rule: Rule) -> str:
    """A rule as lines of a settings file that has none yet, or of its list."""
    loads = "load.rules" if rule.target in (THIS, TARGET) else f"targets.{rule.target}.rules"
    said = {"do": rule.do, "ddl": rule.ddl, "database": rule.database, "table": rule.table, "to": rule.to}
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in said.items() if value]
    where = "add to pumphouse.toml, or to its list of rules:"
    return "\n".join([where, "", f"[[{loads if rule.do else 'dump.without'}]]", *lines, 'why = "…"', "", ""])
