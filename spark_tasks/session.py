"""The one place that makes a Spark session: local, standalone or Connect, by setting, or as spark-submit says."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pumphouse.errors import ConfigError, LoadError, SparkUnavailable
from spark_tasks.java import java_home
from spark_tasks.package import code_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pumphouse.settings import SparkSettings

_LOOPBACK = "127.0.0.1"
_ANY = "0.0.0.0"  # noqa: S104 - refused as an address that others can call
_PYTHON = "spark.pyspark.python"
_START = "start it (python -m spark_tasks.connect_server), or set spark.master = local[*]"
_MASTER = (
    "look at spark.master, spark.conf and spark.driver_memory, and at what Spark says in the log; "
    'load.engine = "local" needs no Spark'
)
# What calls to a Connect server end with when that was killed, or was started again since.
_LOST = re.compile(r"NO_ACTIVE_SESSION|INVALID_HANDLE|StatusCode\.UNAVAILABLE|server side session identifier")
# As Spark itself tells which settings it may not show.
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)

# A row on its way through our jobs is a blob of up to 16 MiB: Spark's batch sizes count rows, so they are small here.
_OF_OUR_JOBS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4",
    "spark.sql.inMemoryColumnarStorage.batchSize": "4",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}


def build_session(app: str, settings: SparkSettings) -> SparkSession:
    """Session for a task; an active one of this process is used again."""
    from pyspark.sql import SparkSession

    if settings.master.startswith("sc://") and not _submitted():
        return _connect(app, settings)
    builder = SparkSession.builder.appName(app)
    options = options_of(settings, _told_by_submit())
    if SparkSession.getActiveSession() is None:
        os.environ.setdefault("PYSPARK_PYTHON", settings.conf.get(_PYTHON, sys.executable))
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ["JAVA_HOME"] = str(java_home())
        _require_master(options["spark.master"])
    for name, value in options.items():
        builder = builder.config(name, value)
    with _naming_master(options["spark.master"]):
        if SparkSession.getActiveSession() is None:
            _begin_jvm(options)
        session: SparkSession = builder.getOrCreate()
    return session


def _begin_jvm(options: Mapping[str, str]) -> None:
    """Start the driver's JVM, if there is none, without secrets: everybody on the machine may read its command line."""
    from pyspark import SparkConf, SparkContext

    conf = SparkConf()
    for name, value in options.items():
        if not _SECRET.search(name):
            conf.set(name, value)
    SparkContext._ensure_initialized(conf=conf)  # noqa: SLF001 - PySpark has no other way to give it less than all


def _connect(app: str, settings: SparkSettings) -> SparkSession:
    """A session on a Connect server: what belongs to the application, code too, is that server's.

    Spark starts a Python daemon for each session and lets it live (SPARK-54055). So loads of one hour share a session,
    and find its workers ready; a server ends sessions that were idle for an hour.
    """
    from pyspark.errors.exceptions.connect import SparkConnectException
    from pyspark.sql import SparkSession

    shuffle = {"spark.sql.shuffle.partitions": str(settings.shuffle_partitions)}
    conf = {
        name: value for name, value in (_OF_OUR_JOBS | shuffle | settings.conf).items() if name.startswith("spark.sql.")
    }
    address, _, told = settings.master.partition("/;")
    _require_answer(address)
    shared = uuid.uuid5(uuid.NAMESPACE_URL, f"pumphouse {time.time() // 3600} {sorted(conf.items())}")

    def begin(*more: str) -> SparkSession:
        url = "/;".join(filter(None, (address.rstrip("/"), ";".join(filter(None, (told, *more))))))
        builder = SparkSession.builder.remote(url).appName(app)
        for name, value in conf.items():
            builder = builder.config(name, value)
        made: SparkSession = builder.getOrCreate()
        return made

    if "session_id=" in told:
        return begin()
    try:
        session = begin(f"session_id={shared}")
    except SparkConnectException as error:
        if "INVALID_HANDLE" not in str(error):
            raise
        # That server has ended the shared one, and does not begin it again.
        ended = SparkSession.getActiveSession()
        if ended is not None:
            ended.release_session_on_close = False
            ended.stop()
        return begin()
    session.release_session_on_close = False
    return session


def _require_answer(address: str) -> None:
    """SparkUnavailable when nobody listens there: the client would try for half an hour."""
    if why := _silent(address, 15002):
        raise SparkUnavailable(f"the Spark Connect server {address} does not answer: {why}", hint=_START)


def _require_master(master: str) -> None:
    """SparkUnavailable when none of a standalone cluster's masters listens: Spark would try for two minutes."""
    if not master.startswith("spark://"):
        return
    whys = [_silent(f"spark://{each}", 7077) for each in master.removeprefix("spark://").split(",")]
    if all(whys):
        raise SparkUnavailable(f"the Spark master {master} does not answer: {whys[0]}", hint=_MASTER)


def _silent(address: str, port: int) -> str:
    """Why nobody can be called there; '' = somebody listens."""
    try:
        parts = urlsplit(address)
        socket.create_connection((parts.hostname or "", parts.port or port), 10).close()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


