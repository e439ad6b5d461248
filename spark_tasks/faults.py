"""Our errors on their way from a Spark worker to the driver: as data, so that their class and facts arrive.

Spark would hand over a text with a traceback, and would run the task again where trying again cannot help.
"""

from __future__ import annotations

import json
from typing import Any

from pumphouse import errors
from pumphouse.advice import of_json, to_json
from pumphouse.errors import BinlogError, LoadError


def dump(error: BinlogError) -> bytes:
    """An error as JSON; facts that are no JSON become text."""
    data = {"type": type(error).__name__, "message": error.message, "hint": to_json(error.advice), "facts": error.facts}
    return json.dumps(data, default=str).encode()


def load(data: bytes) -> BinlogError:
    """The error again; a class that is not in the error tree's module becomes a LoadError."""
    found: dict[str, Any] = json.loads(data)
    cls = getattr(errors, found["type"], LoadError)
    if not (isinstance(cls, type) and issubclass(cls, BinlogError)):
        cls = LoadError
    facts = {k: v for k, v in found["facts"].items() if k.isidentifier()}
    return cls(found["message"], hint=of_json(found["hint"]), **facts)
