"""The archive proves itself: no flipped byte, no missing and no swapped object of a small archive passes `verify`.

The archive lies in a real directory and has everything: a dump, three windows with DDL, a declared loss, an accepted
commit, schema objects whole and as deltas, runs of the index.
"""

import contextlib
import copy
import json
import random
from collections.abc import Callable
from itertools import combinations, islice
from pathlib import Path

import pyarrow as pa
import pytest

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import Base, BaseBegun, BaseChunk, BaseTable, write_columns
from pumphouse.archive.compact import compact
from pumphouse.archive.declare import accept, declare_lost, read_declared, read_settled
from pumphouse.archive.failed import of_json
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.head import Head
from pumphouse.archive.indexing import extend_index
from pumphouse.archive.manifest import Manifest
from pumphouse.archive.schema_parts import SchemaParts, parts_key
from pumphouse.archive.schema_store import rebuild, timeline_of
from pumphouse.archive.verified import read_verified, write_verified
from pumphouse.archive.verify import verify
from pumphouse.archive.view import read_view
from pumphouse.codec import row
from pumphouse.codec.layout import arrow_field
from pumphouse.errors import BadManifest, BinlogError
from pumphouse.model.node import NodeState
from pumphouse.model.table import TableInfo
from pumphouse.model.tso import Tso
from pumphouse.objectstore.open import open_store
from pumphouse.settings import ArchiveSettings
from tests.support.checkpoints import set_checkpoint
from tests.support.documents import changed, mutated, resealed, to_version_1
from tests.support.madearchive import column, table_info
from tests.unit.archive.conftest import World
from tests.unit.archive.test_genesis import Dump

TABLE = TableInfo.from_dict(table_info(100, "t", [column(1, "id", flag=3)]))


