"""How an address is shown to people: without the user and password that someone may have put into it."""

from __future__ import annotations

import re

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/+")


def without_secrets(text: str, part: str = "") -> str:
    """An address, or a list of them, fit for messages, logs and facts of errors.

    A password may hold any character, also one that addresses are split at. So where there is an ``@``, everything
    before the last one goes, but for the first scheme.

    Args:
        text: all of what was given, before it was split at anything.
        part: what to show instead where ``text`` has no ``@``, say the one address of a list that is wrong.
    """
    if "@" not in text:
        return part or text
    scheme = _SCHEME.match(text)
    return f"{scheme[0] if scheme else ''}…@{text.rpartition('@')[2]}"
