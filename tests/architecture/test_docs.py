"""The documentation against the code: pages that are written from it, commands, settings, links, make targets."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from pumphouse.cli import cli
from pumphouse.settings import Settings
from tests.support import generated_docs, site
from tests.support.shellpage import blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
BY_HAND = [page for page in PAGES if page.name not in generated_docs.PAGES]
COMMANDS = list(generated_docs.commands())
WORDS = dict(COMMANDS)


def test_pages_written_from_the_code_are_fresh() -> None:
    assert generated_docs.stale() == [], "run `make docs`"


@pytest.mark.row("O3")
@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_every_command_and_option_has_help(path: tuple[str, ...], command: click.Command) -> None:
    assert command.help, path
    assert command.help.split(".")[0].strip()
    for each in command.params:
        if isinstance(each, click.Option) and not each.hidden:
            assert each.help, f"{' '.join(path)} {each.opts[0]} has no help"


@pytest.mark.row("O3")
def test_every_command_is_written_about_by_hand() -> None:
    text = " ".join(page.read_text() for page in BY_HAND)
    leaves = [path for path, command in COMMANDS if not isinstance(command, click.Group)]
    assert [" ".join(path) for path in leaves if " ".join(path) not in text] == []


# -- commands in prose --------------------------------------------------------------------------------------------


def _calls(text: str) -> list[str]:
    """Every call of ``pumphouse`` in shell blocks and in code of prose, without comments, one a line."""
    found = []
    for block in re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            found += re.split(r"&&|\||;", line.split(" #")[0])
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found += re.findall(r"`([^`]+)`", prose)
    return [" ".join(call.rstrip(" &").split()) for call in found if call.split()[:1] == ["pumphouse"]]


def _parse(words: list[str]) -> None:
    """Parse a call as click would, and run nothing; click's own exceptions say what is wrong."""
    command: click.Command = cli
    path, args = ["pumphouse"], words[1:]
    while True:
        if "--help" in args[:1] or not args:
            return
        context = command.make_context(" ".join(path), list(args), resilient_parsing=False)
        if not isinstance(command, click.Group):
            return
        rest = [*context._protected_args, *context.args]
        name, found, args = command.resolve_command(context, rest)
        assert found is not None
        assert name is not None
        command, path = found, [*path, name]


# What stands for a value in the pages.
_STANDS_FOR = {
    "START_TS": "470592258683437056",
    "COMMIT_TS": "470592258683437057",
    "…": "x",
    "TIME": "now",
    "DATA_DIR": ".",
    "FILE:FROM-TO": "000000.vlog:16-32",
}


def _filled(call: str) -> list[str]:
    return shlex.split(re.sub("|".join(_STANDS_FOR), lambda m: _STANDS_FOR[m[0]], call))


@pytest.mark.row("O3")
@pytest.mark.parametrize("page", BY_HAND, ids=lambda page: page.name)
def test_commands_in_the_pages_are_taken_as_written(page: Path) -> None:
    wrong = []
    for call in _calls(page.read_text()):
        words = _filled(call)
        if words[-1] == "x" and tuple(words[:-1]) in WORDS:
            continue  # `pumphouse archive …`: the command as such
        if tuple(words) in WORDS:
            continue
        try:
            _parse(words)
        except click.ClickException as error:
            wrong.append(f"{call}: {error.format_message()}")
    assert wrong == []


def test_a_wrong_command_in_a_page_would_be_found() -> None:
    text = "Run `pumphouse archive frobnicate` or\n\n```sh\nFOO=1\npumphouse load --no-such-option   # why\n```\n"
    calls = _calls(text)
    assert calls == ["pumphouse load --no-such-option", "pumphouse archive frobnicate"]
    for call in calls:
        with pytest.raises(click.ClickException):
            _parse(_filled(call))


