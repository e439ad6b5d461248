"""Telling Drainers of a new Pump (row P9), against real servers that fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from pump_service.node import notify
from pumphouse.errors import PumpUnavailable
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.proto.cistern_pb2 import NotifyReq, NotifyResp
from pumphouse.proto.cistern_pb2_grpc import CisternServicer, add_CisternServicer_to_server
from pumphouse.registry.file import FileCluster
from pumphouse.settings import TlsSettings
from tests.support.pumpserver import PumpServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("P9")


class Drainer(CisternServicer):
    def __init__(self, name: str) -> None:
        self.asked = 0
        self.fail = 0
        self.hang = threading.Event()
        self.hang.set()
        self.server = grpc.server(ThreadPoolExecutor(2))
        add_CisternServicer_to_server(self, self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.status = NodeStatus(node_id=name, host=f"127.0.0.1:{port}", state=NodeState.ONLINE)

    def Notify(self, request: NotifyReq, context: grpc.ServicerContext) -> NotifyResp:
        self.asked += 1
        self.hang.wait(10)
        if self.fail:
            self.fail -= 1
            context.abort(grpc.StatusCode.UNKNOWN, "not now")
        return NotifyResp()


@pytest.fixture
def drainers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Drainer]]:
    monkeypatch.setattr(notify, "_FIRST_WAIT_S", 0.02)
    made = [Drainer("d1"), Drainer("d2")]
    yield made
    for each in made:
        each.hang.set()
        each.server.stop(0).wait()


def tell(drainers: list[Drainer]) -> None:
    asyncio.run(notify.notify([each.status for each in drainers], TlsSettings()))


def test_every_one_is_told_and_a_failure_is_tried_again_up_to_three_times(drainers: list[Drainer]) -> None:
    drainers[1].fail = 2
    tell(drainers)
    assert [each.asked for each in drainers] == [1, 3]


def test_after_three_tries_the_start_fails_in_the_go_pumps_words_and_names_the_drainer(drainers: list[Drainer]) -> None:
    drainers[1].fail = 3
    with pytest.raises(PumpUnavailable, match=r"^fail to notify all living drainer: d2 at .* set offline") as error:
        tell(drainers)
    assert [each.asked for each in drainers] == [1, 3]
    assert error.value.node_id == "d2"


def test_one_that_never_answers_ends_the_start_when_the_time_for_all_is_up(
    drainers: list[Drainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert notify.OVERALL_S == 10
    monkeypatch.setattr(notify, "OVERALL_S", 0.3)
    drainers[0].hang.clear()
    with pytest.raises(PumpUnavailable, match=r"fail to notify all living drainer: d1 at .* no answer within"):
        tell(drainers)
    assert [each.asked for each in drainers] == [1, 0]


def test_a_start_that_was_killed_before_the_answer_is_told_of_by_the_next_one(
    drainers: list[Drainer], tmp_path: Path
) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    drainer = drainers[0]
    cluster.update_node(NodeKind.DRAINER, "d1", lambda _: drainer.status)
    drainer.hang.clear()
    pump = PumpServer(tmp_path, cluster)
    pump.spawn()
    eventually(lambda: drainer.asked, within_s=60)
    pump.kill()
    found = cluster.node(NodeKind.PUMP, "pump-1")
    assert found is not None
    assert found.state is NodeState.ONLINE  # the registry shows nothing of it
    drainer.hang.set()
    asked = drainer.asked
    with PumpServer(tmp_path, cluster) as again:
        assert drainer.asked == asked + 1
        assert not (again.data_dir / notify.MARK).exists()
        again.kill()
    with PumpServer(tmp_path, cluster):
        assert drainer.asked == asked + 1
