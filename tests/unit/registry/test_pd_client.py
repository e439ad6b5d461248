"""PD's client against stand-in members: cluster id, clock, leader changes, regions, safe points (row W4)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from pumphouse.errors import ClusterMismatch, ClusterUnavailable, ConfigError
from pumphouse.model.tso import compose, physical_ms
from pumphouse.proto import metapb_pb2 as metapb
from pumphouse.proto import pdpb_pb2 as pdpb
from pumphouse.proto.pdpb_pb2_grpc import PDServicer, add_PDServicer_to_server
from pumphouse.registry import pd_tso
from pumphouse.registry.pd_client import PdClient
from pumphouse.registry.pd_members import PdOptions, parse_endpoints
from pumphouse.registry.pd_tso import TsoStream, timestamps_of
from pumphouse.registry.regions import Located, RegionCache
from pumphouse.settings import TlsSettings
from tests.support.certs import Authority
from tests.support.pd import StandInPd

pytestmark = pytest.mark.row("W4")

QUICK = PdOptions(timeout_s=0.4, init_tries=2, init_wait_s=0.05, deadline_s=4.0)


@pytest.fixture
def pd() -> Iterator[StandInPd]:
    with StandInPd(3) as members:
        yield members


@pytest.fixture
def client(pd: StandInPd) -> Iterator[PdClient]:
    found = PdClient(",".join(pd.addresses), options=QUICK)
    yield found
    found.close()


def test_addresses_come_bare_or_as_urls_and_https_needs_a_ca() -> None:
    text = "10.0.0.1:2379, http://10.0.0.2:2379/,10.0.0.1:2379,[::1]:2379"
    assert parse_endpoints(text, TlsSettings()) == ("10.0.0.1:2379", "10.0.0.2:2379", "[::1]:2379")
    assert parse_endpoints("https://a:1", TlsSettings(ca=Path("/ca"))) == ("a:1",)
    for wrong in ("", "https://a:1", "10.0.0.1", "a:x", "ftp://a:1", " , "):
        with pytest.raises(ConfigError):
            parse_endpoints(wrong, TlsSettings())


def test_members_of_two_clusters_are_refused() -> None:
    with StandInPd() as one, StandInPd() as other:
        other.state.cluster_id += 1
        with pytest.raises(ConfigError, match="different clusters"):
            PdClient(f"{one.addresses[0]},{other.addresses[0]}", options=QUICK)


def test_one_answering_address_is_enough_and_none_is_an_error_after_the_tries(pd: StandInPd) -> None:
    pd.stop(0)
    pd.stop(1)
    pd.state.leader = 2
    client = PdClient(",".join(pd.addresses), options=QUICK)
    assert client.cluster_id == pd.state.cluster_id
    assert client.tso() > 0
    client.close()
    pd.stop(2)
    with pytest.raises(ClusterUnavailable, match="does not answer"):
        PdClient(",".join(pd.addresses), options=QUICK)


class _Etcd(PDServicer):
    """What a server of gRPC that is no PD says."""

    def GetMembers(self, request: pdpb.GetMembersRequest, context: grpc.ServicerContext) -> pdpb.GetMembersResponse:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown service pdpb.PD")
        raise AssertionError("aborted")


@pytest.mark.parametrize("etcd_first", [True, False])
def test_an_address_that_is_no_pd_ends_a_start_only_when_no_other_is_merely_down(
    pd: StandInPd, etcd_first: bool
) -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    add_PDServicer_to_server(_Etcd(), server)
    etcd = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        pd.stop(0)
        both = [etcd, pd.addresses[0]]
        with pytest.raises(ClusterUnavailable, match="does not answer"):
            PdClient(",".join(both if etcd_first else both[::-1]), options=QUICK)
        pd.start(0)
        client = PdClient(",".join(both), options=QUICK)
        assert client.cluster_id == pd.state.cluster_id
        client.close()
        with pytest.raises(ConfigError, match="is no PD"):
            PdClient(etcd, options=QUICK)
    finally:
        server.stop(0).wait()


def test_timestamps_are_fresh_and_rise(pd: StandInPd, client: PdClient) -> None:
    before = compose(int(time.time() * 1000) - 1)
    found = [client.tso() for _ in range(50)]
    assert found == sorted(set(found))
    assert found[0] >= before
    assert pd.state.tso_streams == 1


@pytest.mark.parametrize("suffix_bits", [0, 2])
def test_callers_that_wait_together_share_a_request_and_each_gets_its_own(
    pd: StandInPd, client: PdClient, suffix_bits: int
) -> None:
    pd.state.suffix_bits = suffix_bits
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: client.tso(), range(400)))
    assert len(set(found)) == 400
    assert sum(pd.state.tso_requests) == 400  # no timestamp is taken that nobody waits for
    assert len(pd.state.tso_requests) < 400
    assert {ts % (1 << suffix_bits) for ts in found} == {0}


def test_callers_that_want_many_share_requests_too_and_none_is_too_large(
    pd: StandInPd, client: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pd_tso, "MOST_AT_ONCE", 10)
    pd.state.suffix_bits = 1
    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(client.tsos, [*range(1, 9)] * 10 + [25]))
    assert [len(each) for each in taken] == [*range(1, 9)] * 10 + [25]
    assert all(each == sorted(each) for each in map(list, taken))
    assert len({ts for each in taken for ts in each}) == 385
    assert sum(pd.state.tso_requests) == 385
    assert max(pd.state.tso_requests) <= 10


def test_the_answer_names_the_largest_of_a_batch() -> None:
    def answer(count: int, logical: int, bits: int = 0) -> pdpb.TsoResponse:
        return pdpb.TsoResponse(count=count, timestamp=pdpb.Timestamp(physical=9, logical=logical, suffix_bits=bits))

    assert list(timestamps_of(answer(3, 7), 3)) == [compose(9, 5), compose(9, 6), compose(9, 7)]
    assert list(timestamps_of(answer(3, 9, 2), 3)) == [compose(9, 1), compose(9, 5), compose(9, 9)]
    for wrong in (answer(2, 7), answer(3, 1), answer(3, 1 << 18)):
        with pytest.raises(ValueError, match="asked for 3"):
            timestamps_of(wrong, 3)


def test_a_new_leader_is_found_when_the_old_one_leads_no_more(pd: StandInPd, client: PdClient) -> None:
    last = 0
    for leader in (0, 1, 2, 0):
        pd.state.leader = leader
        ts = client.tso()
        assert ts > last
        last = ts
        assert client.gc_safe_point() == 0


def test_a_leader_that_dies_under_load_costs_time_only(pd: StandInPd, client: PdClient) -> None:
    stop = threading.Event()

    def take() -> list[int]:
        found: list[int] = []
        while not stop.is_set():
            found.append(client.tso())
        return found

    with ThreadPoolExecutor(4) as pool:
        takers = [pool.submit(take) for _ in range(4)]
        time.sleep(0.2)
        pd.stop(0)
        pd.state.leader = None  # an election
        time.sleep(0.3)
        pd.state.leader = 1
        fence = client.tso()
        time.sleep(0.2)
        stop.set()
        lists = [taker.result() for taker in takers]
    every = [ts for found in lists for ts in found]
    assert len(set(every)) == len(every)
    assert all(found == sorted(found) and found[-1] > fence for found in lists)


def test_a_silent_stream_is_given_up_after_its_time(pd: StandInPd, client: PdClient) -> None:
    client.tso()
    pd.state.mute = True
    threading.Timer(0.6, lambda: setattr(pd.state, "mute", False)).start()
    assert client.tso() > 0
    assert pd.state.tso_streams >= 2


def test_without_a_leader_the_question_ends_with_an_error(pd: StandInPd, client: PdClient) -> None:
    client.tso()
    pd.state.leader = None
    client.members.options = PdOptions(timeout_s=0.2, deadline_s=0.6)
    with pytest.raises(ClusterUnavailable):
        client.tso()
    with pytest.raises(ClusterUnavailable):
        client.gc_safe_point()
    pd.state.leader = 1
    client.members.options = QUICK
    assert client.tso() > 0


def test_a_clock_that_goes_back_is_never_handed_out(pd: StandInPd, client: PdClient) -> None:
    last = client.tso()

    def back(response: pdpb.TsoResponse) -> None:
        response.timestamp.physical = physical_ms(last) - 5

    client.members.options = PdOptions(timeout_s=0.2, deadline_s=0.6)
    pd.state.spoil = back
    with pytest.raises(ClusterUnavailable, match="went back"):
        client.tso()
    pd.state.spoil = None
    client.members.options = QUICK
    assert client.tso() > last


def test_an_address_that_belongs_to_another_cluster_now_is_refused(pd: StandInPd, client: PdClient) -> None:
    client.tso()

    def other(response: pdpb.TsoResponse) -> None:
        response.header.cluster_id = 5

    pd.state.spoil = other
    with pytest.raises(ClusterMismatch):
        client.tso()


def region(number: int, start: bytes, end: bytes) -> metapb.Region:
    peers = [metapb.Peer(id=number * 10 + store, store_id=store) for store in (1, 2)]
    return metapb.Region(id=number, start_key=start, end_key=end, peers=peers)


def located(number: int, start: bytes, end: bytes) -> Located:
    found = region(number, start, end)
    return Located(region=found, leader=found.peers[0])


def test_regions_are_looked_up_once_until_they_are_forgotten(pd: StandInPd, client: PdClient) -> None:
    one, two = region(1, b"", b"m"), region(2, b"m", b"")
    pd.state.regions = [(one, one.peers[0]), (two, metapb.Peer())]
    pd.state.stores = {1: metapb.Store(id=1, address="h:1"), 2: metapb.Store(id=2, address="h:2", state="Tombstone")}
    assert client.locate(b"a").region.id == 1
    assert client.locate(b"b").leader.store_id == 1
    second = client.locate(b"m")
    assert (second.region.id, second.leader.store_id) == (2, 1)
    assert pd.state.region_questions == 2
    client.move_leader(second, two.peers[1])
    assert client.locate(b"z").leader.store_id == 2
    client.move_leader(client.locate(b"z"), metapb.Peer(id=99, store_id=9))
    assert client.locate(b"z").leader.store_id == 1
    assert pd.state.region_questions == 3
    assert client.store_address(1) == "h:1"
    with pytest.raises(ClusterUnavailable, match="no address"):
        client.store_address(2)
    pd.state.regions = []
    assert client.locate(b"a").region.id == 1
    client.forget(client.locate(b"a"))
    with pytest.raises(ClusterUnavailable, match="no region"):
        client.locate(b"a")


def test_the_region_cache_keeps_no_overlaps_and_is_bounded() -> None:
    cache = RegionCache(limit=3)
    cache.put(located(1, b"a", b"m"))
    cache.put(located(2, b"m", b""))
    cache.put(located(3, b"c", b"p"))  # a merge: over the end of the first and the start of the second
    assert cache.get(b"d").region.id == 3  # type: ignore[union-attr]
    assert cache.get(b"a") is None
    assert cache.get(b"q") is None
    for number in range(4, 9):
        cache.put(located(number, b"x%d" % number, b"x%d" % (number + 1)))
    assert len(cache) == 3
    assert cache.get(b"x8").region.id == 8  # type: ignore[union-attr]
    cache.put(located(20, b"", b""))
    assert len(cache) == 1
    cache.forget(located(20, b"", b""))  # not the one that is known
    assert len(cache) == 1


def test_a_service_safe_point_is_taken_refused_and_removed_as_pd_does(pd: StandInPd, client: PdClient) -> None:
    assert client.hold_gc("pumphouse/a", 1000, 60) <= 1000
    assert pd.state.collect(5000) == 1000
    assert client.hold_gc("pumphouse/a", 500, 60) == 1000  # below what all hold: refused
    assert pd.state.services["pumphouse/a"][0] == 1000
    client.release_gc("pumphouse/a")
    assert pd.state.collect(5000) == 5000


def test_a_pd_without_a_store_is_asked_once_and_the_way_out_is_said(pd: StandInPd) -> None:
    pd.state.bootstrapped = False
    patient = PdClient(",".join(pd.addresses), options=replace(QUICK, deadline_s=3600.0))
    with pytest.raises(ClusterUnavailable, match=r"NOT_BOOTSTRAPPED.*start a TiKV"):
        patient.hold_gc("a", 10, 60)
    patient.close()


def test_both_sides_of_a_fork_go_on(pd: StandInPd) -> None:
    code = f"""
