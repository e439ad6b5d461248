"""Every type of DDL job has its facts, and one without any is refused by name, everywhere alike."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from pumphouse.archive.schema_parts import SchemaParts
from pumphouse.archive.schema_stages import CannotTell
from pumphouse.archive.schema_store import rebuild, whole_fold
from pumphouse.archive.view import read_view
from pumphouse.errors import UnknownDdl
from pumphouse.loader.work import works_between
from pumphouse.schema import actions
from pumphouse.schema.actions import Action, DdlType, Facts, Form, Reach, action_of
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.related import is_whole, touched
from pumphouse.schema.render import render
from pumphouse.settings import LoadSettings
from tests.support.madearchive import MadeSource
from tests.support.randomhistory import RandomHistory
from tests.support.schemajobs import int_col
from tests.support.serialfold import serial_fold

_GROW = 212


def grown(tmp_path: Path, action: int) -> MadeSource:
    """An archive of two tables, of which a job of that type gave one a column."""
    made = MadeSource(tmp_path / "archive")
    for table in ("t", "other"):
        made.create_table(table, [int_col("id", flag=4099, id=1)])
    made.genesis()
    raw = copy.deepcopy(made.tables["t"].info.raw)
    raw["cols"].append(int_col("a", id=2) | {"offset": 1})
    made.alter("t", action, raw)
    made.cut()
    return made


def stored_of(made: MadeSource) -> SchemaParts:
    key = rebuild(made.archive).key
    return SchemaParts.from_json(key, made.archive.store.get(key))


@pytest.mark.row("S2")
def test_every_type_that_tidb_has_is_in_the_table_and_in_the_docs() -> None:
    text = (Path(__file__).parents[3] / "docs" / "ddl.md").read_text()
    rows = {int(number): says for number, says in re.findall(r"^\| (\d+) \|[^|]+\| (.+) \|$", text, re.MULTILINE)}
    numbers = list(rows)
    assert numbers == [*range(46), 47, *range(48, 66), *range(67, 73)]
    assert [-1, *numbers] == sorted(Action)
    assert [action_of(each) for each in numbers] == numbers
    for number, says in rows.items():
        facts = action_of(number).facts
        assert says.startswith("nothing") == (Dialect.MARIADB not in facts.on), says
        assert facts.form is Form.ALTER or not says.startswith("by comparison"), says


@pytest.mark.row("S2")
@pytest.mark.parametrize("left_out", Facts._fields)
def test_an_entry_that_leaves_out_a_fact_cannot_be_made(left_out: str) -> None:
    facts = Action.ADD_COLUMN.facts._asdict()
    del facts[left_out]
    with pytest.raises(TypeError, match=left_out):
        Facts(**facts)


@pytest.mark.row("S2")
def test_a_type_without_facts_cannot_be_made() -> None:
    class Whole(DdlType):
        GROW_TABLE = _GROW, Action.ADD_COLUMN.facts

    assert Whole.GROW_TABLE.facts is Action.ADD_COLUMN.facts
    with pytest.raises(TypeError, match="facts"):

        class Bare(DdlType):
            GROW_TABLE = _GROW


@pytest.mark.row("S2")
@pytest.mark.parametrize("action", [_GROW, Action.ADD_COLUMN])
def test_a_type_without_an_entry_is_refused_by_name_everywhere_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: int
) -> None:
    monkeypatch.delitem(actions._TYPES, action, raising=False)
    made = grown(tmp_path, action)
    job = made.jobs[-1].job
    assert touched(job).reach is Reach.UNTOLD
    named = f"DDL job {job.id} has the type {int(action)}, which this release does not know"
    timeline = made.timeline()
    assert timeline.events[-1].problem.startswith(named)
    assert is_whole(timeline)
    whole = whole_fold(made.archive, few=0)
    assert whole is not None
    with pytest.raises(CannotTell, match=f"DDL job {job.id} may touch tables"):
        serial_fold(whole)
    assert stored_of(made).whole
    for dialect in Dialect:
        with pytest.raises(UnknownDdl, match=named):
            render(timeline.events[-1], dialect)
    view = read_view(made.archive)
    with pytest.raises(UnknownDdl, match=named):
        list(works_between(view, view.genesis.ts, view.end, "load", LoadSettings()))


@pytest.mark.row("S2")
def test_a_type_is_known_everywhere_by_its_entry_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow = DdlType("Grow", {"GROW_TABLE": (_GROW, Action.ADD_COLUMN.facts)}).GROW_TABLE
    monkeypatch.setitem(actions._TYPES, _GROW, grow)
    made = grown(tmp_path, _GROW)
    timeline = made.timeline()
    assert [event.problem for event in timeline.events] == [""] * len(timeline.events)
    assert not stored_of(made).whole
    (statement,) = render(timeline.events[-1], Dialect.MARIADB)
    assert statement.sql == "ALTER TABLE `d`.`t` ADD COLUMN `a` int(11) NULL DEFAULT NULL"
    view = read_view(made.archive)
    (work,) = works_between(view, view.genesis.ts, view.end, "load", LoadSettings())
    assert [event.action for event in work.events] == [grow]


@pytest.mark.row("S2", "L6")
def test_a_statement_is_repeatable_as_the_facts_of_its_type_say() -> None:
    seen = set()
    for seed in range(12):
        history = RandomHistory(seed)
        history.run(120)
        for event in history.timeline().events:
            plain = not (event.kept or event.returning or event.problem)
            statements = [each for each in render(event, Dialect.MARIADB) if not each.optional] if plain else []
            if len(statements) == 1 and event.facts.form is not Form.ALTER:
                assert statements[0].repeatable == event.facts.repeatable, statements[0].sql
                seen.add(event.action)
    assert len(seen) > 10, seen
