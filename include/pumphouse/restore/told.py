"""The plan of a restore as people read it: one list of facts for the command line, the log and the approval."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pumphouse.clock import duration
from pumphouse.loader.report import LoadReport
from pumphouse.model.tso import show, to_datetime
from pumphouse.restore.parts import PartsPlan
from pumphouse.restore.report import ProofPlan, RestoreReport

# Lines of one kind in a plan that fits a screen; never of what is dropped, lost, left out or warned of.
_MOST = 20
_ALL = 0
_WIDTH = 10
# What Markdown takes for its own, in a table's name too.
_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~!&]|^[-+](?=\s)|(?<=^\d)[.)])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A word, what is to be said of it, and lines that belong below; one that begins with ``!`` is a warning."""

    name: str
    value: str
    below: tuple[str, ...] = ()


def question(report: RestoreReport, target: str) -> str:
    """What somebody says yes to, in a line that tells it from others: ``Restore to 2026-11-26 20:43:00Z -> NAME``."""
    plan = report.plan
    moment = f"{to_datetime(plan.to):%Y-%m-%d %H:%M:%SZ}"
    if isinstance(plan, PartsPlan):
        return f"Restore {plan.said()} as of {moment} -> {target}"
    return f"Restore to {moment} -> {target}"


def plan_told(report: RestoreReport, *, latest: bool = False, verbose: bool = False) -> Iterator[Fact]:
    """What a restore reads, drops, makes and leaves, and what it would take.

    Args:
        report: of a dry run.
        latest: whether somebody asked for the archive's end.
        verbose: every line, with each window and each DDL; DDLs with their text.
    """
    plan, most = report.plan, _ALL if verbose else _MOST
    yield Fact(name="target", value=report.target)
    if report.check is not None:
        notes = tuple(f"! not compared with {note}" for note in report.check.notes)
        yield Fact(name="server", value=report.check.version, below=notes)
    if report.before and report.followed is not None:
        restored = "restored by an earlier run; nothing is dropped (--anew: restore again)"
        yield Fact(name="moment", value=f"{show(plan.to)}: {restored}")
        yield _steps(report.followed, most)
        yield from _proving(report.proving, most)
        return
    source = () if report.source is None else tuple(report.source.lines())
    yield Fact(name="moment", value=f"{show(plan.to)}{', the end of the archive' if latest else ''}", below=source)
    yield from _reads(report, verbose=verbose)
    tables = [f"{size.table}  {size.rows:,} rows of the dump, {size.changes:,} changes since" for size in plan.sizes]
    yield Fact(name="tables", value=f"{plan.tables} then", below=_some(tables, most))
    if report.check is not None and report.check.lacks:
        otherwise = [f"! {each}" for each in report.check.lacks]
        yield Fact(name="but", value=f"{len(otherwise)} things are otherwise there", below=_some(otherwise, most))
    yield from _parts(plan, most) if isinstance(plan, PartsPlan) else _whole(report, most)
    known = plan.left if isinstance(plan, PartsPlan) else ()
    notes = (*(f"! {each}" for each in plan.idle), *(f"! {each}" for each in report.load.notes if each not in known))
    if notes:
        yield Fact(name="notes", value=str(len(notes)), below=notes)
    yield _steps(report.load, most)
    if report.followed is not None:
        yield _steps(report.followed, most)
    yield from _proving(report.proving, most)
    if lost := plan.losses.lines():
        yield Fact(name="losses", value=str(len(lost)), below=tuple(f"! {line}" for line in lost))


def as_text(facts: Iterable[Fact]) -> Iterator[str]:
    """One line a fact, and those below it with an indent."""
    for fact in facts:
        yield f"{fact.name:<{_WIDTH}}{fact.value}"
        yield from (f"  {line}" for line in fact.below)


def as_markdown(facts: Iterable[Fact]) -> str:
    """A list in a list; no name in it can be anything but text."""
    lines = []
    for fact in facts:
        lines.append(f"- **{fact.name}** {_escaped(fact.value)}")
        lines += (f"  - {_warned(_escaped(line))}" for line in fact.below)
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return _MARKS.sub(r"\\\1", re.sub(r"[\r\n]", " ", text))


def _warned(text: str) -> str:
    """A warning stands out."""
    return f"**{text}**" if text.startswith("\\!") else text


