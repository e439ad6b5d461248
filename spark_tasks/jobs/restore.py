"""``python -m spark_tasks.jobs.restore TSO|latest [--accept-losses] [--replace=HOST:PORT]``, for spark-submit.

Settings as everywhere; ``--replace`` names a restore target whose data may go, as `pumphouse restore` does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from pumphouse.errors import UsageError
from pumphouse.log import configure_logging
from pumphouse.model.tso import Tso
from pumphouse.restore.plan import LATEST
from pumphouse.runs import restore
from pumphouse.settings import Settings

_OPTIONS = ("--accept-losses", "--replace=")


def main(argv: Sequence[str] | None = None) -> int:
    """Restore the restore target to a moment; the report on stdout, as JSON."""
    args = list(sys.argv[1:] if argv is None else argv)
    accept_losses = "--accept-losses" in args
    replace = next((each.partition("=")[2] for each in args if each.startswith("--replace=")), "")
    moments = [each for each in args if not each.startswith("--")]
    if len(moments) != 1 or not all(each in moments or each.startswith(_OPTIONS) for each in args):
        raise UsageError("usage: python -m spark_tasks.jobs.restore TSO|latest [--accept-losses] [--replace=HOST:PORT]")
    configure_logging()
    to = None if moments[0] == LATEST else Tso(int(moments[0]))
    report = restore.run(Settings.read(), to=to, dry_run=False, accept_losses=accept_losses, replace=replace)
    sys.stdout.write(json.dumps(report.to_dict()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
