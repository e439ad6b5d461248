"""A restore's plan as people read it: whatever decides about a yes stands in it, on a terminal and in Markdown."""

import dataclasses

import pytest

from pumphouse.archive.genesis import Genesis
from pumphouse.archive.losses import Losses
from pumphouse.archive.manifest import DdlEntry, Declaration, Manifest
from pumphouse.archive.objects import SourceObjects
from pumphouse.archive.range import Range
from pumphouse.archive.view import ArchiveView, first_base
from pumphouse.archive.windows import Windows
from pumphouse.loader.report import LoadReport
from pumphouse.model.tso import Tso, compose, show
from pumphouse.restore.check import Dropped, TargetCheck
from pumphouse.restore.plan import RestorePlan, TableSize, plan_restore
from pumphouse.restore.report import ProofPlan, RestoreReport
from pumphouse.restore.told import Fact, as_markdown, as_text, plan_told, question
from pumphouse.schema.route import Routes
from pumphouse.schema.timeline import Timeline
from pumphouse.settings import LoadSettings

pytestmark = pytest.mark.row("R2")
START = compose(1_764_000_000_000)
END = compose(1_764_000_060_000)


def plan() -> RestorePlan:
    ddl = DdlEntry(key="d", sha256="", bytes=0, jobs=0)
    genesis = Genesis(
        cluster_id=1, archive_id="main", attempt="a", ts=START, schema_version=1, pumps=(), ddl=ddl, base=()
    )
    window = Manifest(
        cluster_id=1, attempt="a", start=START, planned_end=END, end=END, fence=Tso(END + 1), previous="", pumps=(),
        segments=(),
    )  # fmt: skip
    view = ArchiveView(
        genesis=genesis, kept=Range.whole(genesis), windows=Windows.of([window]), timeline=Timeline.empty()
    )
    view = dataclasses.replace(view, bases=first_base(view))
    return plan_restore(view, None, task="main", settings=LoadSettings())


def report(**more: object) -> RestoreReport:
    """Of a server that holds data, by rules, with a proof that somebody asked for."""
    lost = tuple(
        Declaration(node_id=f"pump-{n}", incarnation="i", from_ts=START, to_ts=END, reason="its disk died", who="ops")
        for n in range(30)
    )
    planned = dataclasses.replace(
        plan(),
        databases=("shop", *(f"db{n}" for n in range(40))),
        made=tuple(f"copy{n}" for n in range(41)),
        routes=Routes(databases=(("shop", "copy0"), *((f"db{n}", f"copy{n + 1}") for n in range(40)))),
        sizes=tuple(TableSize(table=f"shop.t{n}_*", rows=n, changes=0) for n in range(30)),
        losses=Losses(declared=lost),
        idle=("the rule for DDL job 7 has no effect",),
    )
    check = TargetCheck(
        server="db:3307",
        version="11.8.2-MariaDB",
        holds=(Dropped(database="shop", tables=12, rows=3400),),
        loads=("the state of the load main, ready at 5 of cluster 1",),
        notes=("the source: no settings name it",),
        beside=("of_an_older_rule",),
    )
    load = LoadReport(
        target="root@db:3307", task="main", from_ts=START, to_ts=END, notes=["a rule of no table; is it misspelt?"],
        steps=[{"step": "build", "what": "drop, and build", "state": "to do"}],
    )  # fmt: skip
    proof = ProofPlan(at=END, tables={"shop.t1": 5000}, unproven={"shop.v": "it is a view"}, estimate_s=7.0)
    found = RestoreReport(
        plan=planned, target="root@db:3307", dry_run=True, check=check, load=load, lacks="no dump kept it",
        estimate_s=90.0, proving=proof,
    )  # fmt: skip
    return dataclasses.replace(found, **more)  # type: ignore[arg-type]


def test_everything_that_a_yes_depends_on_is_told() -> None:
    told = list(as_text(plan_told(report(), latest=True)))
    facts = {line[:10].strip(): line[10:] for line in told if not line.startswith(" ")}
    assert facts["target"] == "root@db:3307"
    assert facts["moment"] == f"{show(END)}, the end of the archive"
    assert facts["drops"].endswith(", db39, of_an_older_rule; it holds shop (12 tables, about 3,400 rows)")
    assert facts["drops"].count(",") == 43, "every one of them"
    assert facts["creates"] == ", ".join(f"copy{n}" for n in range(41))
    assert facts["time"] == "about 90 s, by the rate of the last drills"
    assert facts["lacks"] == "no dump kept it"
    assert facts["by rules"] == "0 left out, 41 called otherwise"
    assert facts["proof"] == f"as of {show(END)}: 1 tables, 5,000 bytes, about 7 s by the last drills"
    for line in (
        "  ! not compared with the source: no settings name it",
        "  ! forgets the state of the load main, ready at 5 of cluster 1",
        "  ! shop is called copy0 there",
        "  ! db39 is called copy40 there",
        "  ! the rule for DDL job 7 has no effect",
        "  ! a rule of no table; is it misspelt?",
        "  ! shop.v would be unproven: it is a view",
        "  drop, and build",
        "  and 10 more",
    ):
        assert line in told
    assert sum(line.startswith("  ! declared lost: Pump pump-") for line in told) == 30
    assert sum(line.startswith("  shop.t") for line in told) == 21, "20 tables, and what the proof would read"
    assert len(list(as_text(plan_told(report(), verbose=True)))) > len(told) + 9


def test_markdown_says_the_same_and_no_name_is_markup() -> None:
    text = as_markdown(plan_told(report(), latest=True))
    assert text.startswith("- **target** root@db:3307\n")
    assert "\n  - **\\! not compared with the source: no settings name it**\n" in text
    assert "\n  - shop.t0\\_\\*  0 rows of the dump, 0 changes since\n" in text
    assert text.count("\n") + 1 == len(list(as_text(plan_told(report(), latest=True))))


def test_no_line_begins_a_list_or_has_an_entity_or_a_line_of_its_own() -> None:
    facts = [Fact(name="x", value="a\r- b &lt;", below=("- c", "1. d"))]
    assert as_markdown(facts) == "- **x** a - b \\&lt;\n  - \\- c\n  - 1\\. d"


def test_the_objects_that_no_restore_builds_are_counted_with_the_way_to_their_text() -> None:
    told = "\n".join(as_text(plan_told(report(lacks=SourceObjects(cluster_id=1, begun=START, objects=(), unseen=())))))
    assert "lacks     nothing that the dump saw; as text: `pumphouse restore --objects FILE`" in told


def test_the_question_tells_restores_apart() -> None:
    assert question(report(), "pumphouse_restore") == "Restore to 2025-11-24 16:01:00Z -> pumphouse_restore"
