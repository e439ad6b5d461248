"""How many bytes of incomplete requests a server holds, and who may send more of theirs.

HTTP/2 lets a peer send `Limits.stream_window` bytes ahead on each stream; what comes after them needs credit. While the
incomplete requests beside the oldest, with all that may still come of them, are no more than `Limits.assembling`,
everybody gets it. Above that only the oldest does, so that it always completes, and the others wait with their peers,
in the order in which they began to wait, until there is room or they are the oldest. The window of a connection is
given back at once whatever its streams wait for: the oldest request and small calls pass on every connection. What is
compressed is inflated by the same rule.

The oldest may be as large as a message may be. If it does not move while others wait it becomes the youngest: after
`Limits.stalled_s` in which it grew by less than a quarter of a stream's window, unless it is the server that does not
read, or that inflates what is there.

Bound: the requests beside the oldest hold `Limits.assembling_most` bytes at most, all together no more than that, a
message and a stream's window (and one frame, or step of inflating, for the moment in which it is counted). Credit makes
no more than `assembling` of what they hold, without it each stream brings its first window, and one that was the oldest
may have had more. Where all that comes to more than the bound, what would go over it is refused with UNAVAILABLE, after
requests that have lost their favour and have not moved since, and others that have stood still for as long without
asking for credit. An oldest that loses its favour with so much that the bound would not hold is refused itself.
"""

from __future__ import annotations

