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


_ARROW = """
import sys
import click
from pumphouse.cli import cli
cli.get_command(click.Context(cli), "restore")
import pyarrow as pa
pa.array([1]), pa.scalar(b"x")
print("pandas" in sys.modules, pa.table({"n": [7]}).to_pandas()["n"][0])
"""


def test_a_command_imports_no_pandas_and_who_wants_a_frame_gets_one() -> None:
    done = subprocess.run([sys.executable, "-c", _ARROW], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "7"]


_CAPTURE = """
import sys
from pumphouse.capture.run import run_capture
from pumphouse.capture.source.warm import warm
warm()
print("pyarrow" in sys.modules)
"""


def test_a_capture_holds_no_arrow_in_memory() -> None:
    done = subprocess.run([sys.executable, "-c", _CAPTURE], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False"]