class Small:
    """The archive and its bytes by object; every change is made to the file itself and taken back."""

    def __init__(self, folder: Path, *, later: bool = True, packed: bool = False) -> None:
        self.world = World(folder)
        self.root = folder / "root"
        self.world.store = open_store(ArchiveSettings(root=f"file://{self.root}"))
        self._fill()
        if later:
            write_verified(self.archive, self.archive.end())
            self._dump(done=True)
            self._dump(done=False)
        if packed:
            compact(self.archive, run=2, newest=0)
            compact(self.archive, run=1, newest=0)
        self.folder = self.root / str(self.world.cluster.cluster_id())
        files = sorted(each for each in self.folder.rglob("*") if each.is_file())
        self.objects = {each.relative_to(self.folder).as_posix(): each.read_bytes() for each in files}

    @property
    def archive(self) -> Archive:
        return self.world.archive

    def of(self, *prefixes: str, end: str = "") -> list[str]:
        return [key for key in self.objects if key.startswith(prefixes) and key.endswith(end)]

    def put(self, key: str, data: bytes) -> None:
        (self.folder / key).write_bytes(data)

    def problems(self) -> str:
        """All that is wrong, with the objects' names."""
        return "\n".join(f"{each.key} {each.what}" for each in verify(self.archive).problems)

    def _job(self, job_id: int, type_: int, **binlog: object) -> None:
        binlog = {"SchemaVersion": job_id, "FinishedTS": 2, **binlog}
        more = {"schema_id": 2, "table_id": 100, "schema_state": 5, "schema_name": "d", "binlog": binlog}
        self.world.history.add(job_id, type=type_, **more)

    def window(self, job_id: int, then: Callable[[], Tso]) -> None:
        """One window: a column more, a transaction of each Pump, what ``then`` does; the schema brought up to date."""
        raw = copy.deepcopy(TABLE.raw)
        raw["cols"].append({**column(job_id, f"c{job_id}"), "offset": 1})
        self._job(job_id, 5, TableInfo=raw)
        self.world.pumps[0].ddl(job_id, b"alter table t add c%d int" % job_id)
        for pump in self.world.pumps:
            pump.transaction(table=100)
        self.world.snapshot(until=then())
        rebuild(self.archive)

    def _fill(self) -> None:
        world = self.world
        one, two = world.pump("one"), world.pump("two")
        database = {
            "id": 2,
            "db_name": {"O": "d", "L": "d"},
            "charset": "utf8mb4",
            "collate": "utf8mb4_bin",
            "state": 5,
        }
        self._job(3, 1, DBInfo=database)
        self._job(5, 3, TableInfo=TABLE.raw)
        world.init(dump=Dump(world, {"t": [[row.encode_insert(TABLE, {1: n}) for n in range(3)]]}))
        rebuild(self.archive)

        def late() -> Tso:
            commit_ts = one.transaction(table=100, flag=2)
            start_ts = Tso(next(start for commit, start, *_ in one.binlogs if commit == commit_ts))
            one.pending[start_ts, commit_ts] = "late"
            accept(self.archive, world.cluster, "one", start_ts, commit_ts, "seen in the logs", who="ops")
            return world.cluster.tso()

        def lost() -> Tso:
            two.stop()
            two.register(NodeState.OFFLINE)
            return declare_lost(self.archive, world.cluster, "two", "disk died", who="ops").to_ts

        self.window(7, world.cluster.tso)
        self.window(9, late)
        self.window(11, lost)
        extend_index(self.archive, size=1, newest=1)
        extend_index(self.archive, size=1, newest=1)

    def _dump(self, *, done: bool) -> None:
        """What a later dump leaves: its begin, a chunk, its rows; and the document, if it is ``done``."""
        low, end, store = Tso(self.archive.end() - 2 + done), self.archive.end(), self.archive.store
        begun = BaseBegun(cluster_id=self.archive.cluster_id, low=low, tables=None, over=None)
        store.put(layout.base_begun(low), begun.to_json())
        folder = layout.chunk_folder(low, "d", "t", 100, low)
        ids = pa.array([1, 2 + done], pa.int64())
        rows = pa.RecordBatch.from_arrays([ids], schema=pa.schema([arrow_field(TABLE.columns[0])]))
        segment = write_columns(store, f"{folder}0-a.parquet", TABLE, low, [rows])
        chunk = BaseChunk(db="d", table="t", table_id=100, low=low, number=0, upto=None, last=True, segment=segment)
        store.put(layout.chunk_note(folder, 0), chunk.to_json())
        if done:
            table = BaseTable(db="d", table="t", table_id=100, rows=2, segments=(segment,), low=low)
            base = Base(begun=low, ts=end, low=low, tables=(table,), columns=True, sha256="")
            of = {"cluster_id": self.archive.cluster_id, "genesis": self.archive.genesis().sha256}
            store.put(layout.base_document(low), base.to_json(**of))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    made = Small(tmp_path_factory.mktemp("small"))
    yield made
    for pump in made.world.pumps:
        pump.stop()


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The same, with what its windows have in packs."""
    made = Small(tmp_path_factory.mktemp("packed"), packed=True)
    yield made
    for pump in made.world.pumps:
        pump.stop()


# Of the bytes of an object each so-and-so-many-th by default; no power of two, so that all bits have their turn.
_SAMPLE = 29
# Every byte of the index takes some three minutes.
_STEPS = [pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(900)]), _SAMPLE]


def flip(small: Small, keys: list[str], step: int) -> None:
    """Flip one byte after the other, in all of the objects at once: each of them must be named each time.

    One at a time is found then as well: no object is named for what is wrong with another one.
    """
    try:
        for at in range(0, max(len(small.objects[key]) for key in keys), step):
            for key in keys:
                good = bytearray(small.objects[key])
                # Every byte has its turn; which bit changes goes round. 0x20 would turn a digest's case.
                good[at % len(good)] ^= 1 << (at + at // len(good)) % 8
                small.put(key, good)
            found = small.problems()
            missed = [(key, at % len(small.objects[key])) for key in keys if f"{key} " not in found]
            assert not missed
    finally:
        for key in keys:
            small.put(key, small.objects[key])


@pytest.mark.row("A4")
def test_the_small_archive_is_sound_and_has_an_object_of_every_kind(small):
    assert small.problems() == ""
    kinds = {key: len(small.of(key)) for key in ("genesis.json", "windows/", "segments/", "ddl/", "base/", "HEAD")}
    assert kinds == {"genesis.json": 1, "windows/": 3, "segments/": 5, "ddl/": 4, "base/": 8, "HEAD": 1}
    assert (len(small.of("declared/")), len(small.of("schema/"))) == (2, 8)
    assert len(small.of("schema/parts/")) == 4
    assert len(small.of("index/")) == 2
    assert sum(kinds.values()) + 12 + len(small.of("verified.json", "failed/", "settled/")) == len(small.objects)
    chain = small.archive.windows()
    assert [len(each.declared) for each in chain] == [0, 0, 1]
    assert [each.who for window in chain for each in window.accepted] == ["ops"]
    assert len(set(small.objects.values())) == len(small.objects)


@pytest.mark.row("A4")
@pytest.mark.parametrize(
    ("prefixes", "end"),
    [
        (("genesis.json",), ""),
        (("windows/", "HEAD", "declared/", "settled/", "verified.json", "failed/"), ""),
        (("base/",), ".json"),
        (("segments/", "ddl/", "schema/"), ""),
        (("index/",), ""),
        (("base/",), ".parquet"),
    ],
)
@pytest.mark.parametrize("step", _STEPS)
def test_every_flipped_byte_of_every_object_is_found(small, prefixes, end, step):
    flip(small, small.of(*prefixes, end=end), step)
    assert small.problems() == ""


@pytest.mark.row("A4")
def test_every_missing_object_is_found(small):
    # What names the files of the schema is derived, and nothing builds on it: the newest is made again, byte for byte.
    # Without its notes a dump that is not done reads again; nothing was verified or failed of which no note is there; a
    # settled commit is looked at again.
    # So is a run of the index; the manifests are read in its place.
    derived = small.of("index/", "schema/parts/")
    notes = [key for key in small.of("base/", end=".json") if not key.endswith("base.json")]
    notes += small.of("verified.json", "failed/", "settled/")
    for key, good in small.objects.items():
        (small.folder / key).unlink()
        missing = bool(small.problems())
        # A dump that lost its document counts as one that is not done.
        assert missing == (key not in {*derived, *notes, *small.of("base/", end="base.json")}), key
        if key == derived[-1]:
            rebuild(small.archive)
            assert (small.folder / key).read_bytes() == good
        small.put(key, good)
    assert small.problems() == ""


@pytest.mark.row("A4")
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_every_swapped_pair_is_found(small, step):
    for one, two in islice(combinations(small.objects, 2), None, None, step):
        small.put(one, small.objects[two])
        small.put(two, small.objects[one])
        found = small.problems()
        assert one in found or two in found, (one, two)
        small.put(one, small.objects[one])
        small.put(two, small.objects[two])
    assert small.problems() == ""


@pytest.mark.row("A4", "A5")
@pytest.mark.parametrize("step", _STEPS)
def test_every_flipped_byte_of_every_pack_is_found(packed, step):
    assert packed.problems() == ""
    assert len(packed.of("packs/", end=".json")) > 1
    assert packed.of("segments/") == []
    for end in (".json", ".bin"):  # who cannot read the one does not look at the other
        flip(packed, packed.of("packs/", end=end), step)
    assert packed.problems() == ""


@pytest.mark.row("A4", "A5")
def test_a_missing_pack_and_one_in_the_place_of_another_object_is_found(packed):
    packs = packed.of("packs/")
    for key in packs:
        (packed.folder / key).unlink()
        assert packed.problems(), key
        packed.put(key, packed.objects[key])
    for one, two in combinations(packed.objects, 2):
        if one in packs or two in packs:
            packed.put(one, packed.objects[two])
            packed.put(two, packed.objects[one])
            assert packed.problems(), (one, two)
            packed.put(one, packed.objects[one])
            packed.put(two, packed.objects[two])
    assert packed.problems() == ""


LIES = {
    "a schema of another genesis": ("schema/parts/", -1, lambda s: s.update(genesis_sha256="0" * 64)),
    "a schema of another window": ("schema/parts/", -1, lambda s: s.update(window_sha256="0" * 64)),
    "a schema of another name": ("schema/parts/", -1, lambda s: s.update(upto=s["upto"] - 1)),
    "a schema without its last jobs": ("schema/parts/", -1, lambda s: s["parts"].pop()),
    "a schema without a part's rows": ("schema/parts/", -1, lambda s: s["parts"][0].update(files=[])),
    "a schema that counts another part": ("schema/parts/", -1, lambda s: s["parts"][0].update(jobs=9)),
    "a schema with the rows of others": ("schema/parts/", -1, lambda s: s["parts"][0].update(files=s["parts"][1]["files"])),
    "a schema whose file reaches further": ("schema/parts/", -1, lambda s: s["parts"][0]["files"][0].update(last=10**9)),
    "a schema with a sequence more": ("schema/parts/", -1, lambda s: s.update(sequences=[100])),
    "a schema with a view more": ("schema/parts/", -1, lambda s: s.update(views=[100])),
    "a schema that is not understood": ("schema/parts/", -1, lambda s: s.update(whole=True)),
    "a declared loss of another range": ("declared/two/", 0, lambda d: d.update(to_ts=d["to_ts"] + 1)),
    "a declared loss of another name": ("declared/two/", 0, lambda d: d.update(from_ts=d["from_ts"] + 1)),
    "a settled commit of another kind": ("settled/", 0, lambda d: d.update(commit_kind="orphan")),
    "an accepted commit of another kind": ("declared/one/", 0, lambda d: d.update(commit_kind="orphan")),
    "the newest manifest": ("windows/", -1, lambda m: m["pumps"][0].update(drained=True)),
    "the fence of the newest manifest": ("windows/", -1, lambda m: m.update(fence=m["fence"] + 1)),
    "genesis": ("genesis.json", 0, lambda g: g["pumps"][0].update(drained=True)),
    "HEAD": ("HEAD", 0, lambda h: h.update(manifest_sha256="0" * 64)),
    "a verification further than it went": ("verified.json", 0, lambda v: v.update(end=v["end"] + 1)),
    "a verification of another window": ("verified.json", 0, lambda v: v.update(window_sha256="0" * 64)),
}  # fmt: skip


@pytest.mark.row("A4")
@pytest.mark.parametrize("lie", LIES)
def test_a_document_that_lies_under_a_digest_of_its_own_is_found_by_those_that_name_it(small, lie):
    prefix, number, change = LIES[lie]
    key = small.of(prefix)[number]
    small.put(key, changed(small.objects[key], change))
    assert small.problems() != ""
    small.put(key, small.objects[key])
    assert small.problems() == ""


READERS = {
    "genesis.json": Genesis.from_json,
    "windows/": Manifest.from_json,
    "HEAD": lambda _, data: Head.from_json(data),
    "declared/": read_declared,
    "settled/": read_settled,
    "schema/parts/": SchemaParts.from_json,
    "base/": lambda key, data: read_base(key, data),
    "failed/": of_json,
}


def read_base(key: str, data: bytes) -> object:
    if key.endswith("/base.json"):
        return Base.from_json(key, data, cluster_id=1, genesis="")
    return (BaseBegun if key.endswith("/begun.json") else BaseChunk).from_json(key, data)


@pytest.mark.row("A4")
@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("objects_of", None, "objects_of: None is no integer"),
        ("folded_ts", None, "folded_ts: None is no integer"),
        ("since_ts", None, "since_ts: None is no integer"),
        ("objects_sha256", None, "objects_sha256: None is no text"),
        ("tables", {}, "{} is no list"),
    ],
)
def test_a_base_that_says_nothing_where_it_must_say_something_is_refused_by_object_and_field(field, value, why):
    base = Base(begun=Tso(5), ts=Tso(6), low=Tso(5), tables=(), columns=True, sha256="")
    written = json.loads(base.to_json(cluster_id=1, genesis="")) | {"format_version": 1, field: value}
    del written["sha256"]
    key = layout.base_document(Tso(5))
    with pytest.raises(BadManifest, match=why) as caught:
        read_base(key, json.dumps(written).encode())
    assert caught.value.message.startswith(f"{key} ")


@pytest.mark.row("A4")
@pytest.mark.parametrize("rounds", [pytest.param(200_000, marks=pytest.mark.slow), 1_500])
def test_a_document_of_a_writer_with_a_bug_is_refused_by_name(small, rounds):
    """Its digest is right, what it says is not: a typed error names the object, or it is taken for what it says."""
    rng = random.Random(rounds)
    documents = {key: json.loads(data) for key, data in small.objects.items() if key.endswith((".json", "HEAD"))}
    keys, refused = sorted(documents.keys() - {"verified.json"}), set()
    for _ in range(rounds):
        key = rng.choice(keys)
        data = resealed(mutated(documents[key], rng))
        read = next(read for prefix, read in READERS.items() if key.startswith(prefix))
        try:
            read(key, data)
        except BinlogError as error:
            assert isinstance(error, BadManifest), error
            assert key in str(error)
            refused.add(key)
    assert refused == set(keys)


@pytest.mark.row("A4")
@pytest.mark.parametrize("rounds", [pytest.param(2_000, marks=pytest.mark.slow), 12])
def test_an_archive_with_such_a_document_is_judged_and_never_a_bare_error(small, rounds):
    rng = random.Random(rounds)
    documents = sorted(key for key in small.objects if key.endswith((".json", "HEAD")))
    files = sorted(key for key in small.objects if key.endswith(".parquet"))
    for at in range(rounds):
        key = rng.choice(documents if at % 3 else files)
        good = small.objects[key]
        if key in documents:
            small.put(key, resealed(mutated(json.loads(good), rng)))
        else:
            small.put(key, rng.choice([b"", b"PAR1", good[: rng.randrange(len(good))], rng.randbytes(50)]))
        verify(small.archive)
        for look in (small.archive.windows, lambda: read_view(small.archive), lambda: read_verified(small.archive)):
            with contextlib.suppress(BinlogError):
                look()
        small.put(key, good)
    assert small.problems() == ""


@pytest.mark.row("A4")
def test_names_and_chain_are_checked_without_contents_too(small):
    for key in (*small.of("windows/", "declared/", "schema/jobs/"), "genesis.json", "HEAD"):
        (small.folder / key).unlink()
        assert not verify(small.archive, deep=False).sound, key
        small.put(key, small.objects[key])
    assert verify(small.archive, deep=False).sound


@pytest.fixture
def old(tmp_path):
    """The small archive as a release before format version 2 left it."""
    made = Small(tmp_path, later=False)
    end = made.archive.end()
    to_version_1(made.archive)
    set_checkpoint(made.world.cluster, "main", end)
    made.world.snapshot(until=end)
    yield made
    for pump in made.world.pumps:
        pump.stop()


@pytest.mark.row("O7", "A4")
def test_an_archive_of_version_1_is_opened_verified_and_extended(old):
    versions = {json.loads(old.archive.store.get(key))["format_version"] for key in old.of("declared/", "windows/")}
    assert versions == {1}
    assert old.problems() == ""
    before = [*old.archive.windows()]
    assert old.archive.end() == before[-1].end
    timeline = timeline_of(old.archive)
    old.window(13, old.world.cluster.tso)
    *chain, new = old.archive.windows()
    assert chain == before
    assert new.previous == before[-1].sha256
    assert old.archive.head() == Head.of(new)
    assert timeline_of(old.archive).jobs[:-1] == timeline.jobs
    assert json.loads(old.archive.store.get(parts_key(new.end)))["format_version"] == 2
    assert old.problems() == ""
    # What version 2 was written over is bound by it.
    old.put(chain[-1].key, (old.folder / chain[-1].key).read_bytes().replace(b'"lost": true', b'"lost":false'))
    assert old.problems() != ""


@pytest.mark.row("O7", "A4")
def test_a_version_and_its_digest_belong_together(small):
    for key in small.of("genesis.json", "windows/", "declared/", "schema/parts/", "HEAD"):
        new = small.objects[key]
        small.put(key, new.replace(b'"format_version": 2', b'"format_version": 1'))
        assert f"{key} is damaged" in small.problems()
        value = json.loads(new)
        for version, digest, says in (
            (1, value["sha256"], "has format version 1 and a digest of its own"),
            (2, None, "does not end in the digest of its bytes"),
            (2, value["sha256"], "does not end in the digest of its bytes"),
        ):
            data = {**value, "format_version": version, "sha256": digest}
            if digest is None:
                del data["sha256"]
            small.put(key, json.dumps(data).encode())
            assert f"{key} {says}" in small.problems()
        small.put(key, new)
    assert small.problems() == ""
