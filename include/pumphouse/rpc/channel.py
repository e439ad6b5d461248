"""gRPC channels and the options that both sides share.

Make channels where they are used, after a fork, never at import: gRPC and fork do not mix.
"""

from __future__ import annotations

import grpc

from pumphouse.model.address import dialable
from pumphouse.rpc.tls import channel_credentials
from pumphouse.settings import TlsSettings

# The largest length that gRPC's options take; the limit on a transaction is pumphouse.model.binlog's.
MAX_MESSAGE_BYTES = (1 << 31) - 1

_MESSAGE_SIZES: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_MESSAGE_SIZES,
    # A peer whose machine is gone says nothing: ask every 10 s, give up after 3 s, as TiDB's pump client does.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    # A Pump that comes back is found within a second, not after gRPC's default of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In spite of its name this is how long one attempt may take: a busy peer, or TLS to one far away, needs more.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Channels of one process to one host share connections otherwise, and with them a broken one.
    ("grpc.use_local_subchannel_pool", 1),
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_MESSAGE_SIZES,
    # Two Pumps on one port would each get half of the requests.
    ("grpc.so_reuseport", 0),
    # Clients may ask every 10 s, also between calls.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)


def open_channel(target: str, tls: TlsSettings | None = None) -> grpc.Channel:
    """Channel to ``host:port`` for threads. Connects on first use."""
    credentials = channel_credentials(tls or TlsSettings())
    if credentials is None:
        return grpc.insecure_channel(dialable(target), options=CHANNEL_OPTIONS)
    return grpc.secure_channel(dialable(target), credentials, options=CHANNEL_OPTIONS)


def open_aio_channel(target: str, tls: TlsSettings | None = None) -> grpc.aio.Channel:
    """Channel to ``host:port`` for an event loop."""
    credentials = channel_credentials(tls or TlsSettings())
    if credentials is None:
        return grpc.aio.insecure_channel(dialable(target), options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(dialable(target), credentials, options=CHANNEL_OPTIONS)
