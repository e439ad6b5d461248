"""Node id of a data directory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pump_service.node.node_id import check_cluster, keep_cluster, node_id_of
from pumphouse.archive.layout import segment_key
from pumphouse.errors import ClusterMismatch, ConfigError, CorruptionError, StoreError
from pumphouse.model.tso import Tso
from pumphouse.objectstore.file import FileStore

pytestmark = pytest.mark.row("W3")


def test_the_setting_is_kept_with_the_data_and_wins_over_a_later_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert node_id_of(data, "first", "127.0.0.1:8250") == "first"
    assert (data / ".node").read_text() == "first"
    assert (data / ".node").stat().st_mode & 0o777 == 0o600
    assert node_id_of(data, "second", "127.0.0.1:8250") == "first"
    assert node_id_of(data, "", "127.0.0.1:9999") == "first"


def test_without_a_setting_it_is_host_and_port_and_stays_when_the_port_changes(tmp_path: Path) -> None:
    assert node_id_of(tmp_path, "", "127.0.0.1:8250") == f"{socket.gethostname()}:8250"
    assert node_id_of(tmp_path, "", "127.0.0.1:8251") == f"{socket.gethostname()}:8250"


def test_a_node_file_of_the_go_pump_is_trimmed(tmp_path: Path) -> None:
    (tmp_path / ".node").write_text("  old:8250\n")
    assert node_id_of(tmp_path, "", "127.0.0.1:1") == "old:8250"


@pytest.mark.parametrize("bad", ["a/b", "..", "a\nb", " a", "x" * 201])
def test_an_id_that_cannot_be_a_key_is_refused_before_anything_is_written(tmp_path: Path, bad: str) -> None:
    with pytest.raises(ConfigError, match="is no node id"):
        node_id_of(tmp_path / "data", bad, "127.0.0.1:1")
    assert not (tmp_path / "data").exists()


@pytest.mark.row("P3", "A1")
def test_a_new_id_that_no_file_of_the_archive_could_be_named_by_is_refused(tmp_path: Path) -> None:
    """And an id that a Pump has runs on: on S3 such names are stored."""
    for number, (bad, good) in enumerate([("泵" * 29, "泵" * 28), ("п" * 43, "п" * 42), ("." * 86, "a" + "." * 84)]):
        with pytest.raises(ConfigError, match="is too long a node id"):
            node_id_of(tmp_path / f"{number}", bad, "127.0.0.1:1")
        assert not (tmp_path / f"{number}").exists()
        assert node_id_of(tmp_path / f"{number}", good, "127.0.0.1:1") == good
        FileStore(tmp_path / "archive").put(segment_key(Tso(1), Tso(2), good, "0" * 16, 0), b"rows")
        with pytest.raises(StoreError, match="File name too long") as told:
            FileStore(tmp_path / "archive").put(segment_key(Tso(1), Tso(2), bad, "0" * 16, 0), b"rows")
        assert "node id of a Pump" in told.value.hint
        (tmp_path / f"{number}" / ".node").write_text(bad)
        assert node_id_of(tmp_path / f"{number}", "", "127.0.0.1:1") == bad


def test_a_data_directory_is_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        node_id_of(tmp_path / "data", "", "127.0.0.1:1")
    finally:
        os.umask(before)
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


@pytest.mark.row("W5")
def test_a_data_directory_is_refused_to_another_cluster(tmp_path: Path) -> None:
    (tmp_path / "pumphouse").mkdir()
    check_cluster(tmp_path, 5)
    keep_cluster(tmp_path, 5)
    check_cluster(tmp_path, 5)
    keep_cluster(tmp_path, 6)  # the first one stays
    with pytest.raises(ClusterMismatch, match="holds binlogs of cluster 5") as refused:
        check_cluster(tmp_path, 6)
    assert (refused.value.got, refused.value.want) == (6, 5)
    (tmp_path / "pumphouse" / "cluster.json").write_text("{}")
    with pytest.raises(CorruptionError, match="names no cluster"):
        check_cluster(tmp_path, 5)
