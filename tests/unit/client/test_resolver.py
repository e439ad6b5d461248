"""The resolver server of an application."""

from __future__ import annotations

import json
import time

import grpc
import pytest
from click.testing import CliRunner

from pumphouse.cli import Context
from pumphouse.client.resolver import PENDING, ROLLED_BACK, Outcome, OutcomeKind, ResolverServer, committed
from pumphouse.commands.resolvers import resolver as resolver_command
from pumphouse.errors import (
    BinlogError,
    ClusterMismatch,
    ConfigError,
    PeerRefused,
    PumpUnavailable,
    ResolverOverlap,
    UsageError,
)
from pumphouse.model.tso import Tso
from pumphouse.proto.pumphouse_pb2 import TxnStatusRequest, TxnStatusResponse
from pumphouse.proto.pumphouse_pb2_grpc import TxnResolverStub
from pumphouse.registry.base import STOPPED, ResolverRecord
from pumphouse.registry.file import FileCluster
from pumphouse.registry.resolvers import is_live
from pumphouse.rpc.channel import open_channel
from pumphouse.rpc.status import from_rpc_error
from tests.support import formats
from tests.support.certs import Authority


@pytest.fixture
def cluster(tmp_path):
    return FileCluster(tmp_path / "cluster")


def ask(
    server: ResolverServer, cluster, start_ts: int, *, decide=False, cluster_id=None, tls=None
) -> TxnStatusResponse:
    request = TxnStatusRequest(
        cluster_id=cluster.cluster_id() if cluster_id is None else cluster_id,
        start_ts=start_ts,
        prewrite_key=b"bank/%d" % start_ts,
        decide=decide,
    )
    with open_channel(server.host, tls) as channel:
        try:
            return TxnResolverStub(channel).TxnStatus(request, timeout=5)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error


@pytest.mark.row("P6")
def test_the_applications_answer_reaches_the_pump(cluster):
    asked: list[tuple[int, bytes, bool]] = []

    def answer(start_ts: Tso, key: bytes, decide: bool) -> Outcome:
        asked.append((start_ts, key, decide))
        return committed(Tso(77)) if start_ts == 1 else ROLLED_BACK if decide else PENDING

    with ResolverServer(cluster, "bank", [b"bank/"], answer) as server:
        assert ask(server, cluster, 1) == TxnStatusResponse(outcome="COMMITTED", commit_ts=77)
        assert ask(server, cluster, 2) == TxnStatusResponse(outcome="PENDING")
        assert ask(server, cluster, 2, decide=True) == TxnStatusResponse(outcome="ROLLED_BACK")
    assert asked == [(1, b"bank/1", False), (2, b"bank/2", False), (2, b"bank/2", True)]


@pytest.mark.row("P6")
def test_a_key_of_another_application_is_not_answered(cluster):
    """Its resolver listened on this port before, and the Pump still believes it does."""
    asked: list[bytes] = []

    def answer(_start_ts: Tso, key: bytes, _decide: bool) -> Outcome:
        asked.append(key)
        return ROLLED_BACK

    shop = ResolverServer(cluster, "shop", [b"shop/", b"cart/"], answer)
    with shop, pytest.raises(BinlogError, match="does not answer"):
        ask(shop, cluster, 1, decide=True)
    assert asked == []
    with ResolverServer(cluster, "all", [b""], answer) as server:
        assert ask(server, cluster, 1, decide=True) == TxnStatusResponse(outcome="ROLLED_BACK")
    assert asked == [b"bank/1"]


@pytest.mark.row("P6")
def test_it_is_registered_with_a_heartbeat_while_it_serves(cluster):
    with ResolverServer(cluster, "bank", [b"a", b"b"], lambda *_: PENDING, heartbeat_interval_s=0.05) as server:
        (first,) = cluster.resolvers()
        assert (first.resolver_id, first.host, first.prefixes) == ("bank", server.host, (b"a", b"b"))
        assert is_live(first, time.time())
        until = time.monotonic() + 5
        while cluster.resolvers()[0].heartbeat == first.heartbeat:
            assert time.monotonic() < until
            time.sleep(0.01)
    (left,) = cluster.resolvers()
    assert (left.resolver_id, left.prefixes) == ("bank", (b"a", b"b"))
    assert not is_live(left, time.time())


