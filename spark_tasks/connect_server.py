"""``python -m spark_tasks.connect_server``: a Spark Connect server for our loads, which then pay for no session.

It is an application as `spark_tasks.session` makes them, with our code for its workers; whoever can call it can run
code, so it listens on the loopback unless it is told otherwise. The process becomes the JVM.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark

from pumphouse.settings import Settings
from spark_tasks.java import java_home
from spark_tasks.session import options_of

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


def main(argv: Sequence[str] | None = None) -> None:
    """Become the server; the settings are those of every command, but for the master."""
    arguments = argparse.ArgumentParser(prog="python -m spark_tasks.connect_server", description=__doc__)
    arguments.add_argument("--master", default="local[*]", help="where its workers are; local[*] = on this machine")
    arguments.add_argument("--address", default="127.0.0.1", help="address to listen on")
    arguments.add_argument("--port", type=int, default=15002)
    given = arguments.parse_args(argv)
    settings = Settings.read().spark.model_copy(update={"master": given.master})
    options = options_of(settings) | {
        "spark.connect.grpc.binding.address": given.address,
        "spark.connect.grpc.binding.port": str(given.port),
    }
    # In a file that nobody else sees and that is gone with us: an option may be a secret, and a command line is shown.
    handle = os.memfd_create("options", 0)
    os.set_inheritable(handle, True)
    os.write(handle, "".join(f"{name} {_one_line(value)}\n" for name, value in options.items()).encode())
    path = f"/proc/self/fd/{handle}"
    code = Path(__file__).parents[1]
    environment = os.environ | {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": options.get("spark.pyspark.python", sys.executable),
        "PYTHONPATH": os.pathsep.join([str(code), str(code / "include"), os.environ.get("PYTHONPATH", "")]),
    }
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    command = ["org.apache.spark.deploy.SparkSubmit", "--properties-file", path, "--class", _CLASS, "spark-internal"]
    sys.stdout.flush()
    os.execve(spark_class, [str(spark_class), *command], environment)  # noqa: S606 - a program, no shell


def _one_line(value: str) -> str:
    """As Java's properties have it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


if __name__ == "__main__":
    main()
