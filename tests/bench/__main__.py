"""`make bench`: every benchmark, or those whose name starts with --only; a table, and build/bench.json."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench.harness import Result, keep, table

# name prefix -> module; each module has BENCHES: {name: function(work dir, runs) -> Result}
MODULES = (
    "door",
    "store_write",
    "pump_write",
    "processes",
    "pump_pull",
    "client",
    "snapshot",
    "dump",
    "decode",
    "load",
    "restart",
)


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
    chosen = {n: b for n, b in _benches().items() if n.startswith(args.only)}
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
