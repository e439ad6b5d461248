"""Connections become settings; what a connection cannot say is refused by name; secrets do not leak."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_ARCHIVE = {
    "conn_type": "pumphouse_archive",
    "login": "key",
    "password": "s3cr3t-a",
    "extra": {"root": "s3://bucket/prefix", "archive_id": "demo", "s3_endpoint": "http://127.0.0.1:9"},
}
_CLUSTER = {
    "conn_type": "pumphouse_cluster",
    "password": "s3cr3t-h",
    "extra": {
        "url": "file:///somewhere",
        "history": "mysql://root@127.0.0.1:1/a.b",
        "operator_token": "s3cr3t-of-operators",
    },
}
_TARGET = {
    "conn_type": "pumphouse_downstream",
    "host": "db.example",
    "port": 4000,
    "login": "loader",
    "password": "s3cr3t-d",
    "extra": {"task": "dr"},
}


def _env(**connections: Any) -> dict[str, str]:
    return {f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in connections.items()}


_READ = """
import json
from binlog_airflow.hooks import settings_from
from pumphouse.errors import ConfigError
try:
    s = settings_from(downstream="pumphouse_downstream")
    print(json.dumps({"root": s.archive.root, "id": s.archive.archive_id, "key": s.archive.s3_access_key,
        "secret": s.archive.s3_secret_key.get_secret_value(), "url": s.cluster.url, "history": s.history.history,
        "hp": s.history.history_password.get_secret_value(), "host": s.target.host, "port": s.target.port,
        "user": s.target.user, "task": s.load.task, "token": s.cluster.operator_tokens, "shown": repr(s)}))
except ConfigError as error:
    print(json.dumps({"error": str(error)}))
"""


@pytest.mark.row("O1", "O2")
def test_three_connections_become_one_set_of_settings(in_airflow: Callable[..., Any]) -> None:
    found = in_airflow(
        _READ, **_env(pumphouse_archive=_ARCHIVE, pumphouse_cluster=_CLUSTER, pumphouse_downstream=_TARGET)
    )
    shown = found.pop("shown")
    assert found == {
        "root": "s3://bucket/prefix", "id": "demo", "key": "key", "secret": "s3cr3t-a", "url": "file:///somewhere",
        "history": "mysql://root@127.0.0.1:1/a.b", "hp": "s3cr3t-h", "host": "db.example", "port": 4000, "user": "loader",
        "task": "dr", "token": ["s3cr3t-of-operators"],
    }  # fmt: skip
    assert "s3cr3t" not in shown


@pytest.mark.row("A6", "O2")
def test_a_connection_of_kafka_is_its_section_and_without_one_the_settings_count(
    in_airflow: Callable[..., Any],
) -> None:
    script = """
import json
from binlog_airflow.hooks import KAFKA, settings_from
s = settings_from(archive=None, cluster=None, kafka=KAFKA).kafka
print(json.dumps([s.bootstrap_servers, s.topic, s.tables, s.security_protocol, s.sasl_username,
    s.sasl_password.get_secret_value(), repr(s)]))
"""
    kafka = {
        "conn_type": "pumphouse_kafka", "login": "shop", "password": "s3cr3t-k",
        "extra": {"bootstrap_servers": "a:1,b:2", "topic": "t", "tables": "shop.*,d.t", "security_protocol": "SASL_SSL"},
    }  # fmt: skip
    *found, shown = in_airflow(script, **_env(pumphouse_kafka=kafka))
    assert found == ["a:1,b:2", "t", ["shop.*", "d.t"], "SASL_SSL", "shop", "s3cr3t-k"]
    assert "s3cr3t" not in shown
    assert in_airflow(script, PUMPHOUSE_KAFKA__BOOTSTRAP_SERVERS="c:3")[0] == "c:3"
    # A password of the settings never goes to brokers that a connection names.
    del kafka["login"], kafka["password"]
    assert in_airflow(script, **_env(pumphouse_kafka=kafka), PUMPHOUSE_KAFKA__SASL_PASSWORD="s3cr3t-e")[4:6] == ["", ""]


@pytest.mark.row("O2")
def test_a_misspelt_extra_is_refused_by_name(in_airflow: Callable[..., Any]) -> None:
    wrong = {**_ARCHIVE, "extra": {"rooot": "s3://bucket"}}
    found = in_airflow(_READ, **_env(pumphouse_archive=wrong, pumphouse_cluster=_CLUSTER, pumphouse_downstream=_TARGET))
    assert "rooot" in found["error"]
    assert "root" in found["error"].split("known are")[1]


@pytest.mark.row("O2")
def test_a_connection_of_another_type_is_refused(in_airflow: Callable[..., Any]) -> None:
    found = in_airflow(
        _READ,
        **_env(
            pumphouse_archive={**_ARCHIVE, "conn_type": "aws"},
            pumphouse_cluster=_CLUSTER,
            pumphouse_downstream=_TARGET,
        ),
    )
    assert "'aws'" in found["error"]


_RESTORE = """
import json
from binlog_airflow.hooks import settings_from
from pumphouse.errors import ConfigError
try:
    s = settings_from(restore="pumphouse_restore")
    print(json.dumps({name: [each.host, each.port, each.user, each.password.get_secret_value(), each.unix_socket]
        for name, each in (("target", s.target), ("restore_target", s.restore_target))} | {"task": s.load.task}))