import os, sys
from pumphouse.registry.pd_client import PdClient
client = PdClient("{",".join(pd.addresses)}")
before = client.tso()
pid = os.fork()
if not pid:
    os._exit(0 if client.tso() > before and client.gc_safe_point() == 0 else 1)
status = os.waitpid(pid, 0)[1]
assert client.tso() > before
client.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], timeout=30, capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[3], env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


def fork_before_the_next_calls(client: PdClient, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """As many times, what a fork does comes between the look for a stub and the call on it."""
    members, stub = client.members, client.members.stub
    left = [None] * calls

    def stub_of_a_closed_channel(target: str, kind: type[object]) -> object:
        found = stub(target, kind)
        if left:
            left.pop()
            members.before_fork()
        return found

    monkeypatch.setattr(members, "stub", stub_of_a_closed_channel)


@pytest.mark.parametrize("forks", [1, 3, 5])
def test_a_fork_just_before_a_call_costs_another_try(
    client: PdClient, monkeypatch: pytest.MonkeyPatch, forks: int
) -> None:
    fork_before_the_next_calls(client, monkeypatch, forks)
    assert client.gc_safe_point() == 0


@pytest.mark.parametrize("forks", [1, 3, 5])
def test_a_fork_just_before_the_clocks_stream_is_opened_costs_another_try(
    client: PdClient, monkeypatch: pytest.MonkeyPatch, forks: int
) -> None:
    before = client.tso()
    client._stream.before_fork()
    client.members.before_fork()
    fork_before_the_next_calls(client, monkeypatch, forks)
    assert client.tso() > before


def test_an_unforeseen_error_of_the_clocks_stream_is_not_the_end_of_the_clock(
    client: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, errors = client.members.leader, [RuntimeError("unforeseen")]

    def broken() -> str:
        if errors:
            raise errors.pop()
        return leader()

    monkeypatch.setattr(client.members, "leader", broken)
    assert client.tso() > 0


def test_who_waits_for_a_timestamp_starts_the_thread_that_has_ended(
    client: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive, ends = TsoStream._drive, [True]

    def end(stream: TsoStream, calls: object) -> None:
        if not ends:
            drive(stream, calls)
        ends.clear()

    monkeypatch.setattr(TsoStream, "_drive", end)
    assert client.tso() > 0
    assert not ends


def test_a_child_does_not_wait_for_a_region_that_a_thread_of_its_parent_was_learning() -> None:
    code = """
import os, signal, sys
from pumphouse.proto import metapb_pb2 as metapb
from pumphouse.registry.regions import Located, RegionCache

def put(start, end):
    cache.put(Located(region=metapb.Region(id=1, start_key=start, end_key=end), leader=metapb.Peer()))

cache = RegionCache()
put(b"a", b"m")
with cache._state.lock:  # by another thread, at the time of the fork
    child = os.fork()
    if not child:
        signal.alarm(5)
        put(b"m", b"")
        os._exit(0 if cache.get(b"a") is None and cache.get(b"x") else 1)
    status = os.waitpid(child, 0)[1]
assert cache.get(b"a")
sys.exit(os.waitstatus_to_exitcode(status))
"""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], timeout=30, capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


@pytest.mark.row("W6")
def test_tls_with_client_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = authority.settings("pump", allowed=("pump",))
    with StandInPd(tls=tls) as pd:
        client = PdClient(f"https://{pd.addresses[0]}", tls, QUICK)
        assert client.tso() > 0
        client.close()
        with pytest.raises(ClusterUnavailable):
            PdClient(pd.addresses[0], options=QUICK)
