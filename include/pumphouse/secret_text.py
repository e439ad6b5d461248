"""Passwords as Drainer and its tools keep them in their files: base64 of IV, ``@`` and AES-CFB (docs/formats.md).

This hides a password from whoever looks over a shoulder, no more: the key is in the program, or in the environment.
"""

from __future__ import annotations

import base64
import os
from typing import Any

from pumphouse.errors import ConfigError, UsageError

KEY_VARIABLE = "BINLOG_SECRET_KEY"
_DEFAULT_KEY = "a529b7665997f043a30ac8fadcb51d6aa032c226ab5b7750530b12b8c1a16a48"
_IV_BYTES = 16
_SEPARATOR = b"@"


def encrypt(text: str, key: bytes) -> str:
    """Hide a password; every call gives another text."""
    iv = os.urandom(_IV_BYTES)
    worker = _cipher(key, iv).encryptor()
    return base64.b64encode(iv + _SEPARATOR + worker.update(text.encode()) + worker.finalize()).decode()


def secret_key(environment: dict[str, str] | None = None) -> bytes:
    """The key that the Go tools use: ``BINLOG_SECRET_KEY`` in hex, else theirs."""
    text = (os.environ if environment is None else environment).get(KEY_VARIABLE) or _DEFAULT_KEY
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) not in (16, 24, 32):
        raise ConfigError(f"{KEY_VARIABLE} is no key", hint="16, 24 or 32 bytes in hex")
    return key


def _cipher(key: bytes, iv: bytes) -> Any:
    try:
        from cryptography.hazmat.decrepit.ciphers.modes import CFB
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
    except ImportError as error:
        raise UsageError(
            "this needs the package cryptography", hint="it comes with Airflow; else `pip install cryptography`"
        ) from error
    return Cipher(AES(key), CFB(iv))
