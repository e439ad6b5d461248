"""From a root URL to a store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from pumphouse.errors import ConfigError
from pumphouse.objectstore.base import ObjectStore
from pumphouse.settings import ArchiveSettings


def open_store(settings: ArchiveSettings) -> ObjectStore:
    """Open ``archive.root``: ``file:///dir`` (or ``file://./dir``) or ``s3://bucket/prefix``. Nothing is created."""
    parts = urlsplit(settings.root)
    if "?" in settings.root or "#" in settings.root:  # what is behind it is of no path: two would share one
        raise ConfigError("archive.root has ? or # in it", hint="in the name of a place, write %3F and %23 for them")
    if parts.scheme == "file":
        from pumphouse.objectstore.file import FileStore

        path = unquote(parts.netloc + parts.path)
        if not path:
            raise ConfigError(f"archive.root {settings.root!r} names no directory", hint="file:///dir")
        return FileStore(Path(path))
    if parts.scheme == "s3":
        from pumphouse.objectstore.s3 import S3Store

        if not parts.netloc or parts.username:
            raise ConfigError(
                "archive.root must be s3://bucket/prefix; keys belong into archive.s3_access_key and s3_secret_key"
            )
        return S3Store(parts.netloc, unquote(parts.path), settings.s3)
    raise ConfigError(f"archive.root {settings.root!r} is not supported", hint="s3://bucket/prefix or file:///dir")
