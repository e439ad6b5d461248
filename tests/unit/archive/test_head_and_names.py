"""HEAD: an end that was cut off shows, one that lags is no fault, a lost one is written again. Content fits its name."""

import json

import pytest

from pumphouse.archive import consumer
from pumphouse.archive.declare import declarations, declare_lost
from pumphouse.archive.head import Head
from pumphouse.archive.verify import verify
from pumphouse.errors import BadManifest
from pumphouse.model.node import NodeKind
from pumphouse.model.tso import Tso
from tests.support.documents import changed


@pytest.fixture
def three(world):
    """An archive of three windows."""
    pump = world.pump()
    world.init()
    for _ in range(3):
        pump.transaction()
        world.snapshot()
    return world


def head_key(world):
    return f"{world.cluster.cluster_id()}/HEAD"


def test_head_names_genesis_at_first_and_then_each_newest_manifest_with_its_digest(world):
    pump = world.pump()
    genesis = world.init()
    assert world.archive.head() == Head(manifest="genesis.json", manifest_sha256=genesis.sha256)
    assert not world.archive.windows()
    for _ in range(2):
        pump.transaction()
        world.snapshot()
        last = world.archive.windows()[-1]
        assert world.archive.head() == Head(manifest=last.key, manifest_sha256=last.sha256)
        assert world.archive.last() == last


@pytest.mark.row("A4")
def test_an_end_that_was_cut_off_is_refused_by_every_reader(three):
    last = three.archive.last()
    del three.store.objects[f"{three.cluster.cluster_id()}/{last.key}"]
    for read in (
        three.archive.end,
        three.archive.last,
        three.archive.windows,
        lambda: three.archive.windows(last.start),
        lambda: three.archive.windows_between(three.archive.genesis().ts, last.start),
    ):
        with pytest.raises(BadManifest, match="is named by HEAD and is not there") as caught:
            read()
        assert "put it back from a copy" in caught.value.hint
    # Another window in its place, which chains, is not the one that was there.
    good = changed(last.to_json(), lambda m: m.update(fence=m["fence"] + 1))
    three.store.objects[f"{three.cluster.cluster_id()}/{last.key}"] = good
    for read in (three.archive.end, three.archive.windows):
        with pytest.raises(BadManifest, match="HEAD says"):
            read()
    assert any("HEAD says" in each.what for each in verify(three.archive).problems)


@pytest.mark.row("A4")
def test_a_head_that_is_missing_beside_windows_is_refused_and_written_again_by_a_snapshot(three):
    good, last = three.store.objects.pop(head_key(three)), three.archive.listed()[-1]
    for read in (three.archive.end, three.archive.windows):
        with pytest.raises(BadManifest, match="HEAD is missing") as caught:
            read()
        assert caught.value.hint == "`pumphouse snapshot` writes it again"
    assert [each.key for each in verify(three.archive).problems] == ["HEAD"]
    three.snapshot(until=last.end)
    assert three.store.objects[head_key(three)] == good
    assert three.archive.last() == last


@pytest.mark.row("A4", "P11")
def test_a_lost_head_is_not_written_again_where_the_checkpoint_does_not_prove_the_end(three):
    del three.store.objects[head_key(three)]
    last = three.archive.listed()[-1]
    good = three.store.objects.pop(f"{three.cluster.cluster_id()}/{last.key}")
    with pytest.raises(BadManifest, match="newest windows are missing"):
        three.snapshot()
    three.store.objects[f"{three.cluster.cluster_id()}/{last.key}"] = good
    three.cluster.update_node(NodeKind.DRAINER, consumer.consumer_id("main"), lambda _: None)
    with pytest.raises(BadManifest, match="know no checkpoint"):
        three.snapshot()
    assert head_key(three) not in three.store.objects


@pytest.mark.row("A4")
@pytest.mark.parametrize(
    "damage",
    [
        lambda good: b"",
        lambda good: b"{}",
        lambda good: good[:-1],
        lambda good: good.replace(b"windows/0", b"windows/1"),
        lambda good: good.replace(b'"format_version": 2', b'"format_version": 1'),
        lambda good: changed(good, lambda h: h.update(manifest="windows/1")),
        lambda good: changed(good, lambda h: h.update(kind="genesis")),
        lambda good: changed(good, lambda h: h.pop("manifest_sha256")),
    ],
)
def test_a_damaged_head_is_refused_until_it_is_deleted(three, damage):
    good = three.store.objects[head_key(three)]
    three.store.objects[head_key(three)] = damage(good)
    for read in (three.archive.head, three.archive.last, three.archive.windows, three.snapshot):
        with pytest.raises(BadManifest, match="HEAD") as caught:
            read()
        assert caught.value.hint == "delete it, `pumphouse snapshot` writes it again"
    assert [each.key for each in verify(three.archive).problems] == ["HEAD"]
    three.store.delete(head_key(three))
    three.snapshot()
    assert verify(three.archive).sound


