"""Errors that a new user meets first say what to do next."""

from __future__ import annotations

import pytest

from pumphouse.errors import HistoryUnavailable, StoreError, StoreUnavailable, TargetUnavailable
from pumphouse.loader.target import TargetConnection
from pumphouse.objectstore.open import open_store
from pumphouse.schema.history import open_history
from pumphouse.settings import ArchiveSettings, SchemaSettings, TargetSettings


def test_a_target_that_is_not_there_names_the_settings() -> None:
    with pytest.raises(TargetUnavailable, match=r"is it running\? check host, port or unix_socket in \[target\]"):
        TargetConnection.open(TargetSettings(host="127.0.0.1", port=1))


def test_a_history_that_is_down_names_its_setting() -> None:
    for url in ("http://127.0.0.1:1", "mysql://root@127.0.0.1:1/s.t"):
        history = open_history(SchemaSettings(history=url))
        assert history is not None
        with pytest.raises(HistoryUnavailable, match=r"schema\.history"):
            list(history.jobs())


def test_an_s3_archive_without_keys_names_both_ways_to_give_them(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "BOTO_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = open_store(ArchiveSettings(root="s3://bucket/prefix", s3_endpoint="http://127.0.0.1:1"))
    with pytest.raises(StoreError, match=r"archive\.s3_access_key and archive\.s3_secret_key.*AWS_ACCESS_KEY_ID"):
        store.get("genesis.json")


def test_an_s3_server_that_is_down_names_its_setting() -> None:
    settings = {"root": "s3://b/p", "s3_endpoint": "http://127.0.0.1:1", "s3_access_key": "a", "s3_secret_key": "s"}
    with pytest.raises(StoreUnavailable, match=r"check archive\.s3_endpoint"):
        open_store(ArchiveSettings.model_validate(settings)).get("genesis.json")