import math
from collections import OrderedDict
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
        self._calls: OrderedDict[OpenCall, int] = OrderedDict()  # what each holds, oldest first; and those that wait
        self._grew: dict[OpenCall, tuple[float, int]] = {}  # when each had last grown by a quarter window, and to what
        self._waiting: OrderedDict[OpenCall, int] = OrderedDict()  # and how much more each asks for
        self._coming: dict[OpenCall, int] = {}  # what each may bring without more credit
        self._coming_bytes = 0
        self._still: dict[OpenCall, None] = {}  # lost their favour, and have not moved since
        self._favoured: OpenCall | None = None  # the oldest
        self._since = 0.0  # when that was last found to move
        self._had = 0  # bytes that it held then
        self._bucket = 0
        self._stopped = math.inf  # when the server ceased to read, if it does not
        self._unread_s = 0.0  # for so long it did not read, in all; the times above are without it

    def lets(self, call: OpenCall, size: int) -> bool:
        """Whether a call may take so much more. If not, its `go_on` is called when it may."""
        if call is self._favoured or self._favoured is None or (not self._waiting and self._has_room(size)):
            if call in self._calls:
                self._comes(call, self._coming.get(call, 0) + size)
            return True
        self._calls.setdefault(call, 0)
        self._waiting[call] = size
        self._watch()
        return False

    def count(self, call: OpenCall, held: int) -> Refusal | None:
        """What a call holds now; a Refusal if that cannot be."""
        before = self._calls.get(call, 0)
        change = held - before
        self.held += change
        if held or call in self._waiting:
            self._calls[call] = held
            self._comes(call, call.coming())
        else:
            self._forget(call)
        if change > 0:
            return self._grown(call)
        if change:
            if call is self._favoured and call in self._calls:
                self.moved(call)
            self._go_on()
        return None

    def moved(self, call: OpenCall) -> None:
        """It has, though it does not hold more: a step of inflating, a message that is complete."""
        if call in self._calls:
            self._mark(call)
            if call is self._favoured:
                self._moves()

    def stopped(self) -> None:
        """The server does not read, for want of room behind the door: time stands still for all."""
        self._stopped = self._now()

    def resumed(self) -> None:
        """The server reads again."""
        self._unread_s += self._now() - self._stopped
        self._stopped = math.inf

    def complete(self, call: OpenCall) -> None:
        """A message of it is, and more follow: others have their turn."""
        if call is self._favoured and self._waiting and self.held <= self._limits.assembling_most:
            self._calls.move_to_end(call)
            self._go_on()

    def settled(self, call: OpenCall) -> None:
        """The peer has sent everything: nothing is to be asked for."""
        if call in self._calls:
            self._waiting.pop(call, None)
            if self._calls[call]:
                self._comes(call, 0)
            else:
                self._forget(call)
            self._go_on()

    def leave(self, call: OpenCall) -> None:
        """It has ended, or others count its request from here on."""
        if call in self._calls:
            self._waiting.pop(call, None)
            self.held -= self._calls[call]
            self._forget(call)
            self._go_on()

    def expire(self, now: float) -> None:
        """See whether the oldest moves."""
        del now
        self._bucket = 0
        while self._waiting and not self._paused and self._reading() - self._since >= self._limits.stalled_s:
            grown = self._calls[self._favoured] - self._had if self._favoured is not None else 0
            if grown >= self._limits.stream_window // 4:
                self._moves()
            else:
                self._unfavour()
        if self._waiting:
            self._watch()

    def _beside(self) -> int:
        """Bytes of all but the oldest."""
        return self.held - (self._calls[self._favoured] if self._favoured is not None else 0)

    def _has_room(self, size: int) -> bool:
        """Whether so much more may come beside the oldest."""
        coming = self._coming_bytes
        if self._favoured is not None:
            coming -= self._coming.get(self._favoured, 0)
        return self._beside() + coming + size <= self._limits.assembling

    def _comes(self, call: OpenCall, size: int) -> None:
        self._coming_bytes += size - self._coming.get(call, 0)
        self._coming[call] = size

    @property
    def _paused(self) -> bool:
        return self._stopped < math.inf

    def _reading(self) -> float:
        """A time that stands still while the server does not read."""
        return min(self._now(), self._stopped) - self._unread_s

    def _moves(self) -> None:
        """The oldest does."""
        self._since = self._reading()
        self._had = self._calls[self._favoured] if self._favoured is not None else 0

    def _forget(self, call: OpenCall) -> None:
        self._coming_bytes -= self._coming.pop(call, 0)
        self._calls.pop(call, None)
        self._grew.pop(call, None)
        self._still.pop(call, None)

    def _grown(self, call: OpenCall) -> Refusal | None:
        grew = self._grew.get(call)
        if grew is None or self._calls[call] - grew[1] >= self._limits.stream_window // 4:
            self._mark(call)
        if self._favoured is None:
            self._favour_oldest()
        while self._over(call) and (dead := self._dead(call)) is not None:
            dead.refuse(self._refusal())
        return self._refusal() if self._over(call) else None

    def _mark(self, call: OpenCall) -> None:
        self._grew.pop(call, None)  # the stalest are first
        self._grew[call] = self._reading(), self._calls[call]
        self._still.pop(call, None)

    def _dead(self, call: OpenCall) -> OpenCall | None:
        """One that stands still by its own fault."""
        for each in self._still:
            if each is not call:
                return each
        if not self._paused:
            before = self._reading() - self._limits.stalled_s
            for each, (when, _) in self._grew.items():
                if when > before:
                    break
                if each is not call and each is not self._favoured and each not in self._waiting:
                    return each
        return None

    def _over(self, call: OpenCall) -> bool:
        limits = self._limits
        if call is not self._favoured and self._beside() > limits.assembling_most:
            return True
        return self.held > limits.assembling_most + limits.message + limits.stream_window

    def _refusal(self) -> Refusal:
        text = (
            f"too many incomplete requests: {self._beside()} bytes beside the oldest, "
            f"{self._limits.assembling_most} (twice pump.incomplete_bytes) is the most"
        )
        return Refusal(grpc.StatusCode.UNAVAILABLE, text)

    def _favour_oldest(self) -> None:
        oldest = next(iter(self._calls), None)
        if oldest is not self._favoured:
            self._favoured = oldest
            self._moves()
            # One that did not wait could have moved before.
            if oldest is not None and oldest not in self._waiting and oldest in self._grew:
                self._since, self._had = self._grew[oldest]
            if self._bucket:
                self._deadlines.discard(self._bucket, self)
                self._bucket = 0
                self._watch()

    def _go_on(self) -> None:
        """Let the oldest take more, and as many others as there is room for."""
        self._favour_oldest()
        while self._favoured is not None and self._favoured in self._waiting:
            self._let(self._favoured)  # which leaves the row if it holds nothing
            self._favour_oldest()
        while self._waiting:
            call, size = next(iter(self._waiting.items()))
            if not self._has_room(size):
                break
            self._let(call)
        if self._bucket and not self._waiting:
            self._deadlines.discard(self._bucket, self)
            self._bucket = 0

    def _let(self, call: OpenCall) -> None:
        size = self._waiting.pop(call)
        if self._calls[call]:
            # Not all of them are let in before the first has sent anything.
            self._comes(call, self._coming.get(call, 0) + size)
            self._mark(call)  # it stood still for our sake
        else:
            self._forget(call)
        call.go_on()

    def _unfavour(self) -> None:
        call = self._favoured
        if call is None:
            return
        self._calls.move_to_end(call)
        self._still[call] = None
        self._go_on()
        if self._beside() > self._limits.assembling_most:
            call.refuse(self._refusal())

    def _watch(self) -> None:
        if not self._bucket:
            self._bucket = self._deadlines.add(self._since + self._limits.stalled_s + self._unread_s, self)
