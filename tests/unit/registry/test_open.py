"""From a cluster URL to a Cluster."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from pumphouse.errors import ClusterUnavailable
from pumphouse.registry import open as open_module
from pumphouse.registry.open import open_cluster
from pumphouse.settings import ClusterSettings

pytestmark = pytest.mark.row("W4")


@pytest.mark.parametrize(
    ("create", "patient", "tries"), [(True, False, 5), (False, False, 3), (False, True, 5), (True, True, 5)]
)
def test_a_command_that_only_looks_asks_three_times_a_pump_as_often_as_the_setting_says(
    create: bool, patient: bool, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object, **__: object) -> None:
        raise ClusterUnavailable("etcd does not answer")

    monkeypatch.setattr(open_module, "EtcdCluster", silent)
    monkeypatch.setattr(open_module, "_BETWEEN_TRIES_S", 0.0)
    settings = ClusterSettings(url="etcd://127.0.0.1:1", init_tries=5)
    with capture_logs() as logged, pytest.raises(ClusterUnavailable):
        open_cluster(settings, create=create, patient=patient)
    assert len([each for each in logged if each["event"] == "etcd_does_not_answer"]) == tries - 1
