"""`make mutants`: breaks each mechanism of the lists beside this file, one by one, and runs the tests that must see it.

All in copies of the tree, two side by side; the checkout is never touched. First the named tests run on the copy as it is: what fails
there would prove nothing. Then each mutant is *caught* (one of its tests failed), has SURVIVED (all passed), or is an
error: it does not apply, or its tests could not run. Exit code 1 unless all are caught.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.support.mutants import ROOT, Mutant, missing_tests, read

_LEFT_OUT = (".git", ".venv", "build", "dist", ".hypothesis", ".mypy_cache", ".ruff_cache")
_FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)
# Of one mutant; the first run of all tests ends by the limits of each.
_LONGEST_S = 900
# As many mutants at once as tests in the first run: what passes there is not held up here.
_LANES = 2
_SIDE_BY_SIDE = ("-n", str(_LANES), "--dist", "loadfile")
# Kernels lie compiled beside their sources, named by a digest: those of the checkout serve the copy, and what a mutant
# changes is compiled for it alone.


def main() -> int:
    """Run those of the command line."""
    parser = argparse.ArgumentParser(prog="tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="rows (P6,P11), letters of rows (P), or the beginning of what is broken"
    )
    only = parser.parse_args().only
    mutants = [each for each in read() if _wanted(each, only)]
    problems = [f"{each.row} {each.broken}: {why}" for each in mutants if (why := each.problem())]
    problems += [f"there is no {test}" for test in missing_tests(mutants)]
    if problems or not mutants:
        print("\n".join(problems or [f"no mutant is called {only}"]))
        return 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        trees = [Path(directory) / str(lane) for lane in range(_LANES)]
        for tree in trees:
            shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        return _run(mutants, trees)


def _wanted(mutant: Mutant, only: str) -> bool:
    names = only.split(",")
    return not only or mutant.row in names or mutant.row[0] in names or mutant.broken.startswith(only)


def _run(mutants: list[Mutant], trees: list[Path]) -> int:
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    print(f"{len(mutants)} mutants; first their {len(tests)} tests on the code as it is", flush=True)
    code, said = _pytest(trees[0], [*_SIDE_BY_SIDE, *tests], longest_s=None)
    if code:
        print(said[-4000:] + "\nwhat fails on the code as it is proves nothing")
        return 1
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def caught(numbered: tuple[int, Mutant]) -> bool:
        number, mutant = numbered
        tree, began = free.get(), time.monotonic()
        try:
            verdict = _verdict(mutant, tree)
        finally:
            free.put(tree)
        seconds = time.monotonic() - began
        print(f"{number:3}/{len(mutants)} {mutant.row:4} {mutant.broken}: {verdict} ({seconds:.1f} s)", flush=True)
        return verdict.startswith("caught")

    with ThreadPoolExecutor(len(trees)) as lanes:
        count = sum(lanes.map(caught, enumerate(mutants, 1)))
    print(f"{count} of {len(mutants)} caught")
    return int(count < len(mutants))


def _verdict(mutant: Mutant, tree: Path) -> str:
    path = tree / mutant.file
    whole, times = path.read_text(), path.stat()
    try:
        mutant.apply(tree)
        code, said = _pytest(tree, list(mutant.tests))
    finally:
        path.write_text(whole)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # byte code is told from that of the mutant by it
    failed = _FAILED.search(said)
    if code == 1 and failed:
        return f"caught by {failed[1].rpartition('::')[2]}"
    return "SURVIVED" if code == 0 else f"ERROR, its tests could not run: {said[-1500:]}"


def _pytest(tree: Path, tests: list[str], *, longest_s: float | None = _LONGEST_S) -> tuple[int, str]:
    """Exit code and output. Processes that the tests start import from the copy too."""
    roots = os.pathsep.join(str(tree / each) for each in (".", "include", "plugins"))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rf", "--tb=short", "-p", "no:randomly", "--timeout=300"]
    environment = {**os.environ, "PYTHONPATH": roots}
    # The runner itself may be a test of a campaign, whose record is its own.
    for name in ("PUMPHOUSE_CAMPAIGN", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=longest_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return -1, f"not through after {error.timeout:.0f} s"
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
