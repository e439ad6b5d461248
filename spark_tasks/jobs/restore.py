"""``spark-submit …/spark_tasks/jobs/restore.py TSO|latest [--replace HOST:PORT] [--run-id ID]``; master as submitted.

``--replace`` names a restore target whose data may go, as `pumphouse restore` does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from pumphouse.log import configure_logging
from pumphouse.model.tso import Tso
from pumphouse.restore.plan import LATEST
from pumphouse.runs import restore
from pumphouse.settings import Settings
from spark_tasks.jobs.arguments import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Restore the restore target to a moment; the report on stdout, as JSON."""
    arguments = parser("restore", "Restore the restore target to a moment.")
    arguments.add_argument("to", type=lambda text: None if text == LATEST else Tso(int(text)), metavar=f"TSO|{LATEST}")
    arguments.add_argument("--accept-losses", action="store_true", help="although binlogs were declared lost")
    arguments.add_argument("--replace", default="", metavar="HOST:PORT", help="its data may go")
    given = arguments.parse_args(argv)
    configure_logging()
    report = restore.run(
        Settings.read(),
        to=given.to,
        dry_run=False,
        accept_losses=given.accept_losses,
        run_id=given.run_id,
        replace=given.replace,
    )
    sys.stdout.write(json.dumps(report.to_dict()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
