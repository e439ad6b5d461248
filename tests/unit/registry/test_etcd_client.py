"""What etcd's client says before it has connected."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from pumphouse.registry.etcd_client import EtcdClient
from pumphouse.settings import TlsSettings


@pytest.mark.row("W4")
@pytest.mark.parametrize(
    ("endpoint", "user", "tls", "warns"),
    [
        ("10.0.0.1:2379", "pump", False, True),
        ("etcd.example:2379", "pump", False, True),
        ("10.0.0.1:2379", "pump", True, False),
        ("10.0.0.1:2379", "", False, False),
        ("127.0.0.1:2379", "pump", False, False),
        ("[::1]:2379", "pump", False, False),
        ("localhost:2379", "pump", False, False),
    ],
)
def test_a_password_that_would_go_over_the_network_in_clear_is_warned_of(
    endpoint: str, user: str, *, tls: bool, warns: bool
) -> None:
    settings = TlsSettings(ca=Path("/ca")) if tls else TlsSettings()
    with structlog.testing.capture_logs() as logged:
        EtcdClient([endpoint], settings, user=user, password="s3cret" if user else "")
    assert [entry["event"] for entry in logged] == ["etcd_password_in_clear"] * warns
    assert "s3cret" not in str(logged)
