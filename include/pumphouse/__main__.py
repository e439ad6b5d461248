"""``python -m pumphouse`` is the command line."""

from pumphouse.cli import main

main()
