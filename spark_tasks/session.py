"""The one place that makes a Spark session: local, standalone or Connect, by setting."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_tasks.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pumphouse.settings import SparkSettings

_LOOPBACK = "127.0.0.1"


def build_session(app: str, settings: SparkSettings) -> SparkSession:
    """Session for a task; an active one of this process is used again.

    A row on its way through our jobs is a blob of up to 16 MiB: Spark's batch sizes count rows, so they are small here.
    """
    from pyspark.sql import SparkSession

    if settings.master.startswith("sc://"):
        connect: SparkSession = SparkSession.builder.remote(settings.master).appName(app).getOrCreate()
        return connect
    if SparkSession.getActiveSession() is None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        os.environ["JAVA_HOME"] = str(java_home())
    local = settings.master.startswith("local")
    builder = SparkSession.builder.master(settings.master).appName(app)
    options = {
        "spark.driver.memory": settings.driver_memory,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "4",
        "spark.sql.inMemoryColumnarStorage.batchSize": "4",
        "spark.sql.warehouse.dir": tempfile.gettempdir(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.python.daemon.module": "spark_tasks.daemon",
        # Our errors come back as data; what is left is a bug or a dead executor.
        "spark.task.maxFailures": "1" if local else "4",
    }
    if local:
        options |= {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            # The JVM only moves blobs: the optimizing compiler and a concurrent collector cost a third of a short job's
            # CPU and give nothing back.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
    for name, value in options.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


@contextlib.contextmanager
def session_for(app: str, settings: SparkSettings) -> Iterator[SparkSession]:
    """A session as long as the block lasts; one that was there before stays."""
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    session = before or build_session(app, settings)
    try:
        yield session
    finally:
        if before is None:
            session.stop()