@pytest.mark.row("O3")
def test_commands_that_hints_and_messages_name_are_there() -> None:
    """An error that says what to type must say something that exists."""
    wrong = []
    for folder in ("include", "pump_service", "spark_tasks", "plugins", "dags"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for quoted in re.findall(r"(?:hint=f?\"|`)pumphouse ([a-z][a-z -]*[a-z])", path.read_text()):
                words = quoted.split()
                if ("pumphouse", words[0]) not in WORDS:
                    wrong.append(f"{path.name}: pumphouse {quoted}")
                    continue
                group = WORDS["pumphouse", words[0]]
                if isinstance(group, click.Group) and len(words) > 1 and ("pumphouse", *words[:2]) not in WORDS:
                    wrong.append(f"{path.name}: pumphouse {quoted}")
    assert wrong == []


# -- settings, links, targets -------------------------------------------------------------------------------------


def _settings() -> dict[str, set[str]]:
    return {
        info.alias or name: set(info.annotation.model_fields)
        for name, info in Settings.model_fields.items()
        if isinstance(info.annotation, type)
    }


_FILES_AND_COLUMNS = {"json", "py", "toml", "spec", "statement", "looks", "ts", "number"}


@pytest.mark.parametrize("page", BY_HAND, ids=lambda page: page.name)
def test_settings_in_the_pages_exist(page: Path) -> None:
    known = _settings()
    wrong = []
    for section, name in re.findall(rf"`({'|'.join(known)})\.(\w+)`", page.read_text()):
        if name not in known[section] | _FILES_AND_COLUMNS:
            wrong.append(f"{section}.{name}")
    for section, name in re.findall(r"PUMPHOUSE_([A-Z]+)__([A-Z][A-Z0-9_]+)", page.read_text()):
        if name.lower().removesuffix("_file") not in known.get(section.lower(), set()):
            wrong.append(f"PUMPHOUSE_{section}__{name}")
    # Names of settings without their section: everything that looks like one of the Pump's sizes and times.
    fields = set().union(*known.values())
    wrong += [
        name for name in re.findall(r"`(\w+_(?:s|bytes|cron))`", page.read_text()) if name not in fields | {"age_s"}
    ]
    assert wrong == []


@pytest.mark.parametrize("page", BY_HAND, ids=lambda page: page.name)
def test_settings_files_in_the_pages_are_taken(page: Path) -> None:
    for text in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        Settings.model_validate(tomllib.loads(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    wrong = [
        link
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert wrong == []


def test_make_targets_in_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(), re.MULTILINE)}
    assert named <= targets, named - targets
    assert {"demo", "up", "down", "test", "bench", "docs"} <= targets


def test_every_page_is_reachable_from_the_readme() -> None:
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or not page.exists():
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s]+\.md)[^)]*\)", page.read_text())
        todo += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert [page.name for page in PAGES if page not in seen and page.name != "CHANGELOG.md"] == []


# -- the site, the quick starts, the runbook ----------------------------------------------------------------------

QUICK_STARTS = {
    "start-mysql.md": "tests/integration/test_quick_start.py",
    "start-tidb.md": "tests/tidb/test_quick_start.py",
    "start-airflow.md": "tests/dags/test_own_dags.py",
}
_INSTALL = "installs from a package index into the system: tests/integration/test_wheel.py does it from the wheel"
# Lines of the README and the quick starts that no test types as they stand there, and why. Tests type all others.
NOT_TYPED = {
    "make demo": "CI runs it (.ci/run)",
    "make up": "tests/e2e/test_up.py does what it does, with ports of its own",
    "make test": "it would run itself",
    "make bench": "takes an hour of a quiet machine",
    "make docs": "it would write into the checkout; a test compares what it would write",
    "make rows": "prints what tests/architecture/test_contracts.py looks at",
    "make campaign": "takes hours",
    "make mutants": "takes hours; tests/architecture/test_mutants.py tries its parts",
    "make test-mysql": "needs root and debootstrap",
    "make test-tidb": "needs Go",
    "python3 -m venv /opt/pumphouse": _INSTALL,
    "/opt/pumphouse/bin/pip install 'pumphouse[pump]'": _INSTALL,
    "export PATH=/opt/pumphouse/bin:$PATH": _INSTALL,
    'sudo install -d -o "$USER" /opt/pumphouse /srv/pumphouse': _INSTALL,
    "pip install 'pumphouse[airflow]' --constraint AIRFLOW_CONSTRAINTS_FILE": _INSTALL,
    "tiup cluster reload CLUSTER -R tidb": "needs a cluster of TiUP; the test starts the tidb-server at this place",
}


def test_shell_lines_that_no_test_types_are_listed_with_their_reason() -> None:
    readme = (ROOT / "README.md").read_text()
    typed = readme.split("## Using it")[1].split("\n## ")[0]
    found = {line for each in blocks(readme.replace(typed, "")) if each.language == "sh" for line in each.lines}
    for name, test in QUICK_STARTS.items():
        assert f'"{name}"' in (ROOT / test).read_text(), f"{test} types {name}"
        page = blocks((ROOT / "docs" / name).read_text())
        found |= {line for each in page if each.runs_elsewhere for line in each.lines}
        assert {each.language for each in page if each.language in {"bash", "shell", "console"}} == set()
    assert found == set(NOT_TYPED)


