"""``spark-submit …/spark_tasks/jobs/load.py [TSO] [--run-id ID]``; settings as everywhere, the master as submitted."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from pumphouse.log import configure_logging
from pumphouse.model.tso import Tso
from pumphouse.runs import load
from pumphouse.settings import Settings
from spark_tasks.jobs.arguments import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Load the target up to a TSO, or to the archive's end; the report on stdout, as JSON."""
    arguments = parser("load", "Load the target up to a moment, or to the archive's end.")
    arguments.add_argument("to", nargs="?", type=int, metavar="TSO")
    given = arguments.parse_args(argv)
    configure_logging()
    report = load.run(Settings.read(), to=None if given.to is None else Tso(given.to), run_id=given.run_id)
    sys.stdout.write(json.dumps(report.to_dict()) + "\n")
    return 3 if report.parked else 0  # as `pumphouse load`


if __name__ == "__main__":
    sys.exit(main())
