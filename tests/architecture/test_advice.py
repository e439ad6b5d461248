"""What errors advise exists: click takes each command, be it a value or text, and every value arrives as it was."""

from __future__ import annotations

import ast
import pickle
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pumphouse import advice
from pumphouse.advice import ANY, RESTORE_TARGET, TARGET, THIS, Command, Part, Rule, Section, command_line
from pumphouse.errors import LoadError, PumpError, naming
from pumphouse.loader.confirmed import Confirmed, Published, Stand
from pumphouse.model.tso import Tso
from spark_tasks import faults
from tests.architecture.test_docs import WORDS, _filled, _parse

ROOT = Path(__file__).resolve().parents[2]
# Every constructor, with every option that it has.
COMMANDS: tuple[Command, ...] = (
    advice.SNAPSHOT,
    advice.REBUILD_SCHEMA,
    advice.dump(),
    advice.dump("shop.orders", "shop.two words"),
    advice.load(),
    advice.load(resync="shop.orders"),
    advice.load(equal_at="now"),
    advice.restore(),
    advice.restore("latest", into=THIS),
    advice.restore(table="shop.orders", dry_run=True),
    advice.compare("shop"),
)
EACH: tuple[Part, ...] = (
    *COMMANDS,
    *(advice.for_target(each, "eu") for each in COMMANDS),
    Rule("park", table="shop.orders", target="eu"),
    Rule("skip", ddl=7),
    Rule("route", database="shop", to="shop2"),
    Rule("", table="shop.orders"),
    Section(),
    Section(RESTORE_TARGET),
    advice.NAME_THERE,
    advice.DATABASE_THERE,
)
# Where nothing is shown by Airflow.
_COMMAND_LINE = ("advice.py", "capture/", "cli.py", "client/", "commands/", "history/", "settings.py", "status/")


@pytest.mark.row("O3")
@pytest.mark.parametrize("each", [each for each in EACH if isinstance(each, Command)], ids=str)
def test_the_command_line_takes_what_it_is_told_to_type(each: Command) -> None:
    said = command_line(each)
    assert re.fullmatch("`pumphouse [^`]+`", said)
    _parse(shlex.split(said.strip("`").replace(ANY, "x")))


def test_an_option_that_there_is_not_would_be_found() -> None:
    with pytest.raises(click.NoSuchOption):
        _parse(shlex.split(command_line(Command("load", (("--no-such-option", "x"),))).strip("`")))


def _texts(tree: ast.AST) -> Iterator[str]:
    """Texts below a node, each as it is put together; a place of an f-string is a number, or nothing before a word."""
    seen = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            seen |= {id(each) for each in ast.walk(node)}
            text = "".join(each.value if isinstance(each, ast.Constant) else "\0" for each in node.values)
            yield re.sub("\0(?=--)", "", text).replace("\0", "1")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in seen:
            yield node.value


