"""What the jobs' command lines share."""

from __future__ import annotations

import argparse


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """A parser with ``--run-id``: a retry that names the run of its first attempt takes the target over from that."""
    made = argparse.ArgumentParser(prog=f"spark_tasks/jobs/{name}.py", description=description)
    made.add_argument("--run-id", default="", help="name of the run; the same name takes over from itself")
    return made
