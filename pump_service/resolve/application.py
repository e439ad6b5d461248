"""Applications that answer for their own transactions: `pumphouse.v1.TxnResolver`, registered in the cluster.

The one whose prefix matches the prewrite key is asked, the longest prefix first; only live ones (`is_live`)
count. The registry is read at most once a second.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import structlog

from pump_service.resolve.base import Fate, NoAnswer, Outcome
from pumphouse.clock import Clock
from pumphouse.errors import BinlogError
from pumphouse.proto.pumphouse_pb2 import TxnStatusRequest, TxnStatusResponse
from pumphouse.proto.pumphouse_pb2_grpc import TxnResolverStub
from pumphouse.registry.base import Cluster, ResolverRecord
from pumphouse.registry.resolvers import is_live
from pumphouse.rpc.channel import open_aio_channel
from pumphouse.rpc.status import from_rpc_error
from pumphouse.settings import TlsSettings

log = structlog.get_logger()

_ASK_TIMEOUT_S = 5.0
_REGISTRY_TTL_S = 1.0
_SILENCE_S = 5.0
_FATES = {
    TxnStatusResponse.PENDING: Fate.PENDING,
    TxnStatusResponse.COMMITTED: Fate.COMMITTED,
    TxnStatusResponse.ROLLED_BACK: Fate.ROLLED_BACK,
}


def choose(records: list[ResolverRecord], key: bytes, now: float) -> ResolverRecord | None:
    """The live resolver with the longest prefix of ``key``, or None. Live as the registry has it (`is_live`)."""
    matching = [
        (len(prefix), record)
        for record in records
        if is_live(record, now)
        for prefix in record.prefixes
        if key.startswith(prefix)
    ]
    return max(matching, key=lambda pair: pair[0])[1] if matching else None


class ApplicationResolver:
    """Resolver over the registered applications. Owned by the event loop."""

    def __init__(self, cluster: Cluster, cluster_id: int, tls: TlsSettings, clock: Clock) -> None:
        self._cluster = cluster
        self._cluster_id = cluster_id
        self._tls = tls
        self._clock = clock
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._asking: Counter[str] = Counter()  # questions under way, by host
        self._records: list[ResolverRecord] = []
        self._read_at = float("-inf")
        self._read = False  # the last look at the registry succeeded
        self._reading = asyncio.Lock()
        self._silent_until: dict[str, float] = {}

    async def ask(self, start_ts: int, prewrite_key: bytes, *, decide: bool) -> Outcome:
        """See `Resolver.ask`."""
        record = choose(await self._live(), prewrite_key, self._clock.now())
        if record is None:
            raise NoAnswer(
                f"no live resolver answers for the prewrite key of start ts {start_ts}",
                hint="start the application's resolver, or: pumphouse pump settle",
                start_ts=start_ts,
            )
        if self._clock.monotonic() < self._silent_until.get(record.host, 0.0):
            raise NoAnswer(f"resolver {record.resolver_id} did not answer a moment ago", start_ts=start_ts)
        channel = self._channels.get(record.host)
        if channel is None:
            channel = self._channels[record.host] = open_aio_channel(record.host, self._tls)
        request = TxnStatusRequest(
            cluster_id=self._cluster_id, start_ts=start_ts, prewrite_key=prewrite_key, decide=decide
        )
        self._asking[record.host] += 1
        try:
            answer = await TxnResolverStub(channel).TxnStatus(request, timeout=_ASK_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                # The questions that wait behind this one would each take as long, and those of other resolvers too.
                self._silent_until[record.host] = self._clock.monotonic() + _SILENCE_S
            reason = from_rpc_error(error, peer=record.host)
            raise NoAnswer(f"resolver {record.resolver_id}: {reason}", start_ts=start_ts) from error
        finally:
            self._asking[record.host] -= 1
        return _outcome(answer, start_ts, record.resolver_id)

    async def claims(self, prewrite_key: bytes) -> bool:
        """Whether an application has registered for a key, live or not. NoAnswer while the registry cannot be read.

        A list from before would not do: whoever registered since is not in it, and TiKV would be asked instead.
        """
        records = await self._live()
        if not self._read:
            raise NoAnswer("the registry of resolvers cannot be read")
        return any(prewrite_key.startswith(prefix) for record in records for prefix in record.prefixes)

    async def evidence(self, start_ts: int, prewrite_key: bytes) -> str:
        """Applications answer, they show nothing."""
        del start_ts, prewrite_key
        return ""

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()

    async def _live(self) -> list[ResolverRecord]:
        async with self._reading:
            if self._clock.monotonic() - self._read_at >= _REGISTRY_TTL_S:
                self._read = False
                try:
                    self._records = await asyncio.to_thread(self._cluster.resolvers)
                    self._read = True
                    await self._let_go()
                except (BinlogError, OSError) as error:
                    # The ones read before are asked on; their heartbeats age out by themselves.
                    log.warning("resolvers_unreadable", error=str(error))
                self._read_at = self._clock.monotonic()
        return self._records

    async def _let_go(self) -> None:
        """Close what leads to addresses that no record names any more: each restart may register another port."""
        named = {record.host for record in self._records}
        self._asking = +self._asking  # without those at 0
        for host in self._channels.keys() - named - self._asking.keys():
            await self._channels.pop(host).close(None)
        self._silent_until = {host: until for host, until in self._silent_until.items() if host in named}


def _outcome(answer: TxnStatusResponse, start_ts: int, who: str) -> Outcome:
    fate = _FATES.get(answer.outcome)
    if fate is None or (fate is Fate.COMMITTED and answer.commit_ts <= start_ts):
        raise NoAnswer(
            f"resolver {who} gave an answer that cannot be for start ts {start_ts}: outcome {answer.outcome}, commit"
            f" ts {answer.commit_ts}",
            start_ts=start_ts,
        )
    return Outcome(fate=fate, commit_ts=answer.commit_ts if fate is Fate.COMMITTED else 0)
