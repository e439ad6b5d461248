"""Whether a TiDB server loses binlogs in silence: in ``ignore-error``, after the first failure, it writes none.

No Pump can see that. Where the status API is known (``schema.history`` is one), the server is asked at each window, and
the manifest says what it answered.
"""

from __future__ import annotations

import urllib.error
import urllib.request

from pumphouse.model import strict
from pumphouse.schema.history import ssl_context
from pumphouse.settings import TlsSettings

_TIMEOUT_S = 5.0
_MOST_BYTES = 1 << 20


def binlog_skipped(url: str, tls: TlsSettings) -> bool | None:
    """What ``/binlog/recover?op=status`` says; None where nobody can be asked or nobody answers."""
    if not url.startswith(("http://", "https://")):
        return None
    context = ssl_context(tls) if url.startswith("https:") else None
    try:
        request = f"{url.rstrip('/')}/binlog/recover?op=status"
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as answer:  # noqa: S310
            said = strict.loads(answer.read(_MOST_BYTES))
    except (urllib.error.URLError, OSError, ValueError):
        return None
    return bool(said["Skipped"]) if isinstance(said, dict) and "Skipped" in said else None
