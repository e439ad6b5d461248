"""``python -m spark_tasks.jobs.load [TSO]``, for spark-submit; settings as everywhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from pumphouse.errors import UsageError
from pumphouse.log import configure_logging
from pumphouse.model.tso import Tso
from pumphouse.runs import load
from pumphouse.settings import Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Load the target up to a TSO, or to the archive's end; the report on stdout, as JSON."""
    args = list(sys.argv[1:] if argv is None else argv)
    if len(args) > 1:
        raise UsageError("usage: python -m spark_tasks.jobs.load [TSO]")
    configure_logging()
    report = load.run(Settings.read(), to=Tso(int(args[0])) if args else None)
    sys.stdout.write(json.dumps(report.to_dict()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
