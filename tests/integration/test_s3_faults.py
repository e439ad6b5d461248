"""An S3 server that is busy, slow, cuts bodies and does not answer what it has done (rows A1, A4, A5).

The server is real; what a proxy does between is what networks do. Where a run fails, it fails by an error that may be
tried again; what is there then is looked at without the proxy: whole, nothing half visible, nothing named deleted. The
next run ends as if nothing had been.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.compact import compact
from pumphouse.archive.copying import copy_archive
from pumphouse.archive.expire import Ages, delete_orphans, expire
from pumphouse.archive.packs import packs_of
from pumphouse.archive.retention import Policy
from pumphouse.archive.verify import verify
from pumphouse.archive.view import read_view
from pumphouse.errors import StoreUnavailable
from pumphouse.folding.run import fold_base
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectStore
from pumphouse.objectstore.open import open_store
from pumphouse.settings import ArchiveSettings, LoadSettings
from tests.integration.test_archive_on_pumps import Chain
from tests.support.agedarchive import Aged, aged, require_restorable
from tests.support.faultys3 import Fault, FaultyS3, from_the, impatient, now_and_then
from tests.support.memorystore import MemoryStore
from tests.support.motoserver import S3Server, s3_server
from tests.support.pumpserver import PumpServer

__all__ = ["impatient"]
pytestmark = pytest.mark.usefixtures("impatient")
_DOWN = [Fault.BUSY, Fault.UNANSWERED, Fault.TORN, Fault.CUT]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[FaultyS3]:
    with FaultyS3(s3.endpoint) as found:
        yield found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Aged:
    return aged(tmp_path_factory.mktemp("aged"), rounds=1)


@dataclass
class World:
    """An archive in a bucket, which is reached in two ways."""

    made: Aged
    settings: ArchiveSettings
    proxied: ArchiveSettings
    stores: dict[str, ObjectStore] = field(default_factory=dict)

    @classmethod
    def new(cls, made: Aged, s3: S3Server, proxy: FaultyS3) -> World:
        """With an orphan in it."""
        settings = s3.archive_settings()
        found = cls(made, settings, proxy.before(settings))
        disk, archive = made.source.archive.store, found.archive
        for each in disk.list(""):
            archive.store.put(each.key, disk.get(each.key))
        window = archive.windows()[-1]
        archive.store.put(layout.segment_key(window.start, window.end, "gone", "0" * 16, 0), b"an orphan")
        return found

    @property
    def archive(self) -> Archive:
        """As a process sees it that has a good network."""
        return self.at(self.settings)

    @property
    def through(self) -> Archive:
        """As one that has a bad one."""
        return self.at(self.proxied)

    def at(self, settings: ArchiveSettings) -> Archive:
        """One that remembers nothing."""
        key = f"{settings.s3_endpoint} {settings.root}"
        if key not in self.stores:  # a client is made in half a second
            self.stores[key] = open_store(settings)
        return Archive(self.stores[key], self.made.source.cluster_id)

    def copy(self, settings: ArchiveSettings) -> Archive:
        """What it is copied to."""
        return self.at(settings.model_copy(update={"root": f"{settings.root}-copy"}))

    def seen(self, archive: Archive | None = None) -> Archive:
        """What lies there, in memory: it is looked at many times."""
        there, memory = (archive or self.archive).store, MemoryStore()
        for each in there.list(""):
            memory.objects[f"{self.made.source.cluster_id}/{each.key}"] = there.get(each.key)
        return Archive(memory, self.made.source.cluster_id)

    def names(self) -> set[str]:
        """Of all objects but a probe that nobody could take away."""
        return {each.key for each in self.archive.store.list("") if "probe/" not in each.key}


Do = Callable[[World], Any]
_SHORT = Ages(grace_s=1e-3)


def _expire(world: World) -> None:
    archive = world.through
    expire(archive, Ages(), Policy(bases=1), (), now=archive.end(), orphans=False, who="me")


def _expired(world: World) -> None:
    seen = world.seen()
    kept = seen.range()
    assert kept.base is not None
    assert kept.base.ts == world.made.dumps[-1]
    report = expire(seen, Ages(), Policy(bases=1), (), now=seen.end(), orphans=False)
    assert not report.moves
    assert report.count == 0


def _orphans(world: World) -> None:
    time.sleep(1.1)  # S3 tells whole seconds, and what was put in this one is not old
    delete_orphans(world.through, _SHORT)


def _no_orphans(world: World) -> None:
    assert not [key for key in world.names() if "/gone/" in key]


def _base(world: World) -> None:
    fold_base(world.through, LoadSettings(), world.proxied)


def _folded(world: World) -> None:
    (base,) = (base for base in read_view(world.seen()).bases if base.folded is not None)
    assert base.ts == world.made.source.archive.end()
    assert base.rows == sum(sum(rows.values()) for rows in world.made.source.snapshot().values())


def _copy(world: World) -> None:
    copy_archive(world.through, world.copy(world.proxied))


def _copied(world: World) -> None:
    there = world.seen(world.copy(world.settings))
    assert there.end() == world.made.source.archive.end()
    require_restorable(there, [at for at, _ in world.made.moments])


def _compact(world: World) -> None:
    compact(world.through, run=1, newest=1)


def _compacted(world: World) -> None:
    packs, names = [*packs_of(world.archive.store)], world.names()
    assert len(packs) > 1
    assert not names.intersection(member.key for pack in packs for member in pack.members)
    require_restorable(world.seen(), [at for at, _ in world.made.moments])


_WORK: dict[str, tuple[Do, Do]] = {
    "expire": (_expire, _expired),
    "orphans": (_orphans, _no_orphans),
    "base": (_base, _folded),
    "copy": (_copy, _copied),
    "compact": (_compact, _compacted),
}


def require_sound(world: World) -> None:
    """Whatever is visible is whole, and every moment that is promised can be restored."""
    seen = world.seen()
    kept = seen.range()
    require_restorable(seen, [at for at, _ in world.made.moments if kept.base is None or at >= kept.base.ts])
    there = world.seen(world.copy(world.settings))
    if there.begun():
        assert verify(there).problems == []


@pytest.mark.row("A5")
@pytest.mark.parametrize("what", list(_WORK))
def test_faults_now_and_then_are_not_noticed(made: Aged, s3: S3Server, proxy: FaultyS3, what: str) -> None:
    do, require_done = _WORK[what]
    world = World.new(made, s3, proxy)
    with proxy.doing(now_and_then(7)):
        do(world)
        assert proxy.faults > 3
    require_done(world)


@pytest.mark.row("A5", "A4")
@pytest.mark.parametrize("what", list(_WORK))
@pytest.mark.parametrize("every", [0, pytest.param(3, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_where_the_store_goes_away_nothing_is_half_done_and_the_next_run_goes_on(
    made: Aged, s3: S3Server, proxy: FaultyS3, what: str, every: int
) -> None:
    do, require_done = _WORK[what]
    world = World.new(made, s3, proxy)
    with proxy.doing(lambda _method, _path: None):
        do(world)
        count = len(proxy.requests)
    first = list(_WORK).index(what)  # each way has its turn, early or late
    points = range(0, count, every) if every else [count * (1 + 2 * (first % 2)) // 4]
    for number, point in enumerate(points):
        world = World.new(made, s3, proxy)
        with proxy.doing(from_the(point, _DOWN[(number + first) % len(_DOWN)])), contextlib.suppress(StoreUnavailable):
            do(world)
        require_sound(world)
        do(world)
        require_done(world)


@pytest.mark.row("A1", "A4")
@pytest.mark.parametrize("rounds", [len(_DOWN), pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_a_snapshot_over_a_bad_network_publishes_each_transaction_once(
    s3: S3Server, proxy: FaultyS3, tmp_path: Path, rounds: int
) -> None:
    settings = s3.archive_settings()
    chain = Chain(tmp_path, settings)
    assert isinstance(chain.pumps[0], PumpServer)
    bad = chain.settings.model_copy(update={"archive": proxy.before(chain.settings.archive)})
    good, failed = chain.settings, 0
    try:
        chain.init()
        chain.settings = bad
        for pump in (0, 1):
            chain.write(pump)
        with proxy.doing(now_and_then(3)):
            chain.snapshot()
            count = len(proxy.requests)
        for number in range(rounds):
            chain.settings = bad
            for pump in (0, 1):
                chain.write(pump)
            with proxy.doing(from_the(count * (number + 1) // (rounds + 1), _DOWN[number % len(_DOWN)])):
                try:
                    chain.snapshot()
                except StoreUnavailable:
                    failed += 1
            chain.settings = good
            assert [each.what for each in verify(chain.archive).problems] == []
            chain.settings = bad
            chain.snapshot()
            chain.settings = good
            assert chain.archived() == sorted(chain.commits)
        assert failed
        assert verify(chain.archive).problems == []
        assert chain.archive.end() > Tso(chain.commits[-1])
    finally:
        chain.settings = good
        chain.close()
