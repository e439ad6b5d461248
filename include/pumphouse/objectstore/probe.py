"""Does a store honour conditional puts? One that does not can let two writers win a window, so it is refused."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pumphouse.errors import ObjectExists, ObjectNotFound, StoreError, StoreUnavailable, UnsafeStore
from pumphouse.objectstore.base import ObjectStore

RACERS = 8
KEEP = "remove the rule from the bucket, or limit it to a prefix beside the archive"
_HINT = "manifests need If-None-Match on PUT: use MinIO, AWS S3 or a file:// archive"


def probe_conditional_puts(store: ObjectStore, prefix: str) -> None:
    """Race eight conditional puts on one new key, then put once more; UnsafeStore unless exactly one wins.

    The probe object lies at ``<prefix>probe/<random>`` and is removed afterwards.

    Raises:
        UnsafeStore: two may win, or the store takes plain puts and no conditional ones.
        StoreError: what the store answered, where no put at all is taken.
    """
    key = f"{prefix}probe/{secrets.token_hex(8)}"
    start = threading.Barrier(RACERS)
    bodies = [secrets.token_bytes(16) for _ in range(RACERS)]

    def race(body: bytes) -> StoreError | None:
        start.wait()
        try:
            store.put_if_absent(key, body)
        except StoreError as error:
            return error
        return None

    try:
        with ThreadPoolExecutor(RACERS) as pool:
            answers = list(pool.map(race, bodies))
        won = [body for body, answer in zip(bodies, answers, strict=True) if answer is None]
        if len(won) > 1:
            raise UnsafeStore(
                f"{store.url} ignores conditional puts: {len(won)} of {RACERS} writers of one object won", hint=_HINT
            )
        found = _found(store, key)
        if won and found != won[0]:
            raise UnsafeStore(
                f"{store.url} took a conditional put and gives other bytes back: {(found or b'nothing')[:60]!r}",
                hint=_HINT,
            )
        if found is None:
            raise _why_nobody_won(store, key, [each for each in answers if each is not None])
        put_again(store, key, found)
    finally:
        with suppress(StoreError):  # what the probe says counts more
            store.delete(key)


def _found(store: ObjectStore, key: str) -> bytes | None:
    """Where a race was told 409 by the store, the object may be there all the same."""
    try:
        return store.get(key)
    except ObjectNotFound:
        return None


def _why_nobody_won(store: ObjectStore, key: str, answers: Sequence[StoreError]) -> StoreError:
    """The store's own answer, and whether it concerns conditional puts alone."""
    told = next((each for each in answers if not isinstance(each, ObjectExists | StoreUnavailable)), answers[0])
    if isinstance(told, StoreUnavailable):
        return told
    try:
        store.put(key, b"plain")
    except StoreError:
        return told
    return UnsafeStore(
        f"{store.url} takes a plain put and refuses a conditional one of an object that is not there: {told.message}",
        hint=_HINT,
    )


def put_again(store: ObjectStore, key: str, data: bytes) -> None:
    """Put the same bytes under a key that exists: UnsafeStore unless the store refuses."""
    try:
        store.put_if_absent(key, data)
    except ObjectExists:
        return
    raise UnsafeStore(
        f"{store.url} took a conditional put of {key}, which exists: two writers could both win", hint=_HINT, key=key
    )


def refuse_losing(store: ObjectStore) -> None:
    """UnsafeStore where a rule of the store takes objects away by itself: an archive needs each of them for ever."""
    if rules := store.losing():
        raise UnsafeStore(f"{store.url} would lose what is stored in it: {'; '.join(rules)}", hint=KEEP)
