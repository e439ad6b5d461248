"""Who uses a handle that must not be closed under anybody: of LevelDB, a use behind the close ends the process."""

from __future__ import annotations

import threading
from types import TracebackType

# Who would begin while somebody wants to close waits so long, then goes on: it may be within a use of its own.
STAND_BACK_S = 0.2


class Users:
    """Uses are counted; whoever wants to close waits until there are none. Any thread.

    ``with users: ...`` is a use. Uses may lie within each other, and may end in another thread than they began in.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._count = 0
        self._wanted = False  # somebody waits for it
        self._shut = False  # nobody uses it, and nobody may begin

    def __enter__(self) -> None:
        with self._changed:
            if self._wanted:
                self._changed.wait_for(lambda: not self._wanted, STAND_BACK_S)
            if self._shut:
                self._changed.wait_for(lambda: not self._shut)
            self._count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._count -= 1
            if self._wanted:
                self._changed.notify_all()

    def shut(self, timeout: float) -> bool:
        """Wait until nobody uses it, then keep everybody back until `open`; False when somebody still does."""
        with self._changed:
            self._wanted = True
            self._shut = self._changed.wait_for(lambda: not self._count, timeout)
            self._wanted = False
            self._changed.notify_all()
            return self._shut

    def open(self) -> None:
        """It may be used again, or each use fails by itself."""
        with self._changed:
            self._shut = False
            self._changed.notify_all()
