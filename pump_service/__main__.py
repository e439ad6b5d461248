"""``python -m pump_service``."""

from pump_service.cli import main

main()
