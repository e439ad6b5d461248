"""From a cluster URL to a Cluster."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.errors import ClusterUnavailable, ConfigError
from pumphouse.library_log import library_logger
from pumphouse.registry.base import Cluster
from pumphouse.registry.etcd import EtcdCluster
from pumphouse.registry.etcd_client import EtcdClient
from pumphouse.registry.file import FileCluster
from pumphouse.registry.pd import PdCluster
from pumphouse.registry.pd_members import PdOptions
from pumphouse.rpc.shown import without_secrets
from pumphouse.settings import ClusterSettings, TlsSettings

log = library_logger(__name__)

_SUPPORTED = "as in pd://host:2379[,host2:2379], etcd://host:2379[,host2:2379][/root] or file:///dir"
# A command that only looks does not wait for minutes until PD comes up.
_TRIES_OF_A_COMMAND = 3
_BETWEEN_TRIES_S = 1.0


def open_cluster(
    cluster: str | ClusterSettings, tls: TlsSettings | None = None, *, create: bool = True, patient: bool = False
) -> Cluster:
    """Open ``pd://host:port[,…]``, ``etcd://host:port[,…][/root]`` or ``file:///dir`` (relative as ``file://./dir``).

    Args:
        cluster: the section ``cluster`` of the settings; or only its URL, for back ends without a password.
        tls: certificates for back ends that are servers; a directory needs none.
        create: whether an ``etcd://`` or ``file://`` cluster that does not exist yet is made.
        patient: ask a PD or etcd that does not answer ``cluster.init_tries`` times without ``create`` too, not only
            three times.

    Raises:
        ConfigError: the URL is of an unknown kind, or there is no cluster and none is to be made.
        ClusterUnavailable: its servers do not answer.
    """
    settings = ClusterSettings(url=cluster) if isinstance(cluster, str) else cluster
    url = settings.url
    scheme, sep, rest = url.partition("://")
    tries = settings.init_tries if create or patient else min(settings.init_tries, _TRIES_OF_A_COMMAND)
    if sep and scheme == "etcd":
        return _open_etcd(settings, rest, tls or TlsSettings(), create=create, tries=tries)
    if sep and scheme == "pd":
        return PdCluster(rest, tls, PdOptions(init_tries=tries))
    if scheme != "file" or not sep:
        shown = without_secrets(url)
        raise ConfigError(f"{shown!r} is no cluster URL", hint=_SUPPORTED, url=shown)
    if not rest:
        raise ConfigError(f"{url!r} names no directory", hint="as in file:///var/lib/pumphouse/cluster", url=url)
    return FileCluster(Path(rest), create=create)


def _open_etcd(settings: ClusterSettings, rest: str, tls: TlsSettings, *, create: bool, tries: int) -> EtcdCluster:
    addresses, _, root = rest.partition("/")
    endpoints = [_endpoint(address.strip(), rest) for address in addresses.split(",") if address.strip()]
    client = EtcdClient(endpoints, tls, user=settings.user, password=settings.password.get_secret_value())
    root = root.strip("/")
    try:
        while True:
            try:
                return EtcdCluster(client, root=f"/{root}" if root else "", create=create)
            except ClusterUnavailable as error:
                tries -= 1
                if tries <= 0:
                    raise
                log.warning("etcd_does_not_answer", tries_left=tries, reason=error.message)
                SYSTEM_CLOCK.sleep(_BETWEEN_TRIES_S)
    except BaseException:
        client.close()
        raise


def _endpoint(address: str, whole: str) -> str:
    try:
        split = urlsplit(f"//{address}")
        if split.hostname and split.port and not split.username and split.netloc == address:
            return address
    except ValueError:
        pass
    raise ConfigError(
        f"{without_secrets(whole, address)!r} in cluster.url is no address of etcd",
        hint="as in etcd://10.0.0.1:2379,10.0.0.2:2379; user and password have settings of their own",
    )
