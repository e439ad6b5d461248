"""Mechanisms that are broken one by one: the lists in tests/mutants, and whether an entry still fits the code."""

from __future__ import annotations

import ast
import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LISTS = ROOT / "tests" / "mutants"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One mechanism: where it is, what it becomes, and the tests of which one must fail then.

    Args:
        row: of docs/requirements.md, in the steering repository; as in `pytest.mark.row`.
        broken: what is wrong then, in words.
        file: path in the repository.
        text: stands in the file exactly once.
        becomes: what stands there instead.
        tests: ids as pytest takes them.
    """

    row: str
    broken: str
    file: str
    text: str
    becomes: str
    tests: tuple[str, ...]

    def problem(self, tree: Path = ROOT) -> str:
        """Why it does not apply; '' = it does."""
        path = tree / self.file
        if not path.is_file():
            return f"{self.file} is not there"
        source = path.read_text()
        found = source.count(self.text)
        if found == 1 and self.text != self.becomes:
            return self._spoilt(source)
        if found != 1:
            return f"{self.file}: {self.text!r} is there {found} times{_nearest(source, self.text)}"
        return f"{self.file}: it becomes what it is"

    def _spoilt(self, source: str) -> str:
        """What is no Python any more fails every test, and so shows nothing."""
        try:
            if self.file.endswith(".py"):
                ast.parse(source.replace(self.text, self.becomes))
        except SyntaxError as error:
            return f"{self.file}: what it becomes is no Python: line {error.lineno}: {error.msg}"
        return ""

    def apply(self, tree: Path) -> None:
        """Break it. ValueError where it does not apply."""
        if why := self.problem(tree):
            raise ValueError(why)
        path = tree / self.file
        path.write_text(path.read_text().replace(self.text, self.becomes))


def read() -> list[Mutant]:
    """Every list, in order of the rows."""
    found = []
    for path in sorted(LISTS.glob("*.toml")):
        for each in tomllib.loads(path.read_text())["mutant"]:
            found.append(Mutant(**each | {"tests": tuple(each["tests"])}))
    return found


def missing_tests(mutants: list[Mutant], tree: Path = ROOT) -> list[str]:
    """Tests that are named and are not there."""
    named = {test for mutant in mutants for test in mutant.tests}
    return sorted(test for test in named if not _is_there(test, tree))


def _is_there(test: str, tree: Path) -> bool:
    file, _, name = test.partition("::")
    path = tree / file
    return path.is_file() and f"def {name.partition('[')[0]}(" in path.read_text()


def _nearest(source: str, text: str) -> str:
    """Where the first line of a text may be by now."""
    lines = source.splitlines()
    wanted = text.strip().splitlines()[0].strip()
    close = difflib.get_close_matches(wanted, [line.strip() for line in lines], 1, 0.5)
    if not close:
        return ""
    at = next(number for number, line in enumerate(lines, 1) if line.strip() == close[0])
    return f"; near line {at}: {close[0]!r}"
