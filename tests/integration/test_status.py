"""`pumphouse status` on real Pumps, an archive and MariaDB targets: right, quick, and it names what is silent."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from pumphouse.archive import consumer
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import Base
from pumphouse.archive.declare import declare_lost
from pumphouse.archive.drills import Drill, write_drill
from pumphouse.archive.failed import noting
from pumphouse.archive.layout import GENESIS, VERIFIED
from pumphouse.archive.manifest import Declaration
from pumphouse.archive.marks import mark
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.archive.verified import write_verified
from pumphouse.archive.view import read_view
from pumphouse.capture.passed import waiter
from pumphouse.cli import cli
from pumphouse.client import admin
from pumphouse.dump.run import take_dump
from pumphouse.errors import BinlogError, ConfigError, RestoreError, UnknownDdl, WindowHeld
from pumphouse.loader import fence
from pumphouse.loader.failed import noting as noting_load
from pumphouse.loader.target import TargetConnection
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.model.tso import Tso, physical_ms, show
from pumphouse.registry.base import CaptureRecord, CaptureState
from pumphouse.registry.file import FileCluster
from pumphouse.restore.plan import plan_restore
from pumphouse.runs import load
from pumphouse.runs.proof import prove
from pumphouse.settings import CaptureSettings, LoadRule, Settings, TargetSettings
from pumphouse.status.exposition import exposition
from pumphouse.status.findings import findings
from pumphouse.status.headline import clock, headline
from pumphouse.status.look import look
from pumphouse.status.past import past
from pumphouse.status.report import Finding, Severity, Status
from pumphouse.status.stops import stops_of
from tests.support import formats
from tests.support.checkpoints import set_checkpoint
from tests.support.documents import changed
from tests.support.frozen import freeze
from tests.support.killed import Killed, calls_until_killed
from tests.support.madearchive import MadeSource, column
from tests.support.mariadb import as_history, as_lines
from tests.support.pumpserver import PumpServer, prewrite
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("O3")


@pytest.fixture
def cluster(tmp_path: Path, source: MadeSource) -> FileCluster:
    del source  # makes it
    return FileCluster(tmp_path / "cluster", create=False)


@pytest.fixture
def pump(tmp_path: Path, cluster: FileCluster) -> Iterator[PumpServer]:
    (tmp_path / "p").mkdir()
    with PumpServer(tmp_path / "p", cluster) as server:
        yield server


@pytest.fixture
def mine(settings: Settings) -> Settings:
    """Without a restore target: the settings of the other tests have it on the same server."""
    return settings.model_copy(update={"restore_target": TargetSettings()})


def found(status: Status, who: str) -> list[Finding]:
    return [each for each in status.findings if who in each.who]


def test_what_is_restorable_where_each_target_stands_and_who_holds_it(
    mine: Settings, source: MadeSource, target: TargetConnection, pump: PumpServer, cluster: FileCluster
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    genesis = source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    end = source.cut()
    set_checkpoint(cluster, "main", end)
    status = look(mine)
    assert (status.archive.restorable_from, status.archive.restorable_to) == (genesis, end)
    assert (status.archive.end, status.archive.checkpoint) == (end, end)
    assert found(status, "[target]") == [
        Finding(
            severity=Severity.WARNING, who=f"[target] {target.name}", what="it was never loaded", next="pumphouse load"
        )
    ]
    load.run(mine)
    eventually(lambda: look(mine).pumps[0].watermark, what="the Pump's first fake binlog")
    status = look(mine)
    (row,) = status.targets
    assert (row.task, row.at, row.state, row.held_by) == ("main", end, "ready", "")
    assert row.lag_s is not None
    restored = look(mine.model_copy(update={"target": TargetSettings(), "restore_target": mine.target})).targets
    assert [(each.section, each.at, each.lag_s) for each in restored] == [("restore_target", end, None)]
    (one,) = status.pumps
    assert (one.answers, one.silent, one.state, one.problem) == (True, False, "online", "")
    assert one.available_bytes
    assert one.lag_s < 10
    assert [each.node_id for each in status.consumers if each.holds_gc] == ["pumphouse-main"]
    families = text_string_to_metric_families(exposition(status).decode())
    shown = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
    assert shown["pumphouse_target_at_seconds", "target", "main"] == physical_ms(end) / 1000
    assert shown["pumphouse_archive_seconds", "restorable_from"] == physical_ms(genesis) / 1000
    fence.acquire(target, run="the-nightly-load", take_over=True)
    assert "the-nightly-load" in look(mine).targets[0].held_by
    fence.release(target)
    target.execute("UPDATE pumphouse.checkpoint SET state = 'incomplete', reason = 'a restore has not ended'")
    (bad,) = found(look(mine), "[target]")
    assert (bad.severity, bad.next) == (Severity.ERROR, "pumphouse restore --into target --to TIME, the same as before")


def test_an_archive_that_cannot_be_relied_on_is_an_error(
    tmp_path: Path, mine: Settings, source: MadeSource, cluster: FileCluster
) -> None:
    source.genesis()
    never = command(tmp_path, mine).output
    assert re.search(r"^verified   never, by pumphouse archive verify$", never, re.MULTILINE), never
    write_verified(source.archive, source.cut())
    consumer.move(source.archive, cluster, source.archive.end())
    assert not look(mine).archive.doubts
    note = source.archive.store.get(VERIFIED)
    source.archive.store.put(VERIFIED, note.replace(b"end", b"End"))
    source.archive.store.put(GENESIS, changed(source.archive.store.get(GENESIS), lambda it: it.update(attempt="x")))
    another, damaged = look(mine).archive.doubts
    assert "is not that archive" in another
    assert "verified.json is damaged" in damaged
    assert [each.severity for each in found(look(mine), "archive")][:2] == [Severity.ERROR] * 2


@pytest.mark.row("W4")
def test_a_consumer_that_cannot_be_read_holds_gc_and_is_named_with_what_takes_it_out(
    mine: Settings, source: MadeSource, cluster: FileCluster, tmp_path: Path
) -> None:
    source.genesis()
    set_checkpoint(cluster, "d1", source.cut())
    assert not found(look(mine), "consumer")
    (value,) = (tmp_path / "cluster").rglob("drainers/*d1")
    value.write_bytes(value.read_bytes().replace(b'"score":0', b'"score":1e400'))
    (bad,) = found(look(mine), "consumer")
    assert bad.severity is Severity.ERROR
    assert "1e400" in bad.what
    assert bad.next == f"pumphouse consumer unregister {value.name}"
    assert f"`pumphouse consumer unregister {value.name}`" in bad.what
    admin.unregister_consumer(cluster, value.name)
    assert not found(look(mine), "consumer")


@pytest.mark.row("W4")
def test_a_cluster_whose_values_of_the_archive_and_of_a_capture_cannot_be_read_is_shown_with_all_else(
    mine: Settings, source: MadeSource, cluster: FileCluster, tmp_path: Path
) -> None:
    source.genesis()
    end = source.cut()
    set_checkpoint(cluster, "main", end)
    (value,) = (tmp_path / "cluster").rglob("drainers/pumphouse-main")
    value.write_bytes(b"{}")
    record = CaptureRecord(
        capture_id="a", source="h:1", server="", owner="", host="h", state=CaptureState.FAILED, heartbeat=1.0, gtid="",
        reason="its disk is full",
    )  # fmt: skip
    cluster.update_capture("a", lambda _: record)
    (tmp_path / "cluster" / "captures" / "c").write_bytes(b"{}")
    status = look(mine)
    assert (status.archive.end, status.archive.checkpoint) == (end, None)
    assert [each.next for each in found(status, "consumer pumphouse-main")] == ["pumphouse archive init"]
    assert not [each for each in found(status, "archive") if "pumphouse-main" in each.what or "GC" in each.what]
    (capture,) = found(status, "captures")
    assert "captures/c: a registry value is no capture" in capture.what
    assert ["its disk is full" in each.what for each in found(status, "capture a")] == [True]
    command(tmp_path, mine)
    shown = CliRunner().invoke(cli, ["--config", str(tmp_path / "pumphouse.toml"), "capture", "status"])
    assert shown.exit_code != 0
    assert "its disk is full" in shown.output
    assert "captures/c" in shown.output


@pytest.mark.row("W4")
def test_a_damaged_registration_is_a_doubt_with_what_mends_it(
    mine: Settings, source: MadeSource, cluster: FileCluster
) -> None:
    source.genesis()
    source.cut()
    consumer.move(source.archive, cluster, source.archive.end())
    cluster.update_node(
        NodeKind.DRAINER,
        "pumphouse-main",
        lambda it: it and it.with_(unknown={"pumphouseArchive": {**it.unknown["pumphouseArchive"], "document": "x"}}),
    )
    (doubt,) = [each for each in found(look(mine), "archive") if "damaged" in each.what]
    assert (doubt.severity, doubt.next) == (Severity.ERROR, "pumphouse archive init")
    assert "`pumphouse archive promote`" in doubt.what


def test_a_pump_without_a_watermark_has_no_lag_and_what_holds_it_is_told(
    mine: Settings, source: MadeSource, cluster: FileCluster, tmp_path: Path
) -> None:
    source.genesis()
    (tmp_path / "p").mkdir()
    with PumpServer(tmp_path / "p", cluster, gen_binlog_interval_s=3600) as pump:
        (one,) = look(mine).pumps
        assert (one.answers, one.watermark, one.lag_s) == (True, 0, None)
        assert f"{pump.node_id}  online" in command(tmp_path, mine).output
        assert not found(look(mine), "Pump")
        full = findings(replace(look(mine), pumps=(replace(one, read_only=True),)), "", mine)
        assert [each.next for each in full if each.who == "Pumps"] == ["pumphouse gc"]
        pump.write(prewrite(cluster.tso()))
        (held,) = eventually(lambda: found(look(mine), "Pump"), what="the prewrite holds it")
        assert held.what == "it has no watermark yet: 1 prewrites have no outcome"


def test_a_load_that_has_stopped_is_named_with_the_load_that_goes_on(
    mine: Settings, source: MadeSource, target: TargetConnection, cluster: FileCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.ts = int(cluster.tso())
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    killed_at = calls_until_killed(monkeypatch)
    killed_at[0] = 30
    with pytest.raises(Killed):
        load.run(mine)
    (first,) = found(look(mine), "[target]")
    assert (first.severity, first.next) == (Severity.ERROR, "pumphouse load"), first
    load.run(mine)
    with source.txn() as t:
        t.insert("t", id=1000)
    end = source.cut()
    target.execute("ALTER TABLE d.t MODIFY id TINYINT")
    with pytest.raises(BinlogError):
        load.run(mine)
    (stopped,) = found(look(mine), "[target]")
    assert (stopped.severity, stopped.next) == (Severity.ERROR, "pumphouse load")
    assert f"a load to {show(end)} has stopped" in stopped.what
    assert re.search(r"the last load failed, 20\d\d-.*d\.t.* \(.*load\.rules", stopped.what, re.DOTALL), stopped.what
    assert target.query("SELECT task FROM pumphouse.failed") == [("main",)]
    target.execute("DELETE FROM pumphouse.failed")  # as of a run that was killed
    (stopped,) = found(look(mine), "[target]")
    assert (stopped.severity, "failed" in stopped.what) == (Severity.WARNING, False)
    assert stopped.next == "pumphouse load"
    target.execute("UPDATE pumphouse.fence SET run = 'scheduled__1 of binlog_load'")
    (stopped,) = found(look(mine), "[target]")
    assert (
        stopped.next
        == "pumphouse status, some minutes later: Airflow goes on with scheduled__1 of binlog_load by itself"
    )
    fence.acquire(target, run="another")
    assert not found(look(mine), "[target]"), "somebody is at work on it"


def test_tables_without_a_checkpoint_and_a_table_that_a_gone_rule_left_out_are_named(
    mine: Settings, source: MadeSource, target: TargetConnection
) -> None:
    for table in ("t", "u"):
        source.create_table(table, [column(1, "id", flag=3)])
    source.genesis()
    target.execute("CREATE DATABASE theirs")
    target.execute("CREATE TABLE theirs.t (id INT)")
    status = look(mine)
    (never,) = found(status, "[target]")
    assert "it was never loaded, and has 1 tables" in never.what
    assert [each.standing for each in status.targets] == ["1 tables"]
    rule = LoadRule(do="skip", table="d.u", why="not ours")
    ruled = mine.model_copy(update={"load": mine.load.model_copy(update={"rules": (rule,)})})
    load.run(ruled)
    assert not [each for each in found(look(ruled), "[target]") if "d.u" in each.what]
    (left,) = [each for each in found(look(mine), "[target]") if "d.u" in each.what]
    assert "the rule is gone" in left.what
    assert left.next == "pumphouse load --resync d.u"
    load.run(mine, resync="d.u")
    assert not [each for each in found(look(mine), "[target]") if "d.u" in each.what]
    with pytest.raises(RuntimeError), noting_load(target, "main"):
        raise RuntimeError("out of Java's heap")
    assert "RuntimeError: out of Java's heap" in " ".join(each.what for each in found(look(mine), "[target]"))


@pytest.mark.row("R4")
def test_a_red_proof_is_an_error_until_a_later_one_found_its_tables_equal(
    mine: Settings, source: MadeSource, target: TargetConnection
) -> None:
    for table in ("t", "u"):
        source.create_table(table, [column(1, "id", flag=3)])
        with source.txn() as t:
            t.insert(table, id=1)
    source.genesis()
    load.run(mine)

    def red_ones() -> list[Finding]:
        return [each for each in found(look(mine, within_s=20), "[target]") if "proof" in each.what]

    target.execute("DELETE FROM d.t")
    assert not prove(mine).equal
    (red,) = red_ones()
    assert (red.severity, "DIFFERENT: d.t" in red.what) == (Severity.ERROR, True)
    assert red.next == "pumphouse archive prove; pumphouse archive proofs --tables"
    assert prove(mine, tables=["d.u"]).equal
    assert red_ones() == [red], "it says nothing of d.t"
    target.execute("INSERT INTO d.t VALUES (1)")
    assert prove(mine, tables=["d.t"]).equal
    assert not red_ones()


def test_an_archive_without_a_dump_restores_nothing_and_says_so(mine: Settings, source: MadeSource) -> None:
    source.genesis(base=False)
    assert look(mine).archive.restorable_from is not None, "there were no tables"
    source.begin_anew()
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis(base=False)
    status = look(mine)
    assert (status.archive.restorable_from, status.archive.restorable_to) == (None, None)
    assert "nothing can be restored" in " ".join(each.what for each in found(status, "archive"))


def command(directory: Path, settings: Settings, *args: str) -> Result:
    target = settings.target
    (directory / "pumphouse.toml").write_text(
        f'[cluster]\nurl = "{settings.cluster.url}"\n[archive]\nroot = "{settings.archive.root}"\n'
        f"[target]\n{as_lines(target)}"
    )
    return CliRunner().invoke(cli, ["--config", str(directory / "pumphouse.toml"), "status", *args])


@pytest.mark.timeout(120)
def test_a_stopped_pump_is_named_within_thirty_seconds_and_all_else_is_shown(
    mine: Settings, source: MadeSource, target: TargetConnection, pump: PumpServer, cluster: FileCluster, tmp_path: Path
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    end = source.cut()
    set_checkpoint(cluster, "main", end)
    load.run(mine)
    target.close()
    look(mine)  # imports
    freeze(pump.pid, cluster)
    try:
        status = look(mine)
        (early,) = found(status, pump.node_id)
        assert "does not answer" in early.what, "its heartbeat is fresh, it does not answer"
        named = eventually(
            lambda: [each for each in found(look(mine), pump.node_id) if "silent for" in each.what],
            within_s=30,
            what="the silent Pump is named",
        )
        assert named[0].severity is Severity.ERROR
        assert "pumphouse pump run" in named[0].next
        shown = command(tmp_path, mine)
        assert shown.exit_code == 4
        assert shown.output.startswith("Late: the archive stands still: safe until "), "the headline comes first"
        assert f"Pump {pump.node_id}: silent for" in shown.output
        assert "next: pumphouse pump run" in shown.output
        body = json.loads(command(tmp_path, mine, "--json").output)
        assert body["severity"] == "error"
        assert body["archive"]["end"] == str(int(end)), "browsers round such numbers"
        assert body["pumps"][0]["silent"] is True
    finally:
        os.kill(pump.pid, signal.SIGCONT)


def test_who_holds_the_archive_is_named_also_when_nothing_is_silent(
    mine: Settings, source: MadeSource, target: TargetConnection, pump: PumpServer, cluster: FileCluster, tmp_path: Path
) -> None:
    source.ts = int(cluster.tso())
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    set_checkpoint(cluster, "main", source.cut())
    load.run(mine)
    target.close()
    eventually(lambda: look(mine).pumps[0].watermark, what="the Pump's first fake binlog")
    assert not look(mine).findings
    pump.kill()
    admin.force_state(cluster, pump.node_id, NodeState.OFFLINE)
    held, gone = sorted(look(mine).findings, key=lambda each: each.who)
    assert (gone.severity, gone.who, "every writer stands still" in gone.what) == (Severity.ERROR, "Pumps", True)
    assert (held.severity, held.who) == (Severity.ERROR, f"Pump {pump.node_id}")
    assert "it is offline" in held.what
    assert f"pumphouse archive declare-lost {pump.node_id}" in held.next
    declare_lost(Archive.open(mine.archive, cluster.cluster_id()), cluster, pump.node_id, "gone", who="ops")
    assert [each.who for each in look(mine).findings] == ["Pumps"]
    assert [(each.node_id, each.why) for each in past(source.archive).holes] == [(pump.node_id, "gone")]
    assert "1 range of a Pump was declared lost" in command(tmp_path, mine).output
    (record,) = (tmp_path / "cluster").rglob(pump.node_id)
    record.write_bytes(b"{")
    (held,) = found(look(mine), "cluster")
    assert held.severity is Severity.ERROR
    assert record.name in held.what


def test_a_prewrite_without_an_outcome_is_named_by_its_age_before_the_watermark_is_old(
    mine: Settings, source: MadeSource, cluster: FileCluster, pump: PumpServer
) -> None:
    source.genesis()
    eventually(lambda: look(mine).pumps[0].watermark, what="the Pump's first fake binlog")
    assert not found(look(mine), "Pump ")
    start_ts = cluster.tso()
    pump.write(prewrite(start_ts))
    status = eventually(lambda: (s := look(mine)).pumps[0].open_ts and s, what="the prewrite is known")
    (one,) = status.pumps
    assert one.open_ts == start_ts
    assert not found(status, "Pump "), "a transaction that has just begun"
    aged = replace(status, pumps=(replace(one, open_s=12.0),))
    (held,) = [each for each in findings(aged, "", mine) if each.who.startswith("Pump ")]
    assert f"the prewrite {start_ts} has had no outcome for 12 s" in held.what
    assert held.next == f"pumphouse pump status {pump.node_id}"


@pytest.mark.row("O2", "O3")
@pytest.mark.parametrize(
    ("hours", "age", "late"),
    [
        ((24, 24), 60, False),
        ((24, 24), 73, True),
        ((24, 0.2, 0.1), 20, False),  # by hand in the morning, twice
        ((0.1, 0.1, 0.1, 0.1), 0.25, False),
        ((0.1, 0.1, 0.1, 0.1), 0.35, True),
        ((12, 0.1, 0.1, 0.1), 1, True),  # caught up after an outage, and stands still again
        ((12, 0.1, 0.1, 0.1), 35, True),
        ((0.1,), 30, True),  # a young one: what lies before its genesis is no window
    ],
)
def test_an_archive_is_late_by_twice_the_interval_of_its_schedule(
    mine: Settings, source: MadeSource, cluster: FileCluster, hours: tuple[float, ...], age: float, late: bool
) -> None:
    source.ts = int(cluster.tso()) - (int((sum(hours) + age) * 3_600_000) << 18)
    source.genesis()
    for each in hours:
        source.tick(int(each * 3_600_000))
        source.cut()
    status = look(mine)
    assert status.archive.late is late
    assert any("it ends" in each.what for each in found(status, "archive")) is late


def test_an_archive_is_late_by_its_own_interval_and_what_failed_last_is_told(
    mine: Settings, source: MadeSource, cluster: FileCluster
) -> None:
    source.ts = int(cluster.tso()) - (20 * 60_000 << 18)
    source.genesis()
    source.tick(60_000)
    end = source.cut()
    (late,) = [each for each in found(look(mine), "archive") if "ends" in each.what]
    assert late.what == f"it ends 19 min ago, at {show(end)}"
    status = look(mine)
    assert 59 < (status.archive.interval_s or 0) < 62
    slow = replace(status, archive=replace(status.archive, interval_s=1800.0))
    assert not [each for each in findings(slow, "", mine) if "ends" in each.what]

    with pytest.raises(WindowHeld), noting(source.archive, "snapshot", patience_s=1.0):
        raise WindowHeld("it waits in a trigger")
    assert not look(mine).archive.failed
    with pytest.raises(RuntimeError), noting(source.archive, "snapshot"):
        raise RuntimeError("out of Java's heap")
    assert "RuntimeError: out of Java's heap" in look(mine).archive.failed["snapshot"]
    with pytest.raises(FileNotFoundError), noting(source.archive, "snapshot"):
        raise FileNotFoundError(2, "no such file", "no UTF-8: \udcff" + "x" * 9000)
    assert r"no UTF-8: \udcff" in look(mine).archive.failed["snapshot"]

    ahead = cluster.tso()
    set_checkpoint(cluster, "main", ahead)  # as an archive that lost its newest windows has it
    with pytest.raises(BinlogError):
        run_snapshot(source.archive, cluster, cluster.tso(), mine, None)
    with pytest.raises(ConfigError, match="no source is known"):
        take_dump(source.archive, cluster, None, mine, settle=waiter(cluster, mine.source, mine.capture))
    for what in ("snapshot", "dump"):
        formats.check("failed", json.loads(source.archive.store.get(f"failed/{what}.json")))
    failed = {each.next: each for each in found(look(mine), "archive") if "failed" in each.what}
    assert set(failed) == {"pumphouse snapshot", "pumphouse archive dump"}
    assert failed["pumphouse snapshot"].severity is Severity.ERROR
    assert (
        "no source is known to read from (name it in pumphouse.toml: [source]" in failed["pumphouse archive dump"].what
    )
    source.ts = int(cluster.tso())
    source.cut()
    assert [each.next for each in found(look(mine), "archive") if "failed" in each.what] == ["pumphouse archive dump"]


def test_a_server_that_accepts_and_says_nothing_is_not_waited_for(mine: Settings, source: MadeSource) -> None:
    source.genesis(base=False)
    look(mine)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        away = mine.model_copy(update={"target": mine.target.model_copy(update={"port": port})})
        status = look(away)
    (bad,) = found(status, "[target]")
    assert bad.severity is Severity.ERROR


def test_nothing_to_do_is_exit_code_0_and_a_password_is_never_shown(
    mine: Settings, source: MadeSource, server: TargetSettings, target: TargetConnection, cluster: FileCluster, tmp_path: Path,
    pump: PumpServer,
) -> None:  # fmt: skip
    source.ts = int(cluster.tso())
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    set_checkpoint(cluster, "main", source.cut())
    load.run(mine)
    eventually(lambda: look(mine).pumps[0].watermark, what="the Pump's first fake binlog")
    assert pump.node_id in command(tmp_path, mine).output
    done = command(tmp_path, mine)
    assert (done.exit_code, "all is well" in done.output) == (0, True), done.output
    assert "pumphouse-main  reads now and then" in done.output
    wrong = server.model_copy(update={"password": SecretStr("wr0ng")})
    refused = command(tmp_path, mine.model_copy(update={"target": wrong}))
    assert refused.exit_code == 4
    assert "Access denied" in refused.output
    assert "wr0ng" not in refused.output
    assert target.name in refused.output


def test_without_a_cluster_or_an_archive_it_says_what_to_type_and_makes_neither(
    tmp_path: Path, mine: Settings, server: TargetSettings, target: TargetConnection
) -> None:
    nowhere = mine.model_copy(update={"cluster": mine.cluster.model_copy(update={"url": f"file://{tmp_path}/none"})})
    status = look(nowhere)
    assert status.exit_code == 4
    assert "there is no cluster" in found(status, "cluster")[0].what
    assert not (tmp_path / "none").exists()
    empty = mine.model_copy(update={"archive": mine.archive.model_copy(update={"root": f"file://{tmp_path}/empty"})})
    assert found(look(empty), "archive")[0].next.startswith("pumphouse pump run --data-dir")
    (tmp_path / "p").mkdir()
    with PumpServer(tmp_path / "p", FileCluster(tmp_path / "cluster", create=False)):
        assert found(look(empty), "archive")[0].next == "pumphouse archive init"
        cluster = FileCluster(tmp_path / "cluster", create=False)
        with pytest.raises(ConfigError):  # nothing is noted where no archive is
            run_snapshot(Archive.open(empty.archive, cluster.cluster_id()), cluster, cluster.tso(), empty, None)
        assert not [each for each in (tmp_path / "empty").rglob("*") if each.is_file()]
        history = as_history(server, "hist.jobs")
        without = empty.model_copy(update={"history": history})
        assert found(look(without), "archive")[0].next == "pumphouse schema import"
        captured = without.model_copy(update={"capture": CaptureSettings(directory=tmp_path / "capture")})
        assert found(look(captured), "archive")[0].next == "pumphouse capture run"
        target.execute("CREATE DATABASE hist")
        target.execute("CREATE TABLE hist.jobs (job_id BIGINT PRIMARY KEY, job LONGTEXT)")
        assert found(look(without), "archive")[0].next == "pumphouse schema import"
        gone = without.model_copy(
            update={"history": history.model_copy(update={"history": "mysql://root@127.0.0.1:1/h.j"})}
        )
        assert found(look(gone), "archive")[0].next == "pumphouse archive init"
    assert isinstance(look(empty).now, int)
    assert Tso(0) < look(empty).now


def test_an_end_in_the_future_is_no_comfort(mine: Settings, source: MadeSource, cluster: FileCluster) -> None:
    source.ts = int(cluster.tso()) + (600_000 << 18)
    source.genesis()
    (ahead,) = [each for each in found(look(mine), "archive") if "future" in each.what]
    assert ahead.severity is Severity.ERROR


def test_who_looks_again_and_again_at_a_store_that_hangs_leaves_few_threads(
    tmp_path: Path, cluster: FileCluster
) -> None:
    del cluster  # it is there, and answers
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        where = {
            "cluster.url": f"file://{tmp_path}/cluster",
            "archive.root": "s3://bucket/archive",
            "archive.s3_endpoint": f"http://127.0.0.1:{hangs.getsockname()[1]}",
            "archive.s3_access_key": "a",
            "archive.s3_secret_key": "b",
        }
        settings = Settings.read(None, where)
        before = threading.active_count()
        for _ in range(40):
            status = look(settings, {}, within_s=0.1)
            assert (status.archive.end, status.exit_code) == (None, 4)
        assert "it is not asked again" in status.archive.problem
        assert threading.active_count() - before < 40
        other = settings.model_copy(
            update={"archive": settings.archive.model_copy(update={"root": f"file://{tmp_path}/empty"})}
        )
        assert "not asked again" not in look(other, {}).archive.problem
    # Once it answers, if only that it is not there, it is asked again.
    eventually(lambda: "not asked again" not in look(settings, {}, within_s=0.1).archive.problem, within_s=240)


def test_what_lies_along_an_archive_is_told_with_what_it_lacks(
    mine: Settings, source: MadeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    genesis = source.genesis(base=True)
    source.tick(1000)
    end = source.cut()
    drill = Drill(
        cluster_id=source.cluster_id, attempt="a", begun_ms=1, ended_ms=2, seed=1, at=end, into="x", target="h:1",
        verdict="equal",
    )  # fmt: skip
    write_drill(source.archive, drill, keep=9)
    write_drill(source.archive, replace(drill, attempt="b", begun_ms=3, ended_ms=None, verdict="not ended"), keep=9)
    write_drill(source.archive, replace(drill, attempt="c", begun_ms=4, ended_ms=5, verdict="failed"), keep=9)
    mark(source.archive, end, "before the move")
    found = past(source.archive)
    assert [(each.kind, each.at, each.good) for each in found.events] == [
        ("dump", genesis, True), ("mark", end, True), ("drill", end, False), ("drill", end, True),
    ]  # fmt: skip
    assert found.proven is not None
    assert found.proven.ended_ms == 2
    assert found.holes == ()
    # A table comes with rows that no binlog has: the whole cannot be restored until a dump has them.
    source.create_table("u", [column(1, "id", flag=3)])
    source.rewrite_job(lambda job: job.update(had_rows=True))
    at = source.jobs[-1].commit_ts
    end = source.cut()
    (hole,) = past(source.archive).holes
    assert (hole.start, hole.end, "d.u had rows" in hole.why) == (at - 1, end, True)
    # The shell says the same as the page, and what to type; so do metrics.
    shown = command(tmp_path, mine)
    assert shown.output.splitlines()[0].endswith(f"as at {clock(end)}"), shown.output
    assert re.search(
        r"^Late: .*only up to .*, until the next dump: d.u had rows .*; proved \d+ d ago: a drill", shown.output
    )
    assert (
        "d.u had rows when the history saw it first, and no binlog has them\n  next: pumphouse archive dump"
        in shown.output
    )
    seen = json.loads(command(tmp_path, mine, "--json").stdout)
    (stop,) = seen["archive"]["stops"]
    assert stop == {"at": str(at - 1), "why": hole.why}
    assert f"the whole to {show(at - 1)}" in shown.output
    metrics = command(tmp_path, mine, "--metrics")
    assert (metrics.exit_code, "pumphouse_severity 2.0" in metrics.output) == (4, True)
    view = read_view(source.archive)
    plan_restore(view, Tso(int(stop["at"])), task="main", settings=mine.load)
    with pytest.raises(UnknownDdl, match=r"d\.u had rows"):
        plan_restore(view, at, task="main", settings=mine.load)
    skipped = [LoadRule(do="skip", ddl=int(at), why="known")]
    assert past(source.archive, skipped).holes == stops_of(source.archive, skipped) == ()
    # While it is not read in time, nobody says that all is well.
    with monkeypatch.context() as slow:
        slow.setattr("pumphouse.status.look.stops_of", lambda *_: time.sleep(30))
        (unknown,) = [each for each in look(mine, within_s=0.6).findings if "not known" in each.what]
        assert unknown.severity is Severity.WARNING


@pytest.mark.row("A2", "R2")
@pytest.mark.parametrize("what", ["declared", "skipped"])
def test_what_a_restore_needs_consent_for_is_no_all_is_well_until_a_dump_lies_behind_it(
    mine: Settings, source: MadeSource, cluster: FileCluster, what: str
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.ts = int(cluster.tso()) - (60_000 << 18)
    source.genesis()
    whole = source.cut()
    lost = Declaration(
        node_id="pump-0", incarnation="i", from_ts=whole, to_ts=Tso(whole + (20 << 18)), reason="its disk died", who="ops"
    )  # fmt: skip
    source.tick(1000)
    hole = source.cut(**({"declared": (lost,)} if what == "declared" else {"binlog_skipped": True}))
    source.tick(1000)
    end = source.cut()
    status = look(mine)
    (stop,) = status.archive.stops or ()
    assert stop.at == whole
    (bad,) = [each for each in found(status, "archive") if "the whole is restorable only up to" in each.what]
    assert (bad.severity, bad.next) == (Severity.ERROR, "pumphouse archive dump")
    assert headline(status).mood == "bad"
    assert any("only up to" in each and stop.why in each for each in headline(status).says)
    assert [each.start for each in past(source.archive).holes] == ([whole] if what == "skipped" else [])
    # It is what a restore refuses: no other moment, and nothing less.
    view = read_view(source.archive)
    plan_restore(view, whole, task="main", settings=mine.load).require_accepted(False)
    for moment in (Tso(whole + 1), end):
        plan = plan_restore(view, moment, task="main", settings=mine.load)
        plan.require_accepted(True)
        with pytest.raises(RestoreError, match="its disk died" if what == "declared" else "skipped by TiDB"):
            plan.require_accepted(False)
    base = Base(begun=hole, low=hole, ts=Tso(hole + 1), tables=(), columns=True, sha256="")
    genesis = source.archive.genesis().sha256
    source.archive.store.put(base.key, base.to_json(cluster_id=source.cluster_id, genesis=genesis))
    assert look(mine).archive.stops == ()


@pytest.mark.row("A2")
def test_a_tidb_that_skips_binlogs_and_a_pump_without_fsync_are_told_for_as_long_as_they_do(
    mine: Settings, source: MadeSource, cluster: FileCluster
) -> None:
    source.ts = int(cluster.tso()) - (60_000 << 18)
    source.genesis()
    source.cut(binlog_skipped=True)
    status = look(mine)
    (skips,) = [each for each in found(status, "TiDB") if "skips binlogs" in each.what]
    assert (skips.severity, "/binlog/recover" in skips.next) == (Severity.ERROR, True)
    assert b"pumphouse_archive_binlogs_skipped 1.0" in exposition(status)
    end = Tso(source.tick())
    drained, runs = source.pumps_at(end)
    unsafe = (replace(drained, sync_log=False), replace(runs, sync_log=False, drained=False))
    source._publish(end, "a", (), pumps=unsafe, binlog_skipped=False)
    status = look(mine)
    assert not found(status, "TiDB")
    assert b"pumphouse_archive_binlogs_skipped 0.0" in exposition(status)
    (warned,) = [each for each in status.findings if "fsync" in each.what]
    assert (warned.who, warned.severity) == ("Pump pump-1", Severity.WARNING)
