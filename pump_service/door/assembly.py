"""How many bytes of incomplete requests a server holds: a budget that they get in the order in which they came.

HTTP/2 lets a peer send `Limits.stream_window` bytes ahead on each stream; what comes after them needs credit. While the
incomplete requests beside the oldest hold no more than `Limits.assembling`, everybody gets it. Above that only the
oldest does, so that it always completes, and the others wait with their peers until there is room or they are the
oldest. What is compressed is inflated by the same rule. The window of a connection is given back at once whatever its
streams wait for: the oldest request and small calls pass on every connection.

Bound: the requests beside the oldest hold `Limits.assembling_most` bytes at most, and the oldest as much as a message
may have. What would go over it is refused with UNAVAILABLE. While the budget is used up, so is a request that stands
still by its peer's fault: one that brings less than a quarter of a stream's window in `Limits.stalled_s`.
"""

from __future__ import annotations

from collections.abc import Callable

import grpc

from pump_service.door.deadlines import Deadlines
from pump_service.door.group import Refusal
from pump_service.door.limits import Limits
from pump_service.door.opencall import OpenCall


class Assembly:
    """Of a server. Calls say what they hold (`count`), ask before they take more (`lets`), and `leave`."""

    def __init__(self, limits: Limits, deadlines: Deadlines, now: Callable[[], float]) -> None:
        self._limits = limits
        self._deadlines = deadlines
        self._now = now
        self.held = 0  # by all calls
        self._calls: dict[OpenCall, int] = {}  # what each holds, oldest first; and those that wait
        self._waiting: dict[OpenCall, int] = {}  # how much more each asks for, in the order in which they began to
        self._seen: dict[OpenCall, int] = {}  # what each that is to move held at the last look
        self._due = 0.0  # the next look; 0 = none
        self._bucket = 0  # of it
        self._paused_at: float | None = None  # the server reads nothing since then

    def lets(self, call: OpenCall, size: int) -> bool:
        """Whether a call may take so much more. If not, its `go_on` is called when it may."""
        oldest = self._oldest()
        first = oldest is None or call is oldest
        if self._paused_at is None and (first or (not self._waiting and self._has_room(size))):
            return True
        self._calls.setdefault(call, 0)
        self._waiting[call] = size
        self._seen.pop(call, None)  # it stands still for our sake
        self._watch()
        return False

    def count(self, call: OpenCall, held: int) -> Refusal | None:
        """What a call holds now; a Refusal if that cannot be."""
        change = held - self._calls.get(call, 0)
        self.held += change
        if held or call in self._waiting:
            self._calls[call] = held
        else:
            self._forget(call)
        if change < 0:
            self._seen.pop(call, None)  # a message was complete or taken
            self._go_on()
        elif change and call is not self._oldest() and self._beside() > self._limits.assembling_most:
            most = self._limits.assembling_most
            return _refusal(
                f"{self._beside()} bytes beside the oldest, {most} (twice pump.incomplete_bytes) is the most"
            )
        else:
            self._watch()
        return None

    def complete(self, call: OpenCall) -> None:
        """A message of it is, and what follows came later than the others."""
        self._seen.pop(call, None)
        self._goes_last(call)

    def _goes_last(self, call: OpenCall) -> None:
        if self._waiting and call in self._calls and self.held <= self._limits.assembling_most:
            self._calls[call] = self._calls.pop(call)
            self._go_on()

    def settled(self, call: OpenCall) -> None:
        """The peer has sent everything: nothing is to be asked for."""
        if self._waiting.pop(call, None) is not None:
            if not self._calls[call]:
                self._forget(call)
            self._go_on()

    def leave(self, call: OpenCall) -> None:
        """It has ended, or others count its request from here on."""
        if call in self._calls:
            self.held -= self._calls[call]
            self._forget(call)
            self._go_on()

    def expire(self, now: float) -> None:
        """Look who stands still: once in `Limits.stalled_s` while the budget is used up."""
        del now
        self._bucket = 0
        if self._paused_at is not None:
            return  # `resume` makes up for the time
        self._due = 0.0
        oldest = self._oldest()
        for call, held in list(self._calls.items()):
            before = self._seen.pop(call, None)
            if call in self._waiting or not (call is oldest or call.awaits_peer()):
                continue
            if before is None or held - before >= self._limits.stream_window // 4:
                self._seen[call] = held
            elif call.awaits_peer():
                call.refuse(_refusal("this one stood still while they held all of pump.incomplete_bytes"))
            else:
                self._goes_last(call)  # its handler takes nothing, and the others need not wait for that
        self._watch()

    def pause(self) -> None:
        """The server reads nothing and inflates nothing, for want of room behind it: nobody is at fault."""
        self._paused_at = self._now()

    def resume(self) -> None:
        """It reads again; the next look comes later by the time in between."""
        paused_at, self._paused_at = self._paused_at, None
        self._go_on()
        if self._due and paused_at is not None:
            self._deadlines.discard(self._bucket, self)
            self._look_at(self._due + self._now() - paused_at)

    def _oldest(self) -> OpenCall | None:
        return next(iter(self._calls), None)

    def _beside(self) -> int:
        """Bytes of all but the oldest."""
        return self.held - next(iter(self._calls.values()), 0)

    def _has_room(self, size: int) -> bool:
        return self._beside() + size <= self._limits.assembling

    def _forget(self, call: OpenCall) -> None:
        self._calls.pop(call, None)
        self._waiting.pop(call, None)
        self._seen.pop(call, None)

    def _go_on(self) -> None:
        """Let the oldest take more, and as many others as there is room for."""
        while self._waiting and self._paused_at is None:
            call, size = next(iter(self._waiting.items()))
            oldest = self._oldest()
            if oldest is not None and oldest in self._waiting:
                call = oldest
            elif not self._has_room(size):
                break
            del self._waiting[call]
            if not self._calls[call]:
                self._forget(call)
            call.go_on()
        if self._due and not self._is_short():
            self._deadlines.discard(self._bucket, self)
            self._due, self._bucket = 0.0, 0
            self._seen.clear()

    def _is_short(self) -> bool:
        return bool(self._waiting) or self.held > self._limits.assembling

    def _watch(self) -> None:
        if not self._due and self._is_short():
            self._look_at(self._now() + self._limits.stalled_s)

    def _look_at(self, due: float) -> None:
        self._due, self._bucket = due, self._deadlines.add(due, self)


def _refusal(why: str) -> Refusal:
    return Refusal(grpc.StatusCode.UNAVAILABLE, f"too many incomplete requests: {why}")
