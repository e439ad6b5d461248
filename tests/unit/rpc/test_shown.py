"""Passwords that someone put into an address are in no message, no fact of an error and no log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import structlog

from pump_service.command.go_options import pd_cluster, read_flags
from pump_service.metrics import PumpMetrics
from pump_service.process.push import push
from pumphouse.errors import ConfigError
from pumphouse.registry.open import open_cluster
from pumphouse.registry.pd_members import parse_endpoints
from pumphouse.rpc.shown import without_secrets
from pumphouse.settings import TlsSettings

PASSWORDS = ["s3cret", "s3c,s3cret", "s3c/s3cret", "s3c@s3cret", "s3c:s3cret", "s3c#s3cret", "s3c?s3cret", "[s3cret"]
READERS: dict[str, Callable[[str], object]] = {
    "an unknown kind": lambda given: open_cluster(f"etcds://{given}"),
    "a slash too few": lambda given: open_cluster(f"etcd:/{given}"),
    "etcd": lambda given: open_cluster(f"etcd://10.0.0.2:2379,{given}/root"),
    "pd": lambda given: open_cluster(f"pd://10.0.0.2:2379,{given}"),
    "pd by https": lambda given: parse_endpoints(f"https://{given}", TlsSettings()),
    "pd-urls": lambda given: pd_cluster(f"http://10.0.0.2:2379,http://{given}"),
    "pd-urls without a port": lambda given: pd_cluster(f"http://{given}".removesuffix(":2379")),
    "--pd-urls": lambda given: read_flags({"pd-urls": f"http://{given}"}),
}


@pytest.mark.row("W4")
@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("reader", READERS)
def test_an_address_with_a_password_is_refused_without_naming_it(reader: str, password: str) -> None:
    with pytest.raises(ConfigError) as caught:
        READERS[reader](f"root:{password}@10.0.0.1:2379")
    assert "s3c" not in f"{caught.value} {caught.value.facts}"
    assert "10.0.0.1" in str(caught.value)


@pytest.mark.row("P14")
@pytest.mark.parametrize("password", PASSWORDS)
def test_the_log_does_not_hold_the_password_of_a_pushgateway(password: str) -> None:
    async def push_for_a_while() -> None:
        metrics = PumpMetrics()
        pushing = asyncio.create_task(push(metrics, f"http://pusher:{password}@127.0.0.1:1", 0.01, "n"))
        while not metrics.push_failures._value.get():
            await asyncio.sleep(0.01)
        pushing.cancel()

    with structlog.testing.capture_logs() as logged:
        asyncio.run(push_for_a_while())
    assert [entry["event"] for entry in logged] == ["metrics_push_failed"]
    assert "s3c" not in str(logged)
    assert logged[0]["addr"] == "http://…@127.0.0.1:1"


@pytest.mark.row("W4")
def test_what_holds_no_password_is_shown_whole() -> None:
    assert without_secrets("etcd://a:1,b:2/root") == "etcd://a:1,b:2/root"
    assert without_secrets("a:1,b", "b") == "b"
    assert without_secrets("http://u:p@a:1,http://u:p@b:1", "http://u:p@a:1") == "http://…@b:1"
    assert without_secrets("u:p@a:1") == "…@a:1"
