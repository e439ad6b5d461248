"""The blocks of a page, and a shell that types them as they stand there: only paths, names and ports are this machine's.

A fence says what its block is for: ``toml file=NAME`` is put into the working directory under that name, ``sql on=SERVER``
runs on that server, ``sh elsewhere`` cannot run in a test, and any other ``sh`` is typed, line by line.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Block:
    """One fence: what stands behind the language, as a whole and by name, and the text."""

    language: str
    said: str
    text: str

    def get(self, name: str) -> str:
        """What stands behind ``name=``, or nothing."""
        return dict(word.partition("=")[::2] for word in self.said.split()).get(name, "")

    @property
    def runs_elsewhere(self) -> bool:
        return "elsewhere" in self.said.split()

    @property
    def lines(self) -> list[str]:
        """Of a shell block: the commands, without comments; what goes on behind a backslash is one."""
        joined = self.text.replace("\\\n", " ").splitlines()
        return [line for each in joined if (line := re.sub(r"(^|\s)#\s.*", "", each).strip())]


def blocks(text: str) -> list[Block]:
    """All fences of a page, in its order."""
    found = re.findall(r"^( *)```(\w+) ?([^\n]*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [Block(language, said, inner) for _, language, said, inner in found]


@dataclass
class Shell:
    """Types commands in ``directory``, each word of ``told`` replaced; what ends in ``&`` runs until the block ends."""

    directory: Path
    environment: Mapping[str, str]
    told: Mapping[str, str]
    said: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)
    _going: list[tuple[str, subprocess.Popen[bytes]]] = field(default_factory=list)

    def mine(self, text: str) -> str:
        """A text of the page with what is otherwise here."""
        for old, new in self.told.items():
            text = text.replace(old, new)
        return text

    def run(self, line: str, *, codes: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
        """One line to its end."""
        words = ["bash", "-c", self.mine(line)]
        done = subprocess.run(
            words, cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=600, check=False
        )
        self.said[line] = done
        assert done.returncode in codes, f"{line}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done

    def begin(self, line: str) -> None:
        """A line that ends in ``&``."""
        words = ["bash", "-c", f"exec {self.mine(line).rstrip('& ')}"]
        log = (self.directory / f"{len(self._going)}.log").open("wb")
        self._going.append(
            (line, subprocess.Popen(words, cwd=self.directory, env=self.environment, stdout=log, stderr=log))
        )
        log.close()

    @property
    def going(self) -> int:
        """How many lines that end in ``&`` run."""
        return sum(process.poll() is None for _, process in self._going)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, process in reversed(self._going):
            process.send_signal(signal.SIGTERM)
        for _, process in self._going:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        codes = {line: process.returncode for line, process in self._going}
        if error is None:
            assert set(codes.values()) <= {0}, codes
