"""Reads what binlogctl hides: passwords as Drainer and its tools keep them."""

from __future__ import annotations

import base64
import binascii

from pumphouse.errors import UsageError
from pumphouse.secret_text import _IV_BYTES, _SEPARATOR, KEY_VARIABLE, _cipher


def decrypt(text: str, key: bytes) -> str:
    """Read what `encrypt` or binlogctl wrote; UsageError where it is none."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise UsageError("ciphertext not valid", hint="it is base64") from error
    iv, separator, rest = data[:_IV_BYTES], data[_IV_BYTES : _IV_BYTES + 1], data[_IV_BYTES + 1 :]
    if separator != _SEPARATOR:
        raise UsageError("ciphertext not valid")
    worker = _cipher(key, iv).decryptor()
    try:
        plain: bytes = worker.update(rest) + worker.finalize()
        return plain.decode()
    except UnicodeDecodeError as error:
        raise UsageError("ciphertext not valid", hint=f"was it made with another {KEY_VARIABLE}?") from error
