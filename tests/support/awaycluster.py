"""A registry that is away for a while, or answers late: neither can be had from a directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pumphouse.model.node import NodeKind, NodeStatus
from pumphouse.model.tso import Tso
from pumphouse.registry.file import FileCluster


class AwayCluster(FileCluster):
    """`first` has what is done before a method asks the directory, by the method's name: it may raise, or wait."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.first: dict[str, Callable[[], object]] = {}

    def fails(self, method: str, error: Exception, times: int = 1 << 60) -> None:
        """It raises this so often."""
        left = [times]

        def fail() -> None:
            left[0] -= 1
            if left[0] >= 0:
                raise error

        self.first[method] = fail

    def tso(self) -> Tso:
        self._first("tso")
        return super().tso()

    def tsos(self, count: int) -> Sequence[Tso]:
        self._first("tso")
        return super().tsos(count)

    def nodes(self, kind: NodeKind) -> list[NodeStatus]:
        self._first("nodes")
        return super().nodes(kind)

    def readable_nodes(self, kind: NodeKind) -> list[NodeStatus]:
        self._first("readable_nodes")
        return super().readable_nodes(kind)

    def update_node(
        self,
        kind: NodeKind,
        node_id: str,
        change: Callable[[NodeStatus | None], NodeStatus | None],
        *,
        anew: bool = False,
    ) -> NodeStatus | None:
        self._first("update_node")
        return super().update_node(kind, node_id, change, anew=anew)

    def _first(self, method: str) -> None:
        if method in self.first:
            self.first[method]()