except ConfigError as error:
    print(json.dumps({"error": str(error)}))
"""
_PRODUCTION = {
    "PUMPHOUSE_TARGET__HOST": "production",
    "PUMPHOUSE_TARGET__PASSWORD": "of-production",
    "PUMPHOUSE_TARGET__UNIX_SOCKET": "/production.sock",
    "PUMPHOUSE_RESTORE_TARGET__UNIX_SOCKET": "/another.sock",
}


@pytest.mark.row("O2", "R1")
@pytest.mark.parametrize(
    ("connection", "missing"),
    [
        ({"port": 3307}, "host and login"),
        ({"host": "restore"}, "login"),
        ({"login": "root", "password": "p"}, "host"),
        ({}, "host and login"),
    ],
)
def test_a_restore_connection_gets_nothing_of_another_server(
    in_airflow: Callable[..., Any], connection: dict[str, Any], missing: str
) -> None:
    named = {"conn_type": "pumphouse_downstream", **connection}
    connections = _env(pumphouse_archive=_ARCHIVE, pumphouse_cluster=_CLUSTER, pumphouse_restore=named)
    found = in_airflow(_RESTORE, **connections, **_PRODUCTION)
    assert f"'pumphouse_restore' names no {missing}:" in found["error"]
    assert "Admin > Connections" in found["error"]


@pytest.mark.row("O2", "R1")
def test_a_restore_connection_is_the_restore_target_and_that_of_loads_the_target(
    in_airflow: Callable[..., Any],
) -> None:
    connections = {"pumphouse_archive": _ARCHIVE, "pumphouse_cluster": _CLUSTER}
    mine = {"conn_type": "pumphouse_downstream", "host": "restore", "login": "me"}
    found = in_airflow(_RESTORE, **_env(**connections, pumphouse_restore=mine), **_PRODUCTION)
    assert found["restore_target"] == ["restore", 3306, "me", "", ""]
    assert found["target"][0] == "production", "no connection names it, so the settings do"
    found = in_airflow(
        _RESTORE, **_env(**connections, pumphouse_restore=mine, pumphouse_downstream=_TARGET), **_PRODUCTION
    )
    assert found == {
        "restore_target": ["restore", 3306, "me", "", ""],
        "target": ["db.example", 4000, "loader", "s3cr3t-d", ""],
        "task": "main",
    }


@pytest.mark.row("O2")
def test_the_connection_of_loads_may_leave_its_server_to_the_settings_as_a_whole(
    in_airflow: Callable[..., Any],
) -> None:
    connections = {"pumphouse_archive": _ARCHIVE, "pumphouse_cluster": _CLUSTER}
    bare: dict[str, Any] = {"conn_type": "pumphouse_downstream"}
    assert in_airflow(_READ, **_env(**connections, pumphouse_downstream=bare), **_PRODUCTION)["host"] == "production"
    half = {**bare, "port": 3307}
    assert (
        "names no host" in in_airflow(_READ, **_env(**connections, pumphouse_downstream=half), **_PRODUCTION)["error"]
    )


@pytest.mark.row("O2")
def test_the_test_button_of_a_cluster_makes_none(in_airflow: Callable[..., Any], tmp_path: Path) -> None:
    cluster = {"conn_type": "pumphouse_cluster", "extra": {"url": f"file://{tmp_path}/none"}}
    script = """
import json
from binlog_airflow.hooks import ClusterHook
print(json.dumps(ClusterHook().test_connection()))
"""
    done, said = in_airflow(script, **_env(pumphouse_cluster=cluster))
    assert (done, "there is no cluster" in said) == (False, True)
    assert not (tmp_path / "none").exists()


@pytest.mark.row("A1", "O2")
def test_the_test_button_of_an_archive_reads_no_folder_in_its_root(
    in_airflow: Callable[..., Any], tmp_path: Path
) -> None:
    """The root of a file system has a `lost+found` that root alone reads."""
    (tmp_path / "lost+found").mkdir()
    archive = {"conn_type": "pumphouse_archive", "extra": {"root": f"file://{tmp_path}"}}
    script = """
import json, os
from binlog_airflow.hooks import ArchiveHook
scandir = os.scandir
def forbidden(path):
    if str(path).endswith("lost+found"):
        raise PermissionError(13, "Permission denied", path)
    return scandir(path)
