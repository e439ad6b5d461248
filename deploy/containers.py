"""What docker-compose.yaml runs beside the product itself: ``python -m deploy.containers VERB``.

``secrets`` makes each password once, as a file of a volume; ``begin`` the archive; ``airflow`` Airflow's database,
login and connections. Each may be run again and changes nothing then. ``tidy`` deletes what Airflow keeps, once a day.
``answers``, ``alive`` and ``tidied`` are health checks: they import as little as they can.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets as randoms
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Where the compose file's volumes are: one for each group of readers.
SECRETS = Path("/run/pumphouse")
PASSWORDS = ("s3", "source", "target", "restore", "postgres", "admin")
# By psycopg 3 PostgreSQL refuses Airflow's query for the asset graph.
DATABASE_URL = "postgresql+psycopg2://airflow:{}@postgres:5432/airflow"
# What master and workers read; drivers have the secret as spark.secret. A worker keeps the directories of ended
# applications, with their logs, for an hour.
SPARK_CONF = """spark.authenticate true
spark.authenticate.secret {}
spark.worker.cleanup.enabled true
spark.worker.cleanup.interval 600
spark.worker.cleanup.appDataTtl 3600
"""
# What somebody gives in place of a password that is made: of a source that was there before.
GIVEN = "given"
# Profiles with a capture, and the one with the shop.
_CAPTURED, _SHOP = {"demo", "capture"}, "demo"
_FRESH_S = 60.0
_WAIT_S = 600.0
_DAY_S = 86400.0
# How long Airflow's runs and logs stay.
_KEPT_DAYS = 30


def secrets(options: argparse.Namespace) -> int:
    """Make the passwords that there are not; give directories to the users that write in them. As root."""
    made: dict[str, Callable[[], str]] = {f"{name}/password": lambda: randoms.token_urlsafe(18) for name in PASSWORDS}
    made["airflow/fernet"] = lambda: base64.urlsafe_b64encode(randoms.token_bytes(32)).decode()
    made["airflow/key"] = lambda: randoms.token_urlsafe(48)
    made["airflow/database"] = lambda: DATABASE_URL.format((options.directory / "postgres" / "password").read_text())
    made["spark/secret"] = lambda: randoms.token_urlsafe(32)
    made["spark/spark.conf"] = lambda: SPARK_CONF.format((options.directory / "spark" / "secret").read_text())
    made["pumps/token"] = lambda: randoms.token_hex(24)
    given = options.directory / GIVEN / "source"
    if given.is_file():  # else it is /dev/null
        made["source/password"] = lambda: given.read_text().strip()
    for name, make in made.items():
        path = options.directory / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or (name == "source/password" and given.is_file()):
            # Users of several images read it; nobody outside of the containers that have the volume reaches it.
            new = path.with_name(f".{path.name}")
            new.write_text(make())
            new.chmod(0o444)
            new.rename(path)
    for item in options.own:
        path, _, user = item.partition("=")
        os.chown(path, int(user), int(user))
    return 0


def begin(options: argparse.Namespace) -> int:
    """Make the bucket and begin the archive, with a dump of a captured source; waits for what is not there yet."""
    del options
    import pymysql

    from pumphouse.errors import BinlogError

    end = time.monotonic() + _WAIT_S
    while True:
        try:
            return _begin()
        except (BinlogError, OSError, pymysql.MySQLError) as error:
            if time.monotonic() > end:
                raise
            print(f"not yet: {error}", file=sys.stderr)
            time.sleep(3)


def _begin() -> int:
    from deploy.shop.plain import is_open
    from pumphouse.archive.init import init_archive
    from pumphouse.capture.passed import waiter
    from pumphouse.dump.run import take_dump
    from pumphouse.errors import ConfigError
    from pumphouse.model.tso import MAX_TSO, show
    from pumphouse.parts import Parts
    from pumphouse.registry.captures import is_live
    from pumphouse.settings import Settings

    settings = Settings.read()
    _bucket(settings.archive)
    profiles = set(os.environ.get("COMPOSE_PROFILES", "").split(","))
    captured = bool(profiles & _CAPTURED)
    if _SHOP in profiles and not is_open():
        raise ConfigError("the shop has not opened")
    with Parts(settings) as parts:
        if captured and not any(each.gtid and is_live(each, time.time()) for each in parts.cluster.captures()):
            raise ConfigError("the capture of the source does not follow yet: its log says why")
        genesis = init_archive(parts.archive, parts.cluster, parts.history, settings=settings)
        if captured and not parts.archive.bases(MAX_TSO):
            settle = waiter(parts.cluster, settings.source, settings.capture)
            take_dump(parts.archive, parts.cluster, parts.history, settings, settle=settle)
        print(f"the archive at {parts.archive.url} begins at {show(genesis.ts)}")
    return 0


def _bucket(settings: Any) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=settings.s3_endpoint,
        region_name=settings.s3_region,
        aws_access_key_id=settings.s3_access_key,
        aws_secret_access_key=settings.s3_secret_key.get_secret_value(),
    )
    name = settings.root.removeprefix("s3://").partition("/")[0]
    if name not in {each["Name"] for each in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=name)


def airflow(options: argparse.Namespace) -> int:
    """Make or migrate Airflow's database; put the login and the connections that the UI shows."""
    del options
    from pumphouse.settings import Settings

    home = Path(os.environ["AIRFLOW_HOME"])
    login = home / "passwords.json"
    login.write_text(json.dumps({"admin": (SECRETS / "admin" / "password").read_text()}))
    login.chmod(0o600)
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True)
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "connections.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(connections(Settings.read())))
        subprocess.run([sys.executable, "-m", "airflow", "connections", "import", "--overwrite", str(file)], check=True)
    return 0


