"""``python -m spark_tasks.jobs.schema``, for spark-submit; settings come from pumphouse.toml and the environment."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from pumphouse.log import configure_logging
from pumphouse.runs import schema
from pumphouse.settings import Settings


def main() -> int:
    """Rebuild the schema up to the archive's end; the report on stdout, as JSON."""
    configure_logging()
    sys.stdout.write(json.dumps(asdict(schema.run(Settings.read()))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