@pytest.mark.row("O3")
def test_the_command_line_takes_every_call_that_a_text_names() -> None:
    wrong, seen = [], 0
    for folder in ("include", "pump_service", "spark_tasks", "plugins"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for text in _texts(ast.parse(path.read_text())):
                for call in re.findall(r"`(pumphouse [a-z][^`]*)`", text):
                    words = _filled(" ".join(re.sub(r"\b(WHY|ID|NODE_ID|NODE)\b", "x", call).split()))
                    seen += 1
                    if tuple(words) in WORDS:
                        continue  # the command as such
                    try:
                        _parse(words)
                    except (click.MissingParameter, click.BadOptionUsage):
                        pass  # it names an option as such
                    except click.ClickException as error:
                        of = getattr(error, "param", None)
                        if not (of and isinstance(of.type, click.Path)):
                            wrong.append(f"{path.name}: {call}: {error.format_message()}")
    assert seen > 100
    assert wrong == [], "\n".join(wrong)


def test_no_hint_that_airflow_shows_writes_as_text_what_airflow_says_otherwise() -> None:
    words = "|".join(sorted({each.words for each in COMMANDS if each.words != "diff"}))
    wrong = []
    for path in sorted((ROOT / "include" / "pumphouse").rglob("*.py")):
        name = str(path.relative_to(ROOT / "include" / "pumphouse"))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "hint" and not name.startswith(_COMMAND_LINE):
                found = [
                    text
                    for text in _texts(node.value)
                    if re.search(rf"pumphouse ({words})\b|\[target\]|load\.rules", text)
                ]
                wrong += [f"{name}:{node.value.lineno}: {text}" for text in found]
    assert [each for each in wrong if not each.startswith(("archive/range.py", "restore/parts.py"))] == []


def test_no_hint_is_patched_as_text() -> None:
    wrong = [
        f"{path.name}: {line}"
        for folder in ("include", "plugins", "spark_tasks", "dags", "pump_service")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in re.findall(r".*hint\.replace\(.*|.*\.hint \+?= .*", path.read_text())
    ]
    assert wrong == []


def test_every_hint_with_places_has_as_many_parts() -> None:
    """Nobody would see it before the error is raised."""
    wrong, seen = [], 0
    for path in sorted((ROOT / "include" / "pumphouse").rglob("*.py")):
        tree = ast.parse(path.read_text())
        texts = {
            node.targets[0].id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "saying":
                first, *parts = node.args
                text = texts[first.id] if isinstance(first, ast.Name) else ast.literal_eval(first)
                seen += 1
                wrong += [f"{path.name}:{node.lineno}"] if text.count("{}") != len(parts) else []
    assert seen
    assert wrong == []


@pytest.mark.parametrize("each", EACH, ids=str)
def test_advice_arrives_whole_in_another_process(each: Part) -> None:
    error = LoadError("no", hint=("do this: ", each))
    assert pickle.loads(pickle.dumps(error)).advice == error.advice
    assert faults.load(faults.dump(error)).advice == error.advice


@pytest.mark.parametrize("part", [["Later", "`pumphouse x`", 1], ["Rule", "`pumphouse x`", "park"], "`pumphouse x`"])
def test_advice_that_this_release_does_not_know_arrives_as_text(part: object) -> None:
    data = faults.json.dumps(
        {"type": "RowRejected", "message": "no", "hint": ["do this: ", part], "facts": {}}
    ).encode()
    assert str(faults.load(data)) == "no (do this: `pumphouse x`)"
    assert advice.of_json("`pumphouse x`") == ("`pumphouse x`",)


def _said(target: str, *parts: Part) -> str:
    with pytest.raises(LoadError) as caught, naming(target):
        raise LoadError("no", hint=parts)
    return caught.value.hint


ABOUT: tuple[Part, ...] = (
    advice.load(resync="a.b"), "; ", advice.restore(into=THIS), "; check ", Section(), "; ", Rule("park", table="a.b")
)  # fmt: skip


def test_an_error_advises_for_the_target_that_it_is_of() -> None:
    said = _said("eu", *ABOUT)
    assert said.startswith(
        "`pumphouse load --target eu --resync a.b`; `pumphouse restore --into eu --to …`; check [targets.eu]; "
    )
    assert "\n[[targets.eu.rules]]\n" in said
    said = _said(TARGET, *ABOUT)
    assert said == LoadError("no", hint=ABOUT).hint
    assert said.startswith("`pumphouse load --resync a.b`; `pumphouse restore --into target --to …`; check [target]; ")
    assert "\n[[load.rules]]\n" in said
    said = _said(RESTORE_TARGET, *ABOUT)
    assert "`pumphouse restore --into restore_target --to …`; check [restore_target]; " in said
    assert "\n[[load.rules]]\n" in said


def test_the_section_target_and_the_target_of_the_run_are_two() -> None:
    assert _said("eu", "check ", Section(TARGET)) == "check [target]"
    assert _said("eu", advice.restore(into=TARGET)) == "`pumphouse restore --into target --to …`"
    assert "[[dump.without]]" in _said("eu", Rule("", table="a.b"))


def test_advice_names_a_table_and_its_database_as_the_source_does() -> None:
    about = (
        advice.load(resync="there.t"),
        advice.compare("there"),
        Rule("park", table="there.t"),
        advice.load(equal_at="1"),
    )
    said = [advice.of_table(each, "there.t", "here.t") for each in about]
    assert said == [advice.load(resync="here.t"), advice.compare("here"), Rule("park", table="here.t"), about[-1]]
    assert (
        command_line(advice.of_table(advice.compare("my.db"), "my.db.t", "my.db.t"))
        == "`pumphouse diff --schema my.db`"
    )


def test_what_is_not_known_of_two_targets_is_advised_of_each() -> None:
    stands = [
        Stand(name=name, unknown="no checkpoint", hint=(advice.for_target(advice.load(), name),))
        for name in ("eu", "us")
    ]
    published = Published(
        confirmed=Confirmed(archive_end=Tso(2), upto=None, held_by=(), unknown=tuple(stands)), checkpoint=Tso(1)
    )
    error = published.failure()
    assert error is not None
    assert error.hint == "`pumphouse load --target eu`; `pumphouse load --target us`"


def test_a_fact_of_a_peer_replaces_nothing_that_an_error_has() -> None:
    from google.rpc import error_details_pb2, status_pb2

    from pumphouse.rpc import status as wire

    info = error_details_pb2.ErrorInfo(reason="NO_SUCH", domain=wire.DOMAIN)
    info.metadata.update({"said": "x", "message": "x", "advice": "x", "hint": "look", "node_id": "p"})
    packed = status_pb2.Status(code=2, message="failed", details=[wire._pack(info)])
    found = wire._from_details([(wire.DETAILS_KEY, packed.SerializeToString())])
    assert isinstance(found, PumpError)
    assert str(found) == "failed (look)"
    assert found.facts == {"node_id": "p"}
