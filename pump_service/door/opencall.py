"""A call as those see it that carry its frames, and that bound the bytes it holds. `calls` has the kinds of them."""

from __future__ import annotations

from typing import Protocol

from pump_service.door.group import Refusal


class OpenCall(Protocol):
    """A call that has a stream of its own."""

    heard: float  # when bytes of its request came last, of the loop

    def open(self) -> None:
        """The headers are here."""

    def feed(self, data: bytes) -> None:
        """Bytes of the request."""

    def half_close(self) -> None:
        """The peer has sent everything."""

    def drained(self) -> None:
        """Much of what it had to send is out."""

    def awaits_peer(self) -> bool:
        """Whether it is the peer who has to go on."""
        ...

    def go_on(self) -> None:
        """More of the request may come."""

    def refuse(self, refusal: Refusal) -> None:
        """End the call with a status, whatever it is doing."""

    def cancel(self) -> None:
        """The peer does not want it any more: nothing is answered."""

    def ended(self) -> None:
        """Somebody else has answered it (a group)."""
