"""What several integration tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.etcdserver import EtcdServers
from tests.support.loading import server, settings, source, target  # noqa: F401 - fixtures


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServers]:
    """A real etcd of one member, for tests that leave it running."""
    with EtcdServers(tmp_path_factory.mktemp("etcd")) as servers:
        yield servers
