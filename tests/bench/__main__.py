"""`make bench`: every benchmark, or those whose name starts with --only; a table, and build/bench.json."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench.harness import Result, keep, table

# name prefix -> module; each module has BENCHES: {name: function(work dir, runs) -> Result}, and may have SKIPPED: {name: why}
MODULES = (
    "door",
    "store_write",
    "pump_write",
    "processes",
    "pump_pull",
    "client",
    "capture",
    "snapshot",
    "dump",
    "fold",
    "compare",
    "decode",
    "capture_run",
    "export",
    "file_import",
    "changes",
    "archived",
    "load",
    "restore",
    "restart",
)


def _skipped() -> dict[str, str]:
    """Name -> why it cannot run here."""
    found: dict[str, str] = {}
    for module in MODULES:
        found |= getattr(importlib.import_module(f"tests.bench.{module}"), "SKIPPED", {})
    return found


def _benches() -> dict[str, Callable[[Path, int], Result]]:
    found: dict[str, Callable[[Path, int], Result]] = {}
    for module in MODULES:
        found |= importlib.import_module(f"tests.bench.{module}").BENCHES
    return found


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="name prefix")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    skipped = {n: why for n, why in _skipped().items() if n.startswith(args.only)}
    for name, why in skipped.items():
        print(f"- {name} is left out: {why}", file=sys.stderr)
    chosen = {n: b for n, b in _benches().items() if n.startswith(args.only)}
    if not chosen and skipped:
        return 2
    if not chosen:
        print(f"no benchmark starts with {args.only!r}; there are: {', '.join(_benches())}", file=sys.stderr)
        return 2
    results = []
    for name, bench in chosen.items():
        print(f"… {name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="pumphouse-bench-") as work:
            results.append(bench(Path(work), args.runs).to_dict())
        keep(results)
        print(table(results[-1:]).splitlines()[1], file=sys.stderr, flush=True)
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
