"""The page's answers over a real archive: no text of others is markup, and no secret of a connection is shown."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from binlog_airflow.installation import Installation
from pumphouse.archive.marks import mark
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.registry.file import FileCluster
from tests.support.madearchive import MadeSource
from tests.support.waiting import eventually

# Of what Airflow itself imports.
pytestmark = [pytest.mark.row("O2"), pytest.mark.filterwarnings("ignore:Using `httpx`")]
EVIL, SECRET = "<script>alert(1)</script>", "TOP-SECRET"


class Client:
    """A browser of the app, without Airflow around it."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def get(self, path: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://airflow") as client:
                return await client.get(path)

        return asyncio.run(ask())


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    from binlog_airflow.page import app
    from binlog_airflow.page.known import Form, Known

    cluster = FileCluster(tmp_path / "cluster")
    source = MadeSource(tmp_path / "archive", cluster.cluster_id())
    source.ts = int(cluster.tso())
    mark(source.archive, source.genesis(), EVIL)
    pump = NodeStatus(node_id="pump-1", host=EVIL, state=NodeState.ONLINE, update_ts=cluster.tso())
    cluster.update_node(NodeKind.PUMP, pump.node_id, lambda _: pump)
    for name, found in {
        "ARCHIVE": {"login": "key", "extra": {"root": f"file://{tmp_path}/archive"}},
        "CLUSTER": {"extra": {"url": f"file://{tmp_path}/cluster"}},
        "DOWNSTREAM": {"host": "127.0.0.1", "port": 1, "login": EVIL},
    }.items():
        connection = {"conn_type": f"pumphouse_{name.lower()}", "password": SECRET, **found}
        monkeypatch.setenv(f"AIRFLOW_CONN_PUMPHOUSE_{name}", json.dumps(connection))
    made = app.make()
    form = Form(dag_id="binlog_restore", paused=False, targets=(EVIL,))
    one = Known(prefix="", here=Installation(), dags={}, form=form)
    made.dependency_overrides[app._visible] = lambda: [one]
    return Client(made)


def test_no_name_or_message_is_markup_and_no_secret_is_shown(client: Client) -> None:
    page = eventually(lambda: (text := client.get("/").text).count("&lt;script&gt;") >= 4 and text)
    for path in ("/", "/tile", "/status.json"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert SECRET not in answer.text
        assert path.endswith("json") or EVIL not in answer.text
        assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "safe until" in page
    assert client.get("/status.json").headers["content-type"] == "application/json"
    assert client.get(f"/?cluster={EVIL}").status_code == 404


def test_an_archive_that_is_gone_is_not_safe(client: Client, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "archive")
    assert ">Not safe<" in client.get("/").text
