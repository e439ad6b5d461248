"""TLS at the door: ALPN, and what a certificate says in the words of gRPC's auth context."""

from __future__ import annotations

import asyncio
import ssl

AuthContext = dict[str, list[bytes]]


def with_alpn(context: ssl.SSLContext) -> ssl.SSLContext:
    """The context, offering HTTP/1.1 and HTTP/2.

    The first that a client offers too is taken. Clients of HTTP (browsers, curl, Prometheus) offer both, and what they
    ask for is served over HTTP/1.1. gRPC's clients offer h2 alone, but for those of Go programs whose TLS settings name
    both: these speak HTTP/2 whatever was taken, and `sniff` goes by what is spoken.
    """
    context.set_alpn_protocols(["http/1.1", "h2"])
    return context


def auth_context(transport: asyncio.BaseTransport) -> AuthContext:
    """Keys as `grpc.ServicerContext.auth_context` has them; empty without TLS."""
    ssl_object = transport.get_extra_info("ssl_object")
    if ssl_object is None:
        return {}
    found: AuthContext = {"transport_security_type": [b"ssl"]}
    certificate = ssl_object.getpeercert() or {}
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                found.setdefault("x509_common_name", []).append(value.encode())
    names = [value.encode() for _, value in certificate.get("subjectAltName", ())]
    if names:
        found["x509_subject_alternative_name"] = names
    return found
