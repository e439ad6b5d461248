"""TLS and mutual TLS from one section of settings, for gRPC and HTTP alike (row W6).

TLS is on when ``tls.ca`` is set. A server asks for client certificates only when ``tls.cert_allowed_cn`` is set, as
the Go tools do: then one is required, signed by the CA, and its common name must be on the list.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from pumphouse.errors import ConfigError, PeerRefused
from pumphouse.model.address import dialable
from pumphouse.settings import TlsSettings


def server_credentials(tls: TlsSettings) -> grpc.ServerCredentials | None:
    """Credentials of a gRPC server's port; None = plain text."""
    if not tls.enabled:
        return None
    _check_files(tls, pair=True)
    return grpc.ssl_server_credentials(
        [(_read(tls.key, "key"), _read(tls.cert, "cert"))],
        root_certificates=_read(tls.ca, "ca"),
        require_client_auth=bool(tls.cert_allowed_cn),
    )


def channel_credentials(tls: TlsSettings) -> grpc.ChannelCredentials | None:
    """Credentials of a gRPC client; None = plain text."""
    if not tls.enabled:
        return None
    pair = tls.cert is not None or tls.key is not None
    _check_files(tls, pair=pair)
    if not pair:
        return grpc.ssl_channel_credentials(_read(tls.ca, "ca"))
    return grpc.ssl_channel_credentials(_read(tls.ca, "ca"), _read(tls.key, "key"), _read(tls.cert, "cert"))


def server_ssl_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """Context of an HTTP server; None = plain text."""
    if not tls.enabled:
        return None
    with _usable(tls, "ca"):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=_path(tls.ca, "ca"))
    with _usable(tls, "cert", "key"):
        context.load_cert_chain(_path(tls.cert, "cert"), _path(tls.key, "key"))
    context.verify_mode = ssl.CERT_REQUIRED if tls.cert_allowed_cn else ssl.CERT_NONE
    return context


def client_ssl_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """Context of an HTTP client; None = plain text."""
    if not tls.enabled:
        return None
    with _usable(tls, "ca"):
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=_path(tls.ca, "ca"))
    if tls.cert is not None or tls.key is not None:
        with _usable(tls, "cert", "key"):
            context.load_cert_chain(_path(tls.cert, "cert"), _path(tls.key, "key"))
    return context


def http_connection(addr: str, tls: TlsSettings, timeout_s: float) -> http.client.HTTPConnection:
    """To ``host:port``, not yet open. `http.client.InvalidURL` where that is none."""
    context = client_ssl_context(tls)
    if context is None:
        return http.client.HTTPConnection(dialable(addr), timeout=timeout_s)
    return http.client.HTTPSConnection(dialable(addr), timeout=timeout_s, context=context)


def check_grpc_peer(auth_context: Mapping[str, Any], tls: TlsSettings, *, peer: str = "") -> None:
    """Raise PeerRefused unless a caller's certificate may come in; ``auth_context`` is ``context.auth_context()``."""
    if tls.enabled and tls.cert_allowed_cn:
        _check((name.decode("utf-8", "replace") for name in auth_context.get("x509_common_name", ())), tls, peer)


def check_http_peer(certificate: Mapping[str, Any] | None, tls: TlsSettings, *, peer: str = "") -> None:
    """The same for HTTP; ``certificate`` is ``SSLObject.getpeercert()``."""
    if tls.enabled and tls.cert_allowed_cn:
        subject = (certificate or {}).get("subject", ())
        _check((value for part in subject for key, value in part if key == "commonName"), tls, peer)


def _check(names: Iterable[str], tls: TlsSettings, peer: str) -> None:
    have = sorted(names)
    if not set(have) & set(tls.cert_allowed_cn):
        raise PeerRefused(
            f"the certificate of {peer or 'the caller'} carries {', '.join(map(repr, have)) or 'no name'}, "
            "which tls.cert_allowed_cn does not list",
            hint="use a certificate with an allowed common name",
            peer=peer,
        )


@contextmanager
def _usable(tls: TlsSettings, *names: str) -> Iterator[None]:
    """An error of what is loaded inside is a ConfigError that names the settings."""
    try:
        yield
    except OSError as error:  # an SSLError is one
        files = " and ".join(f"tls.{name} ({getattr(tls, name)})" for name in names)
        one = len(names) == 1
        raise ConfigError(
            f"{files} cannot be used{'' if one else ' together'}: {error}",
            hint="a readable PEM file" if one else "readable PEM files: a certificate, and the key that belongs to it",
            path=str(getattr(tls, names[0])),
        ) from error


def _check_files(tls: TlsSettings, *, pair: bool) -> None:
    """ConfigError for files that gRPC would take in silence, and then connect to nobody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # which keys are strong enough is for gRPC to say
    with _usable(tls, "ca"):
        context.load_verify_locations(_path(tls.ca, "ca"))
    if pair:
        with _usable(tls, "cert", "key"):
            # gRPC asks nobody for a password.
            context.load_cert_chain(_path(tls.cert, "cert"), _path(tls.key, "key"), password="")


def _path(path: Path | None, name: str) -> Path:
    if path is None:
        raise ConfigError(f"tls.{name} is missing", hint="tls.ca, tls.cert and tls.key belong together")
    if not path.is_file():
        raise ConfigError(f"tls.{name}: there is no file {path}", path=str(path))
    return path


def _read(path: Path | None, name: str) -> bytes:
    return _path(path, name).read_bytes()
