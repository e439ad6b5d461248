"""The command line: how it starts."""

import subprocess
import sys

from pumphouse.cli import COMMANDS

_LOOK = """
import gc
import click
from pumphouse.cli import cli
before = gc.get_freeze_count()
assert cli.get_command(click.Context(cli), {name!r}) is not None
print(gc.isenabled(), gc.get_freeze_count() > before + 10_000, len(gc.get_objects()) < 10_000)
"""


def test_garbage_collection_leaves_what_a_command_imports_alone() -> None:
    for name in ("restore", "load"):
        assert name in COMMANDS
        done = subprocess.run(
            [sys.executable, "-c", _LOOK.format(name=name)], check=True, capture_output=True, text=True
        )
        assert done.stdout.split() == ["True", "True", "True"]
