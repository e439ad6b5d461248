"""Who is asked on ``pd://``: the application that registered for a key, for every other key TiKV."""

from __future__ import annotations

from pump_service.resolve.application import ApplicationResolver
from pump_service.resolve.base import Outcome
from pump_service.resolve.tikv import TikvResolver


class ApplicationFirst:
    """Resolver of two. An application whose resolver is down is waited for: TiKV knows nothing of its transactions."""

    def __init__(self, application: ApplicationResolver, tikv: TikvResolver) -> None:
        self._application = application
        self._tikv = tikv

    async def ask(self, start_ts: int, prewrite_key: bytes, *, decide: bool) -> Outcome:
        """See `Resolver.ask`."""
        if await self._application.claims(prewrite_key):
            return await self._application.ask(start_ts, prewrite_key, decide=decide)
        return await self._tikv.ask(start_ts, prewrite_key, decide=decide)

    async def evidence(self, start_ts: int, prewrite_key: bytes) -> str:
        """See `Resolver.evidence`."""
        if await self._application.claims(prewrite_key):
            return ""
        return await self._tikv.evidence(start_ts, prewrite_key)

    async def close(self) -> None:
        """Close both."""
        await self._tikv.close()
        await self._application.close()
