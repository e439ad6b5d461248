"""The archive on real Pump processes, in a directory and on an S3 server."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from click.testing import CliRunner

from pumphouse.archive import consumer
from pumphouse.archive.archive import Archive
from pumphouse.archive.declare import accept, declare_lost
from pumphouse.archive.init import init_archive
from pumphouse.archive.losses import losses_of
from pumphouse.archive.snapshot import plan_window, pull_node, run_snapshot
from pumphouse.archive.verify import verify
from pumphouse.cli import cli
from pumphouse.client import admin
from pumphouse.codec.payload import PrewriteValueBuilder
from pumphouse.errors import ConfigError, CorruptionError, GapError, PositionCollected, WindowHeld
from pumphouse.model.moment import parse_time
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.objectstore.open import open_store
from pumphouse.registry.file import FileCluster
from pumphouse.runs import copy
from pumphouse.settings import ArchiveSettings, ClusterSettings, Settings, TlsSettings
from tests.support.certs import Authority
from tests.support.motoserver import MotoServer
from tests.support.nojobs import NoJobHistory
from tests.support.pumpserver import PumpServer, commit, prewrite
from tests.support.waiting import eventually


def value(rows=1, fill=1, size=100):
    builder = PrewriteValueBuilder(1)
    for _ in range(rows):
        builder.insert(7, bytes([fill]) * size)
    return builder.build()


class Chain:
    """Two Pumps and an archive."""

    def __init__(self, folder, archive_settings, **pump_settings):
        self.folder = folder
        self.cluster = FileCluster(folder / "cluster")
        self.pumps = [PumpServer(folder, self.cluster, node_id=f"pump-{n}", **pump_settings) for n in (1, 2)]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(PumpServer.start, self.pumps))
        waits = {"pull_timeout_s": 15.0, "poll_interval_s": 0.05, "ddl_wait_s": 1.0}
        self.settings = Settings(
            cluster=ClusterSettings(url=self.cluster.url), archive=archive_settings.model_copy(update=waits)
        )
        self.commits = []

    @property
    def archive(self):
        return Archive(open_store(self.settings.archive), self.cluster.cluster_id())

    def init(self):
        return init_archive(self.archive, self.cluster, NoJobHistory(), settings=self.settings)

    def snapshot(self, until=None, **changes):
        archive = self.settings.archive.model_copy(update=changes)
        settings = self.settings.model_copy(update={"archive": archive})
        return run_snapshot(self.archive, self.cluster, until or self.cluster.tso(), settings, NoJobHistory())

    def write(self, pump, **fields):
        _, commit_ts = self.pumps[pump].transaction(value(**fields))
        self.commits.append(commit_ts)
        return commit_ts

    def archived(self):
        archive = self.archive
        return sorted(
            ts
            for manifest in archive.windows()
            for segment in manifest.segments
            for batch in archive.segment_batches(manifest, segment)
            for ts in batch.column("commit_ts").to_pylist()
        )

    def close(self):
        for pump in self.pumps:
            pump.__exit__()


@pytest.fixture(scope="module")
def moto():
    with MotoServer() as server:
        yield server


@pytest.fixture
def chain(tmp_path):
    made = Chain(tmp_path, ArchiveSettings(root=f"file://{tmp_path}/archive"))
    yield made
    made.close()


@pytest.mark.row("A1", "A2", "A4", "A7")
@pytest.mark.parametrize("kind", ["file", "s3"])
def test_everything_answered_lies_once_in_the_archive_with_a_pump_killed_meanwhile(tmp_path, moto, kind):
    settings = ArchiveSettings(root=f"file://{tmp_path}/archive") if kind == "file" else moto.archive_settings()
    made = Chain(tmp_path, settings, value_log_file_bytes=20_000, pull_batch_bytes=4096)
    try:
        made.init()
        for _ in range(30):
            made.write(0, rows=3), made.write(1)
        until = made.cluster.tso()
        made.pumps[0].kill()
        back = threading.Timer(0.5, made.pumps[0].start)
        back.start()
        made.snapshot(until)
        back.join()
        for _ in range(60):  # several frames of 4 KiB
            made.write(0), made.write(1, rows=2)
        # The transaction that was retried: P and C on both Pumps.
        start_ts = made.cluster.tso()
        for pump in made.pumps:
            pump.write(prewrite(start_ts, value(5)))
        commit_ts = made.cluster.tso()
        for pump in made.pumps:
            pump.write(commit(start_ts, commit_ts))
        made.commits.append(commit_ts)
        done = made.snapshot(task_budget_bytes=3000)
        assert len(done) > 1
        assert sum(each.duplicates for each in done) == 1
        assert made.archived() == sorted(made.commits)
        report = verify(made.archive, checkpoint=consumer.checkpoint(made.cluster, "main"))
        assert report.problems == []
        assert made.archive.windows()[-1].pump("pump-1").start_count == 2
    finally:
        made.close()


@pytest.mark.row("A2", "P6")
def test_an_unresolved_prewrite_holds_the_window_and_is_named_until_its_commit_comes(chain):
    chain.init()
    chain.write(0)
    start_ts = chain.cluster.tso()
    chain.pumps[0].write(prewrite(start_ts, value()))
    chain.write(1)
    with pytest.raises(WindowHeld) as caught:
        chain.snapshot(pull_timeout_s=1.0)
    (holder,) = caught.value.holders
    assert (holder["node_id"], holder["start_ts"]) == ("pump-1", start_ts)
    commit_ts = chain.cluster.tso()
    chain.pumps[0].write(commit(start_ts, commit_ts))
    chain.commits.append(commit_ts)
    chain.snapshot()
    assert chain.archived() == sorted(chain.commits)


@pytest.mark.row("A2", "P13")
def test_a_pump_that_is_closed_goes_offline_only_when_the_archive_has_drained_it(chain):
    chain.init()
    chain.write(0), chain.write(1)
    admin.ask_state(chain.cluster, "pump-1", "close")
    eventually(lambda: chain.pumps[0].registered().state is NodeState.CLOSING)

    def offline():
        chain.snapshot()
        return chain.pumps[0].registered().state is NodeState.OFFLINE

    eventually(offline)
    chain.write(1)
    chain.snapshot()
    assert chain.archive.last().pump("pump-1").drained
    assert chain.archived() == sorted(chain.commits)
    assert verify(chain.archive).sound


@pytest.mark.row("A2")
def test_a_pump_forced_offline_holds_the_window_until_it_is_started_again(chain):
    chain.init()
    chain.write(0), chain.write(1)
    chain.pumps[0].kill()
    admin.force_state(chain.cluster, "pump-1", NodeState.OFFLINE)
    with pytest.raises(WindowHeld, match="pump-1: it is offline and was not drained"):
        chain.snapshot()
    chain.pumps[0].start()
    chain.snapshot()
    assert chain.archived() == sorted(chain.commits)


@pytest.mark.row("A2")
def test_a_pump_with_an_emptied_data_directory_holds_the_window_until_its_loss_is_declared(chain):
    chain.init()
    chain.write(0)
    chain.snapshot()
    lost = chain.write(0)
    kept = chain.write(1)
    chain.pumps[0].kill()
    shutil.rmtree(chain.pumps[0].data_dir)
    chain.pumps[0].start()
    with pytest.raises(WindowHeld, match="another incarnation"):
        chain.snapshot()
    made = declare_lost(chain.archive, chain.cluster, "pump-1", "disk replaced", who="ops")
    after = chain.write(0)
    done = chain.snapshot()
    assert [each.node_id for each in done[0].declared] == ["pump-1"]
    assert [each.end for each in done[:-1]] == [made.to_ts]
    found = chain.archived()
    assert lost not in found
    assert {kept, after} <= set(found)
    (replaced,) = chain.archive.last().pump("pump-1").replaced
    assert (replaced.incarnation, replaced.start_count) == (made.incarnation, 1)
    assert verify(chain.archive).sound
    assert chain.snapshot()[0].declared == ()


@pytest.mark.row("A2")
def test_who_comes_again_later_gives_no_pump_up_whose_loss_was_declared(chain):
    """What it has beside the loss is brought, also where it comes back after the patience of a pull."""
    chain.init()
    chain.pumps[0].kill()
    shutil.rmtree(chain.pumps[0].data_dir)
    chain.pumps[0].start()
    there = chain.write(0)
    declare_lost(chain.archive, chain.cluster, "pump-1", "disk replaced", who="ops")
    chain.pumps[0].kill()
    back = threading.Timer(2.0, chain.pumps[0].start)
    back.start()
    try:
        run_snapshot(chain.archive, chain.cluster, chain.cluster.tso(), chain.settings, NoJobHistory(), patience_s=0.2)
    finally:
        back.join()
    assert there in chain.archived()


@pytest.mark.row("A2", "P5")
def test_damage_found_while_serving_is_named_and_only_what_it_hit_is_given_up(chain):
    chain.init()
    before = chain.write(0)
    hit = chain.write(0, fill=0xAB)
    after, other = chain.write(0), chain.write(1)
    pump = chain.pumps[0]
    (path,) = (pump.data_dir / "value").glob("*.vlog")
    at = path.read_bytes().index(b"\xab" * 50)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xaa")
    begin = chain.archive.end()
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"^Pump pump-1: .*000000\.vlog at \d+") as met:
            chain.snapshot()
    assert met.value.node_id == "pump-1"
    said = [json.loads(line) for line in pump.log().splitlines() if "pull_met_damage" in line]
    assert [(each["path"], each["offset"]) for each in said] == [(str(path), met.value.offset)]
    assert chain.archive.end() == begin
    chain.snapshot(before)
    assert chain.archived() == [before]

    pump.stop()
    report = CliRunner().invoke(cli, ["pump", "verify", str(pump.data_dir), "--json"])
    (stretch,) = json.loads(report.stdout)["damages"]
    name = f"{stretch['file']}:{stretch['start']}-{stretch['stop']}"
    accepted = CliRunner().invoke(cli, ["pump", "accept-damage", str(pump.data_dir), name, "--reason", "a bad sector"])
    assert accepted.exit_code == 0, accepted.output
    pump.start()
    with pytest.raises(WindowHeld, match="another incarnation"):
        chain.snapshot()
    declare_lost(chain.archive, chain.cluster, "pump-1", "a bad sector", who="ops")
    chain.snapshot()
    (orphan,) = [each for each in losses(chain) if each.reason.startswith("orphan")]
    assert (orphan.to_ts, orphan.who) == (hit, "ops"), "its prewrite was in the damage"
    assert chain.archived() == sorted([before, after, other])
    assert verify(chain.archive).sound


@pytest.mark.row("A2")
def test_a_pump_that_was_started_again_before_it_died_for_good_holds_no_window_once_it_is_declared_lost(chain):
    chain.init()
    chain.write(1)
    chain.snapshot()
    chain.pumps[1].kill()
    chain.pumps[1].start()
    lost = chain.write(1)
    chain.pumps[1].kill()
    shutil.rmtree(chain.pumps[1].data_dir)
    admin.force_state(chain.cluster, "pump-2", NodeState.OFFLINE)
    made = declare_lost(chain.archive, chain.cluster, "pump-2", "gone", who="ops")
    kept = chain.write(0)
    done = chain.snapshot()
    assert (len(done), done[0].end) == (2, made.to_ts)
    chain.snapshot()
    found = chain.archived()
    assert lost not in found
    assert kept in found


@pytest.mark.row("P11", "A1")
def test_gc_frees_what_the_archive_has_and_nothing_else(tmp_path):
    made = Chain(
        tmp_path, ArchiveSettings(root=f"file://{tmp_path}/archive"), value_log_file_bytes=8192, retention_s=0.001
    )
    try:
        made.init()
        for _ in range(60):
            made.write(0, rows=3)
        before = made.pumps[0].gc()
        assert before.freed_files == 0
        made.snapshot()
        assert made.pumps[0].gc().freed_files > 0
        assert made.pumps[0].status().gc_point == consumer.checkpoint(made.cluster, "main")
        for _ in range(5):
            made.write(0)
        made.snapshot()
        assert made.archived() == sorted(made.commits)
        # An archive that is put back to an older state asks for what is gone, and is told so.
        archive = made.archive
        plan = plan_window(archive, made.cluster, made.cluster.tso(), Settings())
        plan = replace(plan, start=archive.genesis().ts)
        with pytest.raises((PositionCollected, GapError)) as caught:
            pull_node(archive, made.cluster, plan, "pump-1", made.settings)
        assert isinstance(caught.value, PositionCollected)
        assert "declare-lost pump-1" in str(caught.value)
    finally:
        made.close()


@pytest.mark.row("W6", "A1")
def test_the_archive_pulls_over_mutual_tls(tmp_path):
    authority = Authority(tmp_path)
    tls = authority.settings("pump-1", allowed=("puller",))
    cluster = FileCluster(tmp_path / "cluster")
    with PumpServer(tmp_path, cluster, tls=tls, client_tls=authority.settings("puller")) as pump:
        settings = Settings(
            archive=ArchiveSettings(root=f"file://{tmp_path}/archive", pull_timeout_s=3),
            tls=authority.settings("puller"),
        )
        archive = Archive(open_store(settings.archive), cluster.cluster_id())
        init_archive(archive, cluster, NoJobHistory(), settings=settings)
        pump.transaction(value())
        (done,) = run_snapshot(archive, cluster, cluster.tso(), settings, NoJobHistory())
        assert done.rows == 1
        pump.transaction(value())
        plain = settings.model_copy(update={"tls": TlsSettings()})
        with pytest.raises(WindowHeld, match="pump-1"):
            run_snapshot(archive, cluster, cluster.tso(), plain, NoJobHistory())


@pytest.mark.row("O3", "A4")
def test_the_commands_do_the_same(chain, tmp_path, monkeypatch):
    monkeypatch.setattr("pumphouse.parts.open_history", lambda *_: NoJobHistory())

    def run(*arguments, code=0):
        sets = {"cluster.url": chain.cluster.url, "archive.root": chain.settings.archive.root}
        sets |= {"archive.pull_timeout_s": "2", "archive.poll_interval_s": "0.05"}
        options = [part for name, text in sets.items() for part in ("--set", f"{name}={text}")]
        result = CliRunner().invoke(cli, [*options, "--log-level", "error", *arguments])
        assert (result.exit_code == 0) == (code == 0), result.output
        return result

    assert "ConfigError" in repr(run("snapshot", code=1).exception)
    for early in ("genesis", "now"):
        assert "pumphouse archive init" in str(run("archive", "show", early, code=1).exception)
    assert "genesis" in run("archive", "init").output
    chain.write(0), chain.write(1)
    assert "2 transactions" in run("snapshot").output
    until = str(chain.archive.end())
    assert "nothing to do" in run("snapshot", "--until", until).output
    chain.write(0)
    windows = json.loads(run("snapshot", "--json").stdout)["windows"]
    assert [each["rows"] for each in windows] == [1]
    listed = json.loads(run("archive", "ls", "--windows", "--json").stdout)
    assert len(listed["windows"]) == 2
    assert listed["checkpoint"] == listed["end"]
    for each in (listed, *listed["windows"]):
        assert parse_time(each["end_time"], chain.cluster.tso).ts == each["end"] >> 18 << 18
    assert listed["genesis_time"] and listed["checkpoint_time"] and listed["windows"][0]["fence_time"]
    assert "TRANSACTIONS" in run("archive", "ls").output
    assert json.loads(run("archive", "show", "genesis").stdout)["ts"] == listed["genesis"]
    assert json.loads(run("archive", "show", until).stdout)["start"] == int(until)
    assert "sound" in run("archive", "verify").output
    assert json.loads(run("archive", "verify", "--quick", "--json").stdout)["sound"]
    assert "no window holds" in str(run("archive", "show", "2001-01-01", code=1).exception)

    chain.pumps[0].kill()
    chain.cluster.update_node(NodeKind.PUMP, "pump-1", lambda _: None)
    assert "gone from the registry" in str(run("snapshot", code=1).exception)
    lost = json.loads(run("archive", "declare-lost", "pump-1", "--reason", "gone", "--yes", "--json").stdout)
    assert lost["from_ts"] == listed["end"]
    assert (lost["declared_before"], lost["reason"]) == (False, "gone")
    again = run("archive", "declare-lost", "pump-1", "--reason", "another", "--yes").output
    assert "declared lost already: pump-1" in again and "gone" in again and "not recorded" in again
    assert "declared lost: pump-1" in run("snapshot").output
    assert "declared lost: pump-1" in run("archive", "ls").output
    accepted = run("archive", "accept", "pump-2", "5", "6", "--reason", "why", code=1)
    assert "shows no late or orphan commit" in str(accepted.exception)

    segment = next((tmp_path / "archive").rglob("segments/*/*/*.parquet"))
    segment.write_bytes(segment.read_bytes()[:-1])
    broken = run("archive", "verify", code=1)
    assert broken.exit_code == 1
    assert segment.name in broken.output


@pytest.mark.row("A5", "A2")
def test_of_an_archive_and_its_promoted_copy_only_the_promoted_one_goes_on(tmp_path):
    """The old one is alive: neither its snapshots nor its checkpoint reach the Pumps any more."""
    chain = Chain(tmp_path, ArchiveSettings(root=f"file://{tmp_path}/archive"))
    copied = f"file://{tmp_path}/copy"
    words = ["--set", f"cluster.url={chain.cluster.url}", "--set", f"archive.root={copied}"]
    try:
        chain.init()
        chain.write(0)
        chain.snapshot()
        copy.run(chain.settings, copied)
        old = chain.archive
        refused = CliRunner().invoke(cli, [*words, "archive", "promote", "--yes"])
        assert isinstance(refused.exception, ConfigError)
        assert "still answers" in str(refused.exception)
        assert consumer.registered(chain.cluster, "main").root == old.url
        (tmp_path / "copy" / str(chain.archive.cluster_id) / "copy.json").rename(tmp_path / "copy.json")
        with pytest.raises(ConfigError, match="only one of the two"):  # lost by a slip: it is no archive by that
            consumer.publish(Archive.open(ArchiveSettings(root=copied), old.cluster_id), chain.cluster, old.end())
        (tmp_path / "copy.json").rename(tmp_path / "copy" / str(chain.archive.cluster_id) / "copy.json")
        promoted = CliRunner().invoke(cli, [*words, "archive", "promote", "--yes", "--archive-is-lost"])
        assert promoted.exit_code == 0, promoted.output
        chain.write(1)
        before = consumer.registered(chain.cluster, "main")
        with pytest.raises(ConfigError, match="only one of the two"):
            chain.snapshot()
        with pytest.raises(ConfigError, match="only one of the two"):
            consumer.move(old, chain.cluster, old.end())
        assert consumer.registered(chain.cluster, "main") == before
        chain.settings = chain.settings.model_copy(
            update={"archive": chain.settings.archive.model_copy(update={"root": copied})}
        )
        chain.snapshot()
        assert chain.archived() == sorted(chain.commits)
    finally:
        chain.close()


@pytest.mark.row("A5", "A2")
def test_a_copy_takes_the_place_of_an_archive_that_is_lost(tmp_path):
    """It is behind, so the Pumps know more than it has: they still have that, and nothing is missing in the end."""
    chain = Chain(tmp_path, ArchiveSettings(root=f"file://{tmp_path}/archive"))
    copied = f"file://{tmp_path}/copy"
    words = ["--set", f"cluster.url={chain.cluster.url}", "--set", f"archive.root={copied}"]
    try:
        chain.init()
        for pump in (0, 1, 0):
            chain.write(pump)
        chain.snapshot()
        copy.run(chain.settings, copied)
        chain.write(1)
        chain.snapshot()
        shutil.rmtree(tmp_path / "archive")
        chain.write(0)
        chain.settings = chain.settings.model_copy(
            update={"archive": chain.settings.archive.model_copy(update={"root": copied})}
        )
        with pytest.raises(ConfigError, match="is a copy of the archive at"):
            chain.snapshot()
        promoted = CliRunner().invoke(cli, [*words, "archive", "promote", "--yes"])
        assert promoted.exit_code == 0, promoted.output
        assert consumer.checkpoint(chain.cluster, "main") == chain.archive.end(), "the Pumps hold what it lacks"
        assert CliRunner().invoke(cli, [*words, "archive", "promote", "--yes"]).exit_code == 0
        chain.snapshot()
        assert chain.archived() == sorted(chain.commits)
        assert verify(chain.archive).problems == []
        assert consumer.checkpoint(chain.cluster, "main") == chain.archive.end()
    finally:
        chain.close()


def losses(chain):
    windows = chain.archive.windows()
    return losses_of(windows, after=windows.start, upto=windows.end).declared


@pytest.mark.row("P7", "A2", "R2")
def test_an_orphan_that_comes_below_the_watermark_is_accepted_as_lost(chain):
    chain.init()
    start_ts, commit_ts = chain.cluster.tso(), chain.cluster.tso()
    chain.write(0)
    eventually(lambda: watermark(chain, "pump-1") > commit_ts)
    chain.pumps[0].write(commit(start_ts, commit_ts))
    with pytest.raises(WindowHeld, match="orphan commit"):
        chain.snapshot()
    record, _ = accept(chain.archive, chain.cluster, "pump-1", start_ts, commit_ts, "its client is gone", who="ops")
    assert record.kind == "orphan"
    chain.snapshot()
    assert [(each.to_ts, each.who) for each in losses(chain)] == [(commit_ts, "ops")]
    assert verify(chain.archive).problems == []


@pytest.mark.row("A7", "P7")
def test_an_orphan_on_a_new_disk_is_settled_by_the_copy_that_the_archive_has_passed(chain):
    chain.init()
    start_ts, commit_ts = chain.pumps[0].transaction(value())
    eventually(lambda: watermark(chain, "pump-2") > commit_ts)
    chain.snapshot()
    chain.pumps[1].write(commit(start_ts, commit_ts))
    chain.snapshot()
    (taken,) = chain.archive.windows()[-1].accepted
    assert (taken.kind, taken.who, taken.reason) == ("orphan", "archive", "pump-1 has the whole transaction")
    assert losses(chain) == ()


@pytest.mark.row("A2", "P7", "R2")
def test_commits_that_come_behind_the_loss_of_their_prewrites_are_left_out_by_its_declaration(chain):
    chain.init()
    pump = chain.pumps[0]
    began = [int(chain.cluster.tso()) for _ in range(3)]
    for start_ts in began:
        pump.write(prewrite(start_ts, value()))
    pump.kill()
    shutil.rmtree(pump.data_dir)
    pump.start()  # a new disk, under the same node id
    ended = [int(chain.cluster.tso()) for _ in began]
    for start_ts, commit_ts in zip(began, ended, strict=True):
        pump.write(commit(start_ts, commit_ts))
    chain.write(0)
    chain.write(1)
    with pytest.raises(WindowHeld):
        chain.snapshot()
    declare_lost(chain.archive, chain.cluster, "pump-1", "its disk died", who="ops")
    chain.snapshot()
    of_one = [each for each in losses(chain) if each.reason.startswith("orphan")]
    assert [(int(each.to_ts), each.who) for each in of_one] == [(each, "ops") for each in ended]
    assert "its prewrite was declared lost: its disk died" in of_one[0].reason
    assert verify(chain.archive).problems == []
    chain.write(0)
    chain.snapshot()
    assert chain.archived() == sorted(chain.commits)


def watermark(chain, node_id):
    return chain.cluster.node(NodeKind.PUMP, node_id).max_commit_ts