def connections(settings: Any) -> dict[str, dict[str, Any]]:
    """The DAGs' connections, from the settings."""
    archive, found = settings.archive, {}
    found["pumphouse_archive"] = {
        "conn_type": "pumphouse_archive",
        "login": archive.s3_access_key,
        "password": archive.s3_secret_key.get_secret_value(),
        "extra": json.dumps({name: getattr(archive, name) for name in ("root", "s3_endpoint", "s3_region")}),
    }
    found["pumphouse_cluster"] = {
        "conn_type": "pumphouse_cluster",
        "password": settings.history.history_password.get_secret_value(),
        "extra": json.dumps({"url": settings.cluster.url, "history": settings.history.history}),
    }
    servers = {
        "pumphouse_downstream": settings.target,
        "pumphouse_restore": settings.restore_target,
        "pumphouse_source": settings.source,
    }
    for name, server in servers.items():
        found[name] = {
            "conn_type": "pumphouse_source" if server is settings.source else "pumphouse_downstream",
            "host": server.host,
            "port": server.port,
            "login": server.user,
            "password": server.password.get_secret_value(),
        }
    return found


def tidy(options: argparse.Namespace) -> int:
    """Delete runs and logs that are older than a month, at once and then once a day; until SIGTERM."""
    del options
    logs = Path(os.environ["AIRFLOW_HOME"]) / "logs"
    while True:
        before = time.time() - _KEPT_DAYS * _DAY_S
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(before))
        command = ("db", "clean", "--clean-before-timestamp", moment, "--skip-archive", "--yes")
        done = subprocess.run([sys.executable, "-m", "airflow", *command], check=False)
        for path in [each for each in logs.rglob("*") if each.is_file() and each.stat().st_mtime < before]:
            path.unlink(missing_ok=True)
        if done.returncode == 0:
            _tidied().touch()
        time.sleep(_DAY_S)


def tidied(options: argparse.Namespace) -> int:
    """Whether ``tidy`` has done its work within two days."""
    del options
    return int(time.time() - _tidied().stat().st_mtime > 2 * _DAY_S)


def _tidied() -> Path:
    return Path(os.environ["AIRFLOW_HOME"]) / "tidied"


def answers(options: argparse.Namespace) -> int:
    """Whether a URL answers; with a part, whether Airflow's health says that this part is healthy."""
    with urllib.request.urlopen(options.url, timeout=10) as answer:  # noqa: S310 - our own services
        body = answer.read()
    return int(bool(options.part) and json.loads(body)[options.part]["status"] != "healthy")


def alive(options: argparse.Namespace) -> int:
    """Whether the shop has sold something of late, or its server's capture runs."""
    if options.what == "writer":
        from deploy.shop.server import connect, query

        (row,) = query(connect(), "SELECT TIMESTAMPDIFF(SECOND, MAX(placed), UTC_TIMESTAMP()) AS ago FROM shop.orders")
        return int(row["ago"] is None or row["ago"] > _FRESH_S)
    from pumphouse.registry.captures import is_live
    from pumphouse.registry.open import open_cluster
    from pumphouse.settings import Settings

    cluster = open_cluster(Settings.read().cluster, create=False)
    return int(not any(is_live(each, time.time()) for each in cluster.captures()))


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m deploy.containers", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(run: Callable[[argparse.Namespace], int], directory: Path | None = None) -> argparse.ArgumentParser:
        made = verbs.add_parser(run.__name__, help=(run.__doc__ or "").partition("\n")[0])
        made.set_defaults(run=run)
        if directory is not None:
            made.add_argument("--directory", type=Path, default=directory)
        return made

    verb(secrets, SECRETS).add_argument("--own", action="append", default=[], metavar="DIRECTORY=UID")
    verb(begin)
    verb(airflow)
    verb(tidy)
    verb(tidied)
    asked = verb(answers)
    asked.add_argument("url")
    asked.add_argument("part", nargs="?")
    verb(alive).add_argument("what", choices=("writer", "capture"))
    options = parser.parse_args(argv)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