@contextlib.contextmanager
def _naming_master(master: str) -> Iterator[None]:
    """LoadError where Spark begins no session: what it says is Java's, and much of it is in the log alone.

    A cluster may begin one later: SparkUnavailable, which is tried again.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        why = " ".join(str(error).strip().splitlines()[:2]) or type(error).__name__  # the second is the Java exception
        kind = LoadError if master.startswith("local") else SparkUnavailable
        raise kind(f"Spark begins no session at {master}: {why}", hint=_MASTER) from error


@contextlib.contextmanager
def naming_loss(settings: SparkSettings) -> Iterator[None]:
    """SparkUnavailable where a Connect server was lost, or another one than began the session answers."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if not settings.master.startswith("sc://") or not _LOST.search(f"{_condition(error)} {error}"):
            raise
        raise SparkUnavailable(
            f"the Spark Connect server {settings.master.partition('/;')[0]} was lost: {str(error).splitlines()[0]}",
            hint="run this again when it is back: it goes on where it stopped",
        ) from error


def _condition(error: Any) -> str:
    """What Spark calls an error, and the status of the call."""
    status = getattr(error, "getGrpcStatusCode", lambda: "")()
    return f"{error.getCondition()} {status}"


def _submitted() -> bool:
    """Whether spark-submit started this process, with a JVM that has its master and its settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _told_by_submit() -> dict[str, str]:
    if not _submitted():
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - connects to that JVM, without which a SparkConf is empty
    return dict(SparkConf().getAll())


def options_of(settings: SparkSettings, told: Mapping[str, str] | None = None) -> dict[str, str]:
    """All that an application is made with: what spark-submit was told beats `spark.conf`, that beats ours."""
    given = settings.conf | dict(told or {})
    master = given.get("spark.master", settings.master)
    local = master.startswith("local")
    options = _OF_OUR_JOBS | {
        "spark.master": master,
        "spark.driver.memory": settings.driver_memory,
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
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
            # What is shuffled stays on this machine: compressing it costs more than it saves.
            "spark.shuffle.compress": "false",
            "spark.shuffle.spill.compress": "false",
        }
    else:
        options |= _driver_address(master, given) | _authentication(master, settings, given)
        options |= _code(settings.package, given)
    return given | options | {name: value for name, value in given.items() if name != "spark.archives"}


def _code(package: Path | None, given: dict[str, str]) -> dict[str, str]:
    """Where the workers have our code from; the user's own archives come beside it."""
    if package is None:
        return {}
    if not package.is_file():
        raise ConfigError(
            f"there is no file {package}, which spark.package names", hint=f"pumphouse spark package --output {package}"
        )
    code = code_conf(package.absolute())
    archives = [name for name in given.get("spark.archives", "").split(",") if name not in ("", code["spark.archives"])]
    return code | {"spark.archives": ",".join([*archives, code["spark.archives"]])}


def _authentication(master: str, settings: SparkSettings, given: Mapping[str, str]) -> dict[str, str]:
    """Whoever calls the driver or an executor proves a secret; else anybody on that network could run code in them.

    YARN and Kubernetes make a secret for each application; of a standalone cluster, master and workers have one.
    """
    if "spark.authenticate" in given:
        return {}
    if not master.startswith("spark://"):
        return {"spark.authenticate": "true"}
    secret = settings.secret.get_secret_value()
    if not secret:
        raise ConfigError(
            f"spark.secret is not set: whoever reaches the driver of {master} by the network could run code in it",
            hint="give the master and the workers spark.authenticate = true and a spark.authenticate.secret, and set "
            'spark.secret to it; or, on a network of your own, set "spark.authenticate" = "false" in [spark.conf]',
        )
    return {"spark.authenticate": "true", "spark.authenticate.secret": secret}


def _driver_address(master: str, given: dict[str, str]) -> dict[str, str]:
    """Where the executors call the driver: this host's address on the way to the master.

    Spark would take what the host's name means, which is the loopback on many. Who names an address that this host has
    not, as behind a NAT or in a container with published ports, has Spark listen on every one.
    """
    if "spark.driver.host" in given:
        return {"spark.driver.bindAddress": _own_address(given["spark.driver.host"]) or _ANY}
    named = os.environ.get("SPARK_LOCAL_IP", "")
    if named not in ("", _ANY):
        return {"spark.driver.host": named, "spark.driver.bindAddress": named}
    if not master.startswith("spark://"):
        return {}  # YARN and Kubernetes have ways of their own
    host, _, port = master.removeprefix("spark://").partition(",")[0].rpartition(":")
    try:
        family, kind, _, _, to = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(to)  # sends nothing: it asks the routing table
            address = str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the Spark master {master} cannot be found: {error}", hint="spark.master = spark://host:port"
        ) from error
    return {"spark.driver.host": address, "spark.driver.bindAddress": address}


def _own_address(host: str) -> str:
    """The address that a name means, if it is one of this host; else '', also where others know the name as another."""
    try:
        family, kind, _, _, to = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(to)
    except OSError:
        return ""
    address = str(to[0])
    return "" if ipaddress.ip_address(address.partition("%")[0]).is_loopback and address != host else address


@contextlib.contextmanager
def session_for(app: str, settings: SparkSettings) -> Iterator[SparkSession]:
    """A session as long as the block lasts; one that was there before stays."""
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    session = before or build_session(app, settings)
    try:
        with naming_loss(settings):
            yield session
    finally:
        if before is None:
            session.stop()
