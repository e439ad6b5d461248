"""Does a store honour conditional puts? One that does not can let two writers win a window, so it is refused."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

from pumphouse.errors import ObjectExists, StoreUnavailable, UnsafeStore
from pumphouse.objectstore.base import ObjectStore

RACERS = 8
_HINT = "manifests need If-None-Match on PUT: use MinIO, AWS S3 or a file:// archive"


def probe_conditional_puts(store: ObjectStore, prefix: str) -> None:
    """Race eight conditional puts on one new key, then put once more; UnsafeStore unless exactly one wins.

    The probe object lies at ``<prefix>probe/<random>`` and is removed afterwards.
    """
    key = f"{prefix}probe/{secrets.token_hex(8)}"
    start = threading.Barrier(RACERS)
    bodies = [secrets.token_bytes(16) for _ in range(RACERS)]

    def race(body: bytes) -> bool | None:
        start.wait()
        try:
            store.put_if_absent(key, body)
        except ObjectExists:
            return False
        except StoreUnavailable:
            return None  # 409: the store saw the race and told this one to come back
        return True

    try:
        with ThreadPoolExecutor(RACERS) as pool:
            won = list(pool.map(race, bodies))
        if won.count(True) > 1:
            raise UnsafeStore(
                f"{store.url} ignores conditional puts: {won.count(True)} of {RACERS} writers of one object won",
                hint=_HINT,
            )
        if won.count(True) == 1 and store.get(key) != bodies[won.index(True)]:
            raise UnsafeStore(f"{store.url} let a refused conditional put replace the object", hint=_HINT)
        if won.count(True) == 0:
            # Only answers that leave it open: the object may be there all the same.
            put_again(store, key, store.get(key))
        else:
            put_again(store, key, bodies[won.index(True)])
    finally:
        store.delete(key)


def put_again(store: ObjectStore, key: str, data: bytes) -> None:
    """Put the same bytes under a key that exists: UnsafeStore unless the store refuses."""
    try:
        store.put_if_absent(key, data)
    except ObjectExists:
        return
    raise UnsafeStore(
        f"{store.url} took a conditional put of {key}, which exists: two writers could both win", hint=_HINT, key=key
    )
