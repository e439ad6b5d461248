"""The whole small chain on etcd: a Pump, the client, the archive and the commands, over an etcd that restarts."""

from __future__ import annotations

import json
import threading
import time

import pytest
from click.testing import CliRunner

from pumphouse.archive import consumer
from pumphouse.archive.archive import Archive
from pumphouse.cli import cli
from pumphouse.client.pump_client import PumpClient
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.objectstore.open import open_store
from pumphouse.registry.open import open_cluster
from pumphouse.settings import ArchiveSettings
from tests.integration.test_archive_on_pumps import value
from tests.support.etcdserver import EtcdServers
from tests.support.nojobs import NoJobHistory
from tests.support.pumpserver import PumpServer, commit, prewrite
from tests.support.waiting import eventually


@pytest.mark.row("W4", "W5", "P10", "P13", "C1", "A1", "O3")
def test_a_pump_the_client_the_archive_and_the_commands_run_on_an_etcd_that_restarts(tmp_path, monkeypatch):
    monkeypatch.setattr("pumphouse.parts.open_history", lambda *_: NoJobHistory())
    archive_settings = ArchiveSettings(root=f"file://{tmp_path}/archive")

    def run(*arguments: str) -> str:
        sets = {"cluster.url": cluster.url, "archive.root": archive_settings.root}
        sets |= {"archive.pull_timeout_s": "20", "archive.poll_interval_s": "0.05"}
        options = [part for name, text in sets.items() for part in ("--set", f"{name}={text}")]
        result = CliRunner().invoke(cli, [*options, "--log-level", "error", *arguments])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    with EtcdServers(tmp_path / "etcd") as servers:
        cluster = open_cluster(servers.url)
        with (
            PumpServer(tmp_path, cluster, node_id="pump-1").start() as pump,
            PumpClient(cluster, probe_interval_s=0.5) as client,
        ):
            run("archive", "init")
            commits: list[int] = []

            def write() -> None:
                start_ts = cluster.tso()
                client.write_prewrite(prewrite(start_ts, value()), start_ts)
                commit_ts = cluster.tso()
                client.write_commit(commit(start_ts, commit_ts), start_ts)
                commits.append(commit_ts)

            for _ in range(20):
                write()
            servers.kill()
            riding = threading.Thread(target=write)
            riding.start()
            time.sleep(1)
            assert len(commits) == 20
            assert pump.status().state == NodeState.ONLINE
            servers.start(0)
            riding.join(60)
            servers.wait()
            assert len(commits) == 21
            restarted = cluster.tso()
            eventually(lambda: cluster.node(NodeKind.PUMP, "pump-1").update_ts > restarted)
            assert client.flush(60)
            run("snapshot")
            archive = Archive(open_store(archive_settings), cluster.cluster_id())
            archived = [
                ts
                for manifest in archive.windows()
                for segment in manifest.segments
                for batch in archive.segment_batches(manifest, segment)
                for ts in batch.column("commit_ts").to_pylist()
            ]
            assert archived == sorted(commits)
            assert consumer.checkpoint(cluster, "main") == archive.end()
            assert [each["state"] for each in json.loads(run("pumps", "--json"))] == ["online"]
            closing = threading.Thread(target=run, args=("offline-pump", "pump-1", "--wait", "30"))
            closing.start()
            eventually(lambda: cluster.node(NodeKind.PUMP, "pump-1").state == NodeState.CLOSING)
            eventually(lambda: not client.available())  # told by the watch
            while closing.is_alive():
                run("snapshot")
            closing.join()
            assert pump.wait() == 0
            assert cluster.node(NodeKind.PUMP, "pump-1").state == NodeState.OFFLINE
            run("snapshot")
            assert archive.last().pump("pump-1").drained
        cluster.close()
