"""``s3://bucket/prefix`` archives over boto3: AWS, MinIO, moto and whatever honours ``If-None-Match`` (rows A1, A4)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pumphouse.errors import ObjectExists, ObjectNotFound, StoreError, StoreUnavailable
from pumphouse.objectstore.base import ObjectInfo, check_file, check_key
from pumphouse.objectstore.lifecycle import losing
from pumphouse.settings import S3Access

_MULTIPART_BYTES = 64 << 20
_READS = 4
_NEVER = (501, 505)  # the server lacks it: no later try is answered otherwise
# Status 4xx, and yet the same request may be answered: what was sent did not come, or not whole, or its parts are gone.
_AGAIN = ("RequestTimeout", "IncompleteBody", "BadDigest", "NoSuchUpload", "InvalidPart")
_KEYS = (
    "set archive.s3_access_key and archive.s3_secret_key (archive.copy_s3_… of a copy), or what the AWS SDK reads "
    "(AWS_ACCESS_KEY_ID, …)"
)
_MAY = f"may these keys read and write this bucket? {_KEYS}"
_SESSION = "set archive.s3_session_token (AWS_SESSION_TOKEN) anew, with its keys"
_HINTS = {
    "NoSuchBucket": "does the bucket exist? check archive.root",
    "InvalidAccessKeyId": _MAY,
    "SignatureDoesNotMatch": _MAY,
    "AccessDenied": _MAY,
    "ExpiredToken": _SESSION,
    "InvalidToken": _SESSION,
    "RequestTimeTooSkewed": "set this machine's clock right",
    "InvalidObjectState": "a lifecycle rule moved it to a class that is not read at once: restore it, and remove "
    "the rule",
}


class S3Store:
    """Objects in a bucket under a prefix. The client is made on first use in each process, so a fork is safe."""

    def __init__(self, bucket: str, prefix: str, access: S3Access) -> None:
        self._bucket = bucket
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._access = access
        self._client_of: tuple[int, Any] | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def __getstate__(self) -> dict[str, Any]:
        return {"_bucket": self._bucket, "_prefix": self._prefix, "_access": self._access}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._client_of = None
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes:
        """Whole object."""
        with self._errors(key):
            return self._read(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes [start, start+length), shorter at the end."""
        if length <= 0:
            return b""
        with self._errors(key, range_start=start):
            return self._read(key, Range=f"bytes={start}-{start + length - 1}")
        return b""

    def size(self, key: str) -> int:
        """Bytes of an object."""
        with self._errors(key):
            return int(self._client.head_object(Bucket=self._bucket, Key=self._key(key))["ContentLength"])

    def put(self, key: str, data: bytes) -> None:
        """Create or replace."""
        with self._errors(key):
            self._client.put_object(Bucket=self._bucket, Key=self._key(key), Body=data, **self._kept)

    def put_file(self, key: str, path: Path, *, move: bool = False, seldom: bool = False) -> None:  # noqa: ARG002
        """Upload a file, in parts where it is large; a part that fails leaves no object."""
        from boto3.exceptions import S3UploadFailedError
        from boto3.s3.transfer import TransferConfig

        check_file(path, f"{self.url}/{key}")
        config = TransferConfig(multipart_threshold=_MULTIPART_BYTES, multipart_chunksize=_MULTIPART_BYTES)
        kept = self._kept
        if seldom and self._access.base_class:
            kept["StorageClass"] = self._access.base_class
        with self._errors(key):
            try:
                self._client.upload_file(str(path), self._bucket, self._key(key), ExtraArgs=kept, Config=config)
            except S3UploadFailedError as error:
                # boto3 makes text of the server's refusal, which says what to do.
                raise (error.__context__ or error) from None

    def get_file(self, key: str, path: Path) -> None:
        """Download to a file."""
        from boto3.exceptions import RetriesExceededError

        with self._errors(key):
            try:
                self._client.download_file(self._bucket, self._key(key), str(path))
            except RetriesExceededError as error:  # each answer ended amid its body
                raise StoreUnavailable(f"{self.url}/{key}: {error.last_exception}", key=key) from error

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create with ``If-None-Match: *`` or raise ObjectExists.

        409 (another conditional put is under way) and time-outs are StoreUnavailable: nobody knows, read back.
        """
        with self._errors(key):
            self._client.put_object(Bucket=self._bucket, Key=self._key(key), Body=data, IfNoneMatch="*", **self._kept)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with prefix, sorted by key (S3 lists in UTF-8 order)."""
        behind = {"StartAfter": self._prefix + after} if after else {}
        with self._errors(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix, **behind
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    key = item["Key"][len(self._prefix) :]
                    yield ObjectInfo(key, int(item["Size"]), item["LastModified"].timestamp())

    def folders(self, prefix: str = "") -> Iterator[str]:
        """Names of the folders directly below a prefix: S3 puts what lies in them together."""
        with self._errors(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix, Delimiter="/"
            )
            for page in pages:
                for item in page.get("CommonPrefixes", ()):
                    yield item["Prefix"][len(self._prefix) + len(prefix) : -1]

    def delete(self, key: str) -> None:
        """Remove; a missing object is no error."""
        with self._errors(key):
            self._client.delete_object(Bucket=self._bucket, Key=self._key(key))

    def losing(self, prefix: str = "") -> tuple[str, ...]:
        """What the bucket's lifecycle does to objects below a prefix; () where these keys may not ask for it."""
        try:
            with self._errors(""):
                found = self._client.get_bucket_lifecycle_configuration(Bucket=self._bucket)
        except StoreError:  # none is an error too
            return ()
        return losing(found.get("Rules", ()), self._prefix + prefix)

    def _read(self, key: str, **how: str) -> bytes:
        """The SDK asks again where no answer comes, and not where one ends amid its body."""
        from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError

        for turn in range(1, _READS + 1):
            body = self._client.get_object(Bucket=self._bucket, Key=self._key(key), **how)["Body"]
            try:
                data: bytes = body.read()
            except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError):
                if turn == _READS:
                    raise
            else:
                return data
        raise AssertionError

    @property
    def _kept(self) -> dict[str, str]:
        """How objects are kept, as arguments of a write."""
        said = {"ServerSideEncryption": self._access.encryption, "SSEKMSKeyId": self._access.kms_key}
        return {name: value for name, value in said.items() if value}

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._client_of is None or self._client_of[0] != os.getpid():
                self._client_of = (os.getpid(), self._connect())
            return self._client_of[1]

    def _connect(self) -> Any:
        import boto3
        from botocore.config import Config

        access = self._access
        return boto3.session.Session().client(
            "s3",
            endpoint_url=access.endpoint or None,
            region_name=access.region,
            aws_access_key_id=access.access_key or None,
            aws_secret_access_key=access.secret_key.get_secret_value() or None,
            aws_session_token=access.session_token.get_secret_value() or None,
            config=Config(
                connect_timeout=5,
                read_timeout=60,
                retries={"mode": "standard", "max_attempts": 4},
                max_pool_connections=16,
                s3={"addressing_style": "path" if access.endpoint else "auto"},
                # Servers that are not AWS answer ranged reads with checksums of the whole object.
                request_checksum_calculation="when_supported" if access.object_lock else "when_required",
                response_checksum_validation="when_required",
            ),
        )

    def _key(self, key: str) -> str:
        check_key(key)
        return self._prefix + key

    @contextmanager
    def _errors(self, key: str, range_start: int | None = None) -> Iterator[None]:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,  # noqa: A004
            HTTPClientError,
            IncompleteReadError,
            NoCredentialsError,
            PartialCredentialsError,
        )

        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            where = f"{self.url}/{key}"
            if code == "InvalidRange" and range_start is not None:
                return  # a range that begins behind the end is empty
            if code in ("NoSuchKey", "404", "NotFound"):
                raise ObjectNotFound(f"there is no {where}", key=key) from error
            if status == 412 or code == "PreconditionFailed":
                raise ObjectExists(f"{where} exists", key=key) from error
            said = f"{where}: HTTP {status} {code}: {error}"
            if status in (408, 409, 425, 429) or code in _AGAIN or (status >= 500 and status not in _NEVER):
                raise StoreUnavailable(said, key=key) from error
            hint = _HINTS.get(code) or (_MAY if status in (401, 403) else "")
            raise StoreError(said, hint=hint, key=key) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise StoreError(f"{self.url}/{key}: no keys are known: {error}", hint=_KEYS, key=key) from error
        except (ConnectionError, HTTPClientError, IncompleteReadError) as error:
            raise StoreUnavailable(
                f"{self.url}/{key}: {error}", hint="is the server up? check archive.s3_endpoint", key=key
            ) from error
        except BotoCoreError as error:
            raise StoreError(f"{self.url}/{key}: {error}", key=key) from error