@pytest.mark.row("P6")
def test_one_that_stops_leaves_its_keys_to_its_next_start_and_gives_them_up_only_when_told(cluster):
    server = ResolverServer(cluster, "bank", [b"bank/"], lambda *_: PENDING)
    server.close()
    assert [(each.prefixes, each.heartbeat) for each in cluster.resolvers()] == [((b"bank/",), STOPPED)]
    with ResolverServer(cluster, "other", [b"bank/"], lambda *_: PENDING):  # nobody live is in its way
        again = ResolverServer(cluster, "third", [b"x"], lambda *_: PENDING)
        again.unregister()
    assert [each.resolver_id for each in cluster.resolvers()] == ["bank", "other"]


@pytest.mark.row("P6")
def test_a_second_resolver_for_the_same_keys_is_refused_and_does_not_listen(cluster):
    with ResolverServer(cluster, "bank", [b"bank/"], lambda *_: PENDING):
        with pytest.raises(ResolverOverlap, match="'bank'"):
            ResolverServer(cluster, "other", [b""], lambda *_: PENDING)
        assert [record.resolver_id for record in cluster.resolvers()] == ["bank"]


def test_one_that_was_replaced_does_not_take_its_successors_registration_away(cluster):
    server = ResolverServer(cluster, "bank", [b"x"], lambda *_: PENDING)
    successor = ResolverRecord(resolver_id="bank", host="elsewhere:1", prefixes=(b"x",), heartbeat=time.time())
    cluster.put_resolver(successor)
    server.close()
    assert cluster.resolvers() == [successor]


@pytest.mark.row("P6")
def test_a_function_that_fails_is_no_answer(cluster):
    def answer(*_):
        raise RuntimeError("the database is down")

    with ResolverServer(cluster, "bank", [b""], answer) as server, pytest.raises(PumpUnavailable, match="database"):
        ask(server, cluster, 1, decide=True)


@pytest.mark.row("P6")
@pytest.mark.parametrize("commit_ts", [0, 9, 10])
def test_a_commit_that_is_not_above_its_start_is_no_answer(cluster, commit_ts):
    impossible = Outcome(OutcomeKind.COMMITTED, Tso(commit_ts))
    with (
        ResolverServer(cluster, "bank", [b""], lambda *_: impossible) as server,
        pytest.raises(Exception, match="not above"),
    ):
        ask(server, cluster, 10)


@pytest.mark.row("W5")
def test_a_pump_of_another_cluster_gets_no_answer(cluster):
    asked = []
    with (
        ResolverServer(cluster, "bank", [b""], lambda *question: asked.append(question)) as server,
        pytest.raises(ClusterMismatch) as error,
    ):
        ask(server, cluster, 1, cluster_id=7)
    assert (error.value.got, error.value.want) == (7, cluster.cluster_id())
    assert asked == []


@pytest.mark.row("W6")
def test_only_pumps_with_an_allowed_certificate_may_ask(cluster, tmp_path):
    authority = Authority(tmp_path / "ca")
    tls = authority.settings("bank", allowed=("pump",))
    with ResolverServer(cluster, "bank", [b""], lambda *_: PENDING, tls=tls) as server:
        assert ask(server, cluster, 1, tls=authority.settings("pump")).outcome == TxnStatusResponse.PENDING
        with pytest.raises(PeerRefused):
            ask(server, cluster, 1, tls=authority.settings("other"))


def test_an_address_that_cannot_be_had_is_an_error(cluster):
    with ResolverServer(cluster, "one", [b"a"], lambda *_: PENDING) as server:
        with pytest.raises(ConfigError, match="cannot listen"):
            ResolverServer(cluster, "two", [b"b"], lambda *_: PENDING, addr=server.host)
        assert len(cluster.resolvers()) == 1


@pytest.mark.row("P6")
def test_an_operator_lists_resolvers_and_forgets_one_that_is_down(cluster):
    def run(*args: str):
        return CliRunner().invoke(resolver_command, list(args), obj=Context(None, {"cluster.url": cluster.url}))

    with ResolverServer(cluster, "bank", [b"bank/"], lambda *_: PENDING) as server:
        head, line = run("list").output.splitlines()
        assert head.split() == ["RESOLVER", "ADDRESS", "STATE", "PREFIXES"]
        assert line.split() == ["bank", server.host, "live", "62616e6b2f"]
        listed = json.loads(run("list", "--json").stdout)
        assert listed == [{"id": "bank", "host": server.host, "state": "live", "prefixes": ["62616e6b2f"]}]
        formats.check("resolvers-output", listed)
        assert isinstance(run("unregister", "bank", "--yes").exception, UsageError)
    assert " down " in run("list").output
    assert isinstance(run("unregister", "shop", "--yes").exception, UsageError)
    assert run("unregister", "bank", "--yes").exit_code == 0
    assert cluster.resolvers() == []
