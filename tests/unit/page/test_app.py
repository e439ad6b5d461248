"""The page's answers over a real archive: no text of others is markup, and no secret of a connection is shown."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from binlog_airflow.installation import Installation
from pumphouse.archive.marks import mark
from pumphouse.errors import BadManifest
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.registry.file import FileCluster
from pumphouse.status.headline import clock
from tests.support.madearchive import MadeSource, column
from tests.support.waiting import eventually

# Of what Airflow itself imports.
pytestmark = [pytest.mark.row("O2"), pytest.mark.filterwarnings("ignore:Using `httpx`")]
EVIL, SECRET = "<script>alert(1)</script>", "TOP-SECRET"
KINDS = {"RESTORE": "pumphouse_downstream"}
LISTS, CHECKS = ("tables", "keys"), ("verify", "dry_run", "accept_losses")
TEXTS = ("to", "as", "into_database", "key_from", "key_to", "base")


class Client:
    """A browser of the app, without Airflow around it."""

    def __init__(self, app: FastAPI, known: list[Any]) -> None:
        self._app = app
        self.known = known

    def get(self, path: str) -> httpx.Response:
        return self.ask("GET", path)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://airflow") as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())

    def check(self, **conf: Any) -> dict[str, str]:
        """What the page's side says of a filled-in form."""
        answer = self.ask("POST", "/check", json={"target": "pumphouse_restore", **conf})
        assert answer.status_code == 200
        return dict(answer.json())


class Source(MadeSource):
    """A source with a table whose rows went in one transaction, ``deleted``, and which was then dropped."""

    deleted = 0