def _reads(report: RestoreReport, *, verbose: bool) -> Iterator[Fact]:
    plan = report.plan
    base = f"{show(plan.base)}: {plan.base_tables} tables, {plan.base_rows:,} rows, {plan.base_bytes:,} bytes"
    yield Fact(name="base", value=base)
    cut = ", the last one in part" if any(window.cut for window in plan.windows) else ""
    windows = (
        f"({show(each.start)}, {show(each.end)}]  {each.segments} segments, {each.rows:,} changes"
        f"{'  cut at the moment' if each.cut else ''}"
        for each in plan.windows
    )
    yield Fact(
        name="windows",
        value=f"{len(plan.windows)}{cut}: {plan.rows:,} row changes, {plan.bytes:,} bytes",
        below=tuple(windows) if verbose else (),
    )
    if report.estimate_s is not None:
        yield Fact(name="time", value=f"about {duration(report.estimate_s)}, by the rate of the last drills")
    kinds = Counter(ddl.action for ddl in plan.ddls)
    counted = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    ddls = (f"{show(ddl.commit_ts)}  {ddl.action}  {ddl.query}" for ddl in plan.ddls)
    yield Fact(
        name="DDLs", value=f"{len(plan.ddls)}{': ' * bool(kinds)}{counted}", below=tuple(ddls) if verbose else ()
    )


def _parts(plan: PartsPlan, most: int) -> Iterator[Fact]:
    made = [f"{each.table} as {'.'.join(each.place)}" for each in plan.placed]
    yield Fact(name="creates", value=str(len(plan.placed)), below=_some(made, most))
    if plan.along:
        also = "also tables whose rows came into these, and gives them no place"
        yield Fact(name="reads", value=also, below=_some(plan.along, most))
    yield Fact(name="drops", value="nothing")
    left = tuple(f"! {note}" for note in plan.left)
    yield Fact(name="leaves", value="all that is there, triggers and foreign keys included", below=left)
    yield from _rules(plan.ruled, ())


def _whole(report: RestoreReport, most: int) -> Iterator[Fact]:
    plan = report.plan
    held = "" if report.check is None else f"; it holds {report.check.held() or 'nothing that is dropped'}"
    forgets = () if report.check is None else (f"! forgets {each}" for each in report.check.loads)
    beside = () if report.check is None else report.check.beside
    yield Fact(name="drops", value=f"{_names([*plan.databases, *beside])}{held}", below=tuple(forgets))
    yield Fact(name="creates", value=_names(plan.made))
    yield Fact(name="leaves", value="every other database")
    if isinstance(report.lacks, str):
        yield Fact(name="lacks", value=report.lacks)
    else:
        objects = [f"{each.kind} {each.name}" for each in report.lacks.objects]
        unseen = [f"! not kept: {each}" for each in report.lacks.unseen]
        counts = report.lacks.counts() or "nothing that the dump saw"
        yield Fact(
            name="lacks",
            value=f"{counts}; as text: `pumphouse restore --objects FILE`",
            below=(*_some(objects, most), *unseen),
        )
    yield from _rules(plan.left_out, (*plan.routes.databases, *plan.routes.tables))


def _rules(left_out: Mapping[str, str], routes: Sequence[tuple[str, str]]) -> Iterator[Fact]:
    lines = [f"! {what} ({why})" for what, why in left_out.items()]
    lines += [f"! {name} is called {there} there" for name, there in routes]
    if lines:
        said = f"{len(left_out)} left out" + f", {len(routes)} called otherwise" * bool(routes)
        yield Fact(name="by rules", value=said, below=tuple(lines))


def _steps(load: LoadReport, most: int) -> Fact:
    return Fact(name="steps", value=str(len(load.steps)), below=_some(load.step_lines(), most))


def _proving(proving: ProofPlan | None, most: int) -> Iterator[Fact]:
    if proving is None:
        return
    about = "" if proving.estimate_s is None else f", about {duration(proving.estimate_s)} by the last drills"
    tables = _some([f"{name}  {size:,} bytes" for name, size in proving.tables.items()], most)
    unproven = [f"! {name} would be unproven: {why}" for name, why in proving.unproven.items()]
    said = f"as of {show(proving.at)}: {len(proving.tables)} tables, {proving.bytes:,} bytes{about}"
    yield Fact(name="proof", value=said, below=(*tables, *unproven))


def _some(lines: Sequence[str], most: int) -> tuple[str, ...]:
    """The first of these lines; 0 = all."""
    if not most or len(lines) <= most:
        return tuple(lines)
    return (*lines[:most], f"and {len(lines) - most} more")


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "(no databases)"
