"""``python -m pump_service``."""

import sys

from pumphouse.extras import way_out

try:
    from pump_service.command.cli import main
except ModuleNotFoundError as error:
    sys.exit(way_out(error) or f"{error}")

main()
