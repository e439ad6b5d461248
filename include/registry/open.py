"""From a cluster URL to a Cluster."""

from __future__ import annotations

from pathlib import Path

from include.errors import ConfigError
from include.registry.base import Cluster
from include.registry.file import FileCluster
from include.settings import TlsSettings

_LATER = {"pd": "PD", "etcd": "plain etcd"}


def open_cluster(url: str, tls: TlsSettings | None = None, *, create: bool = True) -> Cluster:
    """Open ``file:///dir`` (relative as ``file://./dir``).

    Args:
        url: ``cluster.url`` of the settings.
        tls: certificates for back ends that are servers; a directory needs none.
        create: whether a ``file://`` cluster that does not exist yet is made.

    Raises:
        ConfigError: the URL is of an unknown or not yet supported kind, or there is no cluster and none is to be made.
    """
    del tls
    scheme, sep, rest = url.partition("://")
    if sep and scheme in _LATER:
        raise ConfigError(
            f"{url}: clusters on {_LATER[scheme]} come with a later release",
            hint="supported now: file:///dir",
            url=url,
        )
    if scheme != "file" or not sep:
        raise ConfigError(f"{url!r} is no cluster URL", hint="supported now: file:///dir", url=url)
    if not rest:
        raise ConfigError(f"{url!r} names no directory", hint="as in file:///var/lib/pumphouse/cluster", url=url)
    return FileCluster(Path(rest), create=create)