os.scandir = forbidden
print(json.dumps(ArchiveHook().test_connection()))
"""
    assert in_airflow(script, **_env(pumphouse_archive=archive)) == [True, f"file://{tmp_path} answers"]


@pytest.mark.row("A5", "O2")
def test_a_copy_has_a_connection_of_its_own_and_nothing_of_the_archives(in_airflow: Callable[..., Any]) -> None:
    read = """
import json
from binlog_airflow.hooks import settings_from
found = settings_from(cluster=None).archive
print(json.dumps({name: getattr(found, name) for name in ("root", "copy_root", "copy_s3_endpoint", "copy_s3_access_key",
    "copy_s3_region", "copy_s3_encryption", "s3_access_key")}))
"""
    there = {
        "conn_type": "pumphouse_archive",
        "login": "other",
        "password": "x",
        "extra": {"root": "s3://other/prefix"},
    }
    there["extra"] |= {"s3_encryption": "AES256"}
    found = in_airflow(read, **_env(pumphouse_archive=_ARCHIVE, pumphouse_archive_copy=there))
    assert found == {
        "root": "s3://bucket/prefix", "copy_root": "s3://other/prefix", "copy_s3_endpoint": "",
        "copy_s3_access_key": "other", "copy_s3_region": "us-east-1", "copy_s3_encryption": "AES256",
        "s3_access_key": _ARCHIVE["login"],
    }  # fmt: skip
    found = in_airflow(read, **_env(pumphouse_archive=_ARCHIVE))
    assert (found["copy_root"], found["copy_s3_access_key"], found["copy_s3_region"]) == ("", "", "")


@pytest.mark.row("O2")
def test_connection_types_are_known_to_airflow_with_their_forms(in_airflow: Callable[..., Any]) -> None:
    found = in_airflow("""
import json
from airflow.providers_manager import ProvidersManager
hooks = ProvidersManager().hooks
print(json.dumps({k: (v.connection_type if v else None) for k, v in hooks.items() if k.startswith("pumphouse")}))
""")
    assert found == {
        f"pumphouse_{name}": f"pumphouse_{name}" for name in ("archive", "cluster", "downstream", "kafka", "source")
    }


@pytest.mark.row("O1")
def test_the_retry_policy_asks_the_error(in_airflow: Callable[..., Any]) -> None:
    found = in_airflow("""
import json
from binlog_airflow.retry import BinlogRetryPolicy
from pumphouse import errors
policy = BinlogRetryPolicy()
print(json.dumps({e.__name__: policy.evaluate(e("x"), 1, 3).action.value for e in
    (errors.WindowHeld, errors.BadManifest, errors.GapError, errors.StoreUnavailable)} |
    {"killed": policy.evaluate(RuntimeError("x"), 1, 3).action.value}))
""")
    assert found == {
        "WindowHeld": "retry", "BadManifest": "fail", "GapError": "fail", "StoreUnavailable": "retry", "killed": "default",
    }  # fmt: skip


_AIMED = """
import json
from airflow.sdk.exceptions import AirflowNotFoundException
from binlog_airflow.hooks import settings_from
found = {}
for name in ("pumphouse_downstream", "copy", "third", "fourth"):
    try:
        s = settings_from(downstream=name)
        found[name] = [s.target.host, s.target.user, s.target.schema_name, s.load.task, [r.table for r in s.load.rules]]
    except AirflowNotFoundException:
        found[name] = None
print(json.dumps({"found": found, "loaded": settings_from().loaded, "waited_for": settings_from().waited_for}))
"""


@pytest.mark.row("O2", "L7")
def test_a_named_target_is_its_connection_with_the_rules_of_its_section_or_the_section_alone(
    in_airflow: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "p.toml").write_text(
        '[[load.rules]]\ndo = "skip"\ntable = "a.main"\nwhy = "w"\n'
        '[targets.copy]\nhost = "section"\nuser = "me"\nschema_name = "second"\n'
        '[[targets.copy.rules]]\ndo = "skip"\ntable = "a.copy"\nwhy = "w"\n'
        '[targets.third]\nhost = "alone"\nuser = "me"\n'
    )
    connections = _env(
        pumphouse_archive=_ARCHIVE,
        pumphouse_cluster=_CLUSTER,
        pumphouse_downstream=_TARGET,
        copy={**_TARGET, "host": "connection"},
    )
    names = ["pumphouse_downstream", "copy", "third"]
    assert in_airflow(_AIMED, PUMPHOUSE_CONFIG=str(tmp_path / "p.toml"), **connections) == {
        "found": {
            "pumphouse_downstream": ["db.example", "loader", "pumphouse", "dr", ["a.main"]],
            "copy": ["connection", "loader", "second", "dr", ["a.copy"]],
            "third": ["alone", "me", "pumphouse", "main", []],
            "fourth": None,
        },
        "loaded": names,
        "waited_for": names,
    }