def test_the_site_leads_to_every_page() -> None:
    def leaves(entries: list[object]) -> list[str]:
        found = []
        for entry in entries:
            for value in entry.values() if isinstance(entry, dict) else [entry]:
                found += leaves(value) if isinstance(value, list) else [str(value)]
        return found

    settings = tomllib.loads((ROOT / "zensical.toml").read_text())
    there = {page.name for page in (ROOT / "docs").glob("*.md")} | set(site.BESIDE.values())
    assert sorted(leaves(settings["project"]["nav"])) == sorted(there)


def test_links_between_the_folders_are_turned_for_the_site() -> None:
    assert site.page("[a](docs/map.md#x) [b](ARCHITECTURE.md) [c](../README.md)") == (
        "[a](map.md#x) [b](architecture.md) [c](index.md)"
    )
    assert site.page("```json schema=manifest\n    ```sh file=commands\n```text\n") == "```json\n    ```sh\n```text\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_reads_the_same_on_the_site(page: Path) -> None:
    """Python's Markdown, unlike the code host's, wants four columns inside a list, and an empty line before one."""
    wrong, before, inside = [], "", False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        begins = re.match(r"([-*]|\d+\.) |\|", line)
        if re.match(r" *```", line):
            inside = not inside
        if inside and re.match(r" {1,3}```", line):
            wrong.append(f"{number}: a fence inside a list, by fewer than four columns")
        if inside:
            continue
        if re.match(r" {1,3}\S", line) and not before:
            wrong.append(f"{number}: goes on inside a list, by fewer than four columns")
        if begins and before and not re.match(r"([-*]|\d+\.) |\||\s|<!--", before):
            wrong.append(f"{number}: a list or a table without an empty line before it")
        before = line
    assert wrong == []


def test_no_statement_of_a_diagram_is_cut() -> None:
    """In a sequence diagram, a semicolon ends a statement, and what is behind it is a syntax error."""
    diagrams = [each.text for page in PAGES for each in blocks(page.read_text()) if each.language == "mermaid"]
    assert len(diagrams) > 10
    assert [text for text in diagrams if text.startswith("sequenceDiagram") and ";" in text] == []


@pytest.mark.row("P14")
def test_every_alert_has_its_section_in_the_runbook() -> None:
    (group,) = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"]
    sections = re.findall(r"^## (.+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(rule["alert"] for rule in group["rules"])


# -- the map of the code ------------------------------------------------------------------------------------------


def test_every_module_says_what_it_owns_in_one_line() -> None:
    found = [path for path in generated_docs.modules(*generated_docs.CODE) if path.name != "__init__.py"]
    lines = [ast.get_docstring(ast.parse(path.read_text())) or "" for path in found]
    assert len(found) > 400
    assert [
        str(path) for path, text in zip(found, lines, strict=True) if not re.match(r"[^\n]{15,}[.:?](\n|$)", text)
    ] == []


def test_the_first_page_leads_to_every_room() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {path.parent.relative_to(ROOT).as_posix() for path in generated_docs.modules(*generated_docs.CODE)}
    led = set(re.findall(r"\(docs/map\.md#([\w-]+)\)", page))
    there = {re.sub(r"[^\w-]", "", room): room for room in rooms}
    assert led - set(there) == set()
    # A room inside a room that is named is on the map below it.
    assert [room for room in sorted(rooms) if not any(room.startswith(there[each]) for each in led)] == []
    assert len(page.splitlines()) <= 140, "two pages"


def test_files_in_the_map_of_the_pump_are_there() -> None:
    pump = ROOT / "pump_service"
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "pump.md").read_text()))
    assert len(named) > 60
    assert [
        n for n in sorted(named) if not any((pump / room / n).exists() for room in ("", "store", "door", "door/http2"))
    ] == []


def test_words_of_the_glossary_are_sorted_and_live_where_it_says() -> None:
    rows = re.findall(r"^\| (.+?) \| .+ \| `([\w./]+)` \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    words = [re.sub("[()]", "", word).lower() for word, _ in rows]
    assert len(words) > 200
    assert words == sorted(set(words))
    assert [path for _, path in rows if not (ROOT / path).exists()] == []
