"""The wheel, and the environments that strangers have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What pip held fixed beside each Airflow that is served, ascending.
FROZEN = sorted((ROOT / "tests/integration/frozen").glob("airflow-*.txt"))


def uv(*words: str | Path) -> str:
    """Run uv, which installs in seconds; AssertionError with what it said."""
    program = Path(sys.executable).with_name("uv")
    done = subprocess.run([program, "--no-config", *words], capture_output=True, text=True, timeout=900, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """Of this checkout."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    return next(folder.glob("*.whl"))
