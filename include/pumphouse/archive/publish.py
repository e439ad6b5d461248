"""The put that decides: manifests and declarations appear by one conditional put, or not at all."""

from __future__ import annotations

from collections.abc import Callable

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import ManifestConflict, ObjectExists, ObjectNotFound, StoreUnavailable
from pumphouse.objectstore.base import ObjectStore
from pumphouse.objectstore.probe import put_again

_TRIES = 6
_PAUSE_S = 0.5


def put_once(
    store: ObjectStore, key: str, data: bytes, ours: Callable[[bytes], bool], *, clock: Clock = SYSTEM_CLOCK
) -> bytes:
    """Create ``key`` with ``data``; ManifestConflict when another writer won. Returns what is there.

    A refusal proves nothing: the SDK tries again by itself after a put that succeeded, and is then refused. So the
    object is read back and ``ours`` (the same attempt id) says whether we won. After a time-out with nothing there the
    same bytes are put again. At the end one more put of the same bytes must be refused, every time: a store that
    takes it could let two writers win (UnsafeStore).
    """
    for turn in range(_TRIES):
        doubt: StoreUnavailable | None = None
        try:
            store.put_if_absent(key, data)
            break
        except ObjectExists:
            pass
        except StoreUnavailable as error:
            doubt = error
        try:
            found = store.get(key)
        except ObjectNotFound:
            found = None
        except StoreUnavailable:
            if turn == _TRIES - 1:
                raise
            found = None
        if found is not None:
            if not ours(found):
                raise ManifestConflict(
                    f"another writer published {store.url}/{key} first", hint="run again from the new end", key=key
                )
            data = found
            break
        if doubt is not None and turn == _TRIES - 1:
            raise doubt
        clock.sleep(_PAUSE_S * (turn + 1))
    else:
        raise StoreUnavailable(f"{store.url}/{key}: neither taken nor there", key=key)
    put_again(store, key, data)
    return data