@pytest.fixture
def source(tmp_path: Path) -> Source:
    source = Source(tmp_path / "archive", FileCluster(tmp_path / "cluster").cluster_id())
    source.ts = int(FileCluster(tmp_path / "cluster").tso())
    for table in "tu":
        source.create_table(table, [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as txn:
        for id_ in range(3):
            txn.insert("t", id=id_)
            txn.insert("u", id=id_)
    with source.txn() as txn:
        for id_ in range(3):
            txn.delete("t", id_)
        txn.delete("u", 0)
    source.deleted = source.ts
    source.drop_table("t")
    source.ts += 5_000 << 18  # there are whole seconds in it
    source.cut()
    return source


@pytest.fixture
def client(tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch) -> Client:
    from binlog_airflow.page import app
    from binlog_airflow.page.known import Field, Form, Known

    cluster = FileCluster(tmp_path / "cluster")
    mark(source.archive, source.archive.genesis().ts, EVIL)
    pump = NodeStatus(node_id="pump-1", host=EVIL, state=NodeState.ONLINE, update_ts=cluster.tso())
    cluster.update_node(NodeKind.PUMP, pump.node_id, lambda _: pump)
    for name, found in {
        "ARCHIVE": {"login": "key", "extra": {"root": f"file://{tmp_path}/archive"}},
        "CLUSTER": {"extra": {"url": f"file://{tmp_path}/cluster"}},
        "DOWNSTREAM": {"host": "127.0.0.1", "port": 1, "login": EVIL},
        "RESTORE": {"host": "127.0.0.1", "port": 1, "login": EVIL},
        "SOURCE": {"host": "127.0.0.1", "port": 1, "login": EVIL},
    }.items():
        connection = {"conn_type": KINDS.get(name, f"pumphouse_{name.lower()}"), "password": SECRET, **found}
        monkeypatch.setenv(f"AIRFLOW_CONN_PUMPHOUSE_{name}", json.dumps(connection))
    made = app.make()
    fields = {name: Field(title=EVIL, says=EVIL) for name in TEXTS}
    fields |= {name: Field(title=EVIL, says=EVIL, kind="lines") for name in LISTS}
    fields |= {name: Field(title=EVIL, says=EVIL, kind="check") for name in CHECKS}
    fields["target"] = Field(title=EVIL, kind="choice", choices=(EVIL, "pumphouse_restore", "pumphouse_source"))
    form = Form(dag_id="binlog_restore", paused=False, fields=fields)
    one = Known(prefix="", here=Installation(), dags={}, form=form)
    known = [one]
    made.dependency_overrides[app._visible] = lambda: known
    return Client(made, known)


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


def test_a_moment_that_cannot_be_restored_is_refused_with_the_range_before_anything_runs(
    client: Client, source: Source
) -> None:
    first, end = source.archive.genesis().ts, source.archive.end()
    moments = {first - 1: "before the first moment", end + 1: "not archived yet", end + (60_000 << 18): "in the future"}
    for ts, why in moments.items():
        said = client.check(to=str(ts))
        assert said["moment"] == ""
        assert why in said["refused"]
        assert ("the next snapshot brings in" in said["refused"]) is (why == "not archived yet")
        ((low, high),) = re.findall(r"from (\S+ \S+)Z to (\S+ \S+)Z, or latest", said["refused"])
        assert (clock(first) <= low, high) == (True, clock(end)[:-1])
        assert client.check(to=f"{low}Z")["refused"] == "", "what it names, it takes"
    seen = client.check(to="latest")["moment"]
    later = source.cut()
    assert later > end
    assert client.check(to=str(later))["refused"] == "", f"it was behind {seen}, and no longer is"
    assert client.check(to="after lunch")["refused"].startswith("'after lunch' is no time")
    ddl = source.jobs[-1]
    for good, at in ((str(end), end), (f"before DDL {ddl.job.id}", ddl.commit_ts - 1)):
        said = client.check(to=good)
        assert said["refused"] == ""
        assert clock(at) in said["moment"]
    said = client.check(to="latest")
    assert said["refused"] == ""
    assert {clock(end), clock(later)} & {said["moment"].removeprefix("the archive's end, ")}


@pytest.mark.parametrize(
    ("conf", "why"),
    [
        ({"target": "pumphouse_source"}, "the source is restored to by tables alone"),
        ({"as": "d.t2"}, 'for tables alone: "Name there" (fill in "Tables", or leave "Name there" empty)'),
        ({"keys": ["1"], "key_to": "7"}, 'leave "Keys" and "Key to" empty'),
        ({"tables": ["t"]}, "t is no table"),
        ({"tables": ["d.u", "d.uu"]}, "the source has no table d.uu at"),
        ({"tables": ["d.uu"]}, "did you mean d.u?"),
        ({"tables": ["d.t"]}, "dropped it at"),
        ({"tables": ["x.%"]}, "the source has no table x.% at"),
        ({"base": "x"}, "'x' is no time"),
        ({"target": "pumphouse_archive", "tables": ["d.t"]}, "none of the targets that the form offers"),
    ],
)
def test_what_is_wrong_with_a_form_by_itself_is_refused_before_anything_runs(
    client: Client, conf: dict[str, Any], why: str
) -> None:
    said = client.check(to="latest", **conf)
    assert why in said["refused"]
    assert said["moment"].startswith("the archive's end")
    assert client.check(to="latest", target="pumphouse_source", tables=["d.u"], **{"as": "d.t2"})["refused"] == ""


def test_a_table_of_the_moment_is_taken_though_it_was_dropped_since_and_an_unread_archive_is_the_runs_to_tell(
    client: Client, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.check(to=str(source.deleted), tables=["d.t", "D.U"])["refused"] == ""
    assert client.check(to="latest", tables=["d.%"])["refused"] == ""

    def damaged(*_: object, **__: object) -> None:
        raise BadManifest("a window is damaged")

    monkeypatch.setattr("pumphouse.archive.view.read_view", damaged)
    assert client.check(to="latest", tables=["d.uu"])["refused"] == ""


def test_a_search_finds_the_delete_and_the_drop_with_the_moment_before_each(client: Client, source: Source) -> None:
    page = client.get("/search?since=1%20day%20ago&rows=2").text
    at = [page.index(text) for text in ("drop table: d.t", "d.t: 3 deleted")]
    assert at == sorted(at)  # the latest first
    for ts, tables in ((source.deleted, "d.t\nd.u"), (source.jobs[-1].commit_ts, "d.t")):
        assert f'data-moment="{ts - 1}" data-tables="{tables}"' in page
    assert "inserted" not in page
    assert "DROP TABLE" not in page  # the text of a DDL stays in the archive
    assert "pumphouse archive find --from &#39;1 day ago&#39;" in page
    assert "d.t: 3 deleted" not in client.get("/search?since=1%20day%20ago&rows=5").text
    assert "d.t: 3 inserted" in client.get("/search?since=1%20day%20ago&kind=all%20changes").text
    refused = client.get(f"/search?since=1%20day%20ago&table=d.{EVIL}").text
    assert EVIL not in refused
    assert "no table is called d.&lt;script&gt;" in refused
    assert "is no time" in client.get("/search?since=lunch").text
    assert "drop table: d.t" in client.get("/search?since=1%20day%20ago&table=d.%25&kind=DDLs").text


def test_a_search_up_to_the_end_says_when_the_next_snapshot_is_due_and_names_both_sides_of_a_rename(
    client: Client, source: Source
) -> None:
    source.rename_table("u", "v")
    source.cut()
    client.known[0] = replace(client.known[0], snapshot_due=datetime(2026, 11, 29, 16, 38, tzinfo=UTC))
    page = client.get("/search?since=1%20day%20ago&kind=DDLs").text
    assert "the next snapshot, due 2026-11-29 16:38:00Z, brings in" in page
    assert "rename table: d.u to d.v<" in page
    assert f'data-moment="{source.jobs[-1].commit_ts - 1}" data-tables="d.u"' in page


def test_the_target_of_the_form_has_the_name_that_the_table_of_targets_has(client: Client) -> None:
    fields = client.known[0].form.fields
    fields["target"] = replace(fields["target"], choices=("pumphouse_source", "pumphouse_restore", "other"))
    page = client.get("/").text
    assert ">pumphouse_restore: restore_target</option>" in page
    assert ">other</option>" in page


def test_a_search_that_takes_too_long_says_how_far_it_came_and_what_to_type(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from binlog_airflow.page import asked

    monkeypatch.setattr(asked, "_WITHIN_S", -1.0)
    page = client.get("/search?since=1%20day%20ago&table=d.t").text
    assert "reading segments, 0 of 2" in page
    assert "--table d.t --kind delete --kind ddl --rows 1" in page
    assert "not all of that was read" in client.get("/search?since=1%20day%20ago&kind=DDLs").text


def test_a_hundred_thousand_are_not_shown(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from binlog_airflow.page import asked

    monkeypatch.setattr(asked, "_SHOWN", 1)
    page = client.get("/search?since=1%20day%20ago").text
    assert "2 found, of which these are the latest" in page
    assert "drop table: d.t" in page
    assert "deleted<" not in page


@pytest.mark.parametrize("wrong", [{"tables": "d.t"}, {"as": ["x"]}, {"verify": "yes"}, {"what": "x"}])
def test_a_value_that_the_form_does_not_send_is_refused(client: Client, wrong: dict[str, Any]) -> None:
    assert "no field of the form, or has no such value" in client.check(to="latest", **wrong)["refused"]
    assert client.ask("POST", "/check", json={"tables": [1]}).status_code == 422


def test_who_may_start_no_restore_gets_no_form_checked_and_searches_nothing(client: Client) -> None:
    assert client.ask("POST", "/check", json={}).status_code == 200
    one = client.known[0]
    client.known[0] = replace(one, form=None)
    assert client.ask("POST", "/check", json={}).status_code == 403
    assert client.get("/search?since=1%20day%20ago").status_code == 403