def test_a_head_that_lags_is_no_fault_and_moves_on_with_the_next_snapshot(three):
    chain = [*three.archive.windows()]
    first, last = Head.of(chain[0]), Head.of(chain[-1])
    for lagging in (first, Head.of(three.archive.genesis())):
        three.store.objects[head_key(three)] = lagging.to_json()
        assert [*three.archive.windows()] == chain
        assert three.archive.last() == chain[-1]
        assert verify(three.archive).sound
    three.snapshot(until=chain[-1].end)
    assert three.archive.head() == last


def test_a_slow_writer_does_not_move_head_back(three):
    chain = [*three.archive.windows()]
    three.archive.write_head(chain[0])
    three.archive.write_head(None)
    assert three.archive.head() == Head.of(chain[-1])


def test_an_archive_with_genesis_alone_needs_no_head(world):
    pump = world.pump()
    genesis = world.init()
    del world.store.objects[head_key(world)]
    assert (world.archive.last(), [*world.archive.windows()], world.archive.end()) == (None, [], genesis.ts)
    assert verify(world.archive).sound
    pump.transaction()
    world.snapshot()
    assert world.archive.head() == Head.of(world.archive.last())


def test_the_chain_since_a_moment_begins_with_the_window_that_holds_the_next_commit(three):
    archive, chain, genesis = three.archive, [*three.archive.windows()], three.archive.genesis()
    for number, window in enumerate(chain):
        assert [*archive.windows(window.start)] == chain[number:]
        assert [*archive.windows(Tso(window.end - 1))] == chain[number:]
    assert [*archive.windows(chain[-1].end)] == chain[-1:]
    assert [*archive.windows(Tso(genesis.ts - 1))] == chain


@pytest.mark.row("A4")
def test_the_chain_since_a_moment_is_linked_and_held_against_head_and_genesis(three):
    chain, folder = [*three.archive.windows()], f"{three.cluster.cluster_id()}/"
    good = dict(three.store.objects)
    del three.store.objects[folder + chain[1].key]
    for since in (chain[0].start, chain[1].start):
        with pytest.raises(BadManifest, match="gap"):
            three.archive.windows(since)
    three.store.objects.update(good)
    value = json.loads(good[folder + chain[2].key])
    assert value["previous"] == chain[1].sha256
    three.store.objects[folder + chain[1].key] = changed(
        good[folder + chain[1].key], lambda m: m.update(fence=m["fence"] + 1)
    )
    with pytest.raises(BadManifest, match="does not chain"):
        three.archive.windows(chain[1].start)
    three.store.objects.update(good)
    # Another genesis shows to those who begin there.
    genesis = folder + "genesis.json"
    three.store.objects[genesis] = changed(good[genesis], lambda g: g.update(attempt="0" * 16))
    for since in (None, chain[0].start):
        with pytest.raises(BadManifest, match="does not chain"):
            three.archive.windows(since)
    assert [*three.archive.windows(chain[1].start)] == chain[1:]


@pytest.mark.row("A2", "A4")
def test_a_declaration_under_another_name_is_refused_before_it_is_followed(world):
    world.pump("pump-1"), world.pump("pump-2")
    world.init()
    for node in ("pump-1", "pump-2"):
        declare_lost(world.archive, world.cluster, node, "disk died", who="ops")
    assert [each.node_id for each in declarations(world.archive)] == ["pump-1", "pump-2"]
    one, two = (key for key in world.store.objects if "/declared/" in key)
    objects = world.store.objects
    objects[one], objects[two] = objects[two], objects[one]
    for read in (lambda: declarations(world.archive), world.snapshot):
        with pytest.raises(BadManifest, match="holds what belongs to declared/pump-2/"):
            read()
    assert {each.key for each in verify(world.archive).problems} == {key.partition("/")[2] for key in (one, two)}


@pytest.mark.row("A4")
def test_a_genesis_of_another_cluster_is_refused(world):
    world.pump()
    world.init()
    key = f"{world.cluster.cluster_id()}/genesis.json"
    world.store.objects[key] = changed(world.store.objects[key], lambda g: g.update(cluster_id=g["cluster_id"] + 1))
    with pytest.raises(BadManifest, match="belongs to cluster"):
        world.archive.windows()
