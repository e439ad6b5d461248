"""Names of the archive's objects (docs/formats.md, "Archive"). Timestamps have 20 digits, so that names sort.

Under ``<cluster id>/``: ``genesis.json``; ``windows/<start ts>.json``; ``declared/<node id>/<from ts>.json`` and
``…/accept-<start ts>-<commit ts>.json``; ``settled/<node id>/<start ts>-<commit ts>.json``; ``segments/<start
ts>-<planned end ts>/<node id>/<attempt>-<n>.parquet``; ``ddl/<start ts>-<planned end ts>/<attempt>.parquet`` and
``ddl/genesis/<attempt>.parquet``; ``schema/…``; ``base/<ts>/<schema>.<table>/<attempt>-<n>.parquet`` (the dump of
genesis); ``base/<low>/begun.json``, ``…/base.json``, ``…/objects`` and ``…/<schema>.<table>-<id>/<table's
low>/<n>.json`` with ``…/<n>-<attempt>.parquet`` (a later one); ``base/<ts>/folded.json``,
``…/folding-<attempt>.json`` and
``…/<schema>.<table>-<id>/<ts>/<bucket>-<n>-<attempt>.parquet`` (a folded base, which names others' segments, too);
``HEAD``, the newest manifest's name and digest;
``verified.json``, how far the archive was last proved; ``proofs/<moment>-<attempt>.json``, how the rows of a server
were held against it; ``drills/<begun, ms>-<attempt>.json``, how a drill ended; ``failed/<what>.json``, how a snapshot
or a dump failed last; ``genesis/<digest>.json``, a copy of a ``genesis.json`` that is too large for the registry;
``range/<number>.json``, versions of what is kept; ``ddl/expired/<attempt>.parquet``, the DDL jobs of windows that are
not; ``index/<start ts>-<end ts>-<digest>.parquet``, windows as columns; ``copy.json``, which says that all of it is the
copy of another archive; ``packs/<start ts>-<end ts>.json`` and ``…-<attempt>.bin``, small objects of old windows.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from urllib.parse import quote

from pumphouse.errors import CorruptionError
from pumphouse.model.tso import Tso, name20

GENESIS = "genesis.json"
HEAD = "HEAD"
VERIFIED = "verified.json"
COPY = "copy.json"
GENESIS_COPIES = "genesis/"
FAILED = "failed/"
PROOFS = "proofs/"
DRILLS = "drills/"
RANGE = "range/"
INDEX = "index/"
PACKS = "packs/"
WINDOWS = "windows/"
DECLARED = "declared/"
SETTLED = "settled/"
SEGMENTS = "segments/"
DDL = "ddl/"
BASE = "base/"
SCHEMA = "schema/"
_SHORT, _DIGEST = 100, 32
_WINDOW_KEY = re.compile(rf"{WINDOWS}(\d{{20}})\.json")


def attempt_id() -> str:
    """Random per process execution: objects of a killed task never collide with its retry's."""
    return secrets.token_hex(8)


def safe_name(name: str) -> str:
    """A node, schema or table name as one part of a key: ``/``, ``.`` and control characters cannot break out."""
    return quote(name, safe=":@ ,+=-_").replace(".", "%2E")


def short_name(name: str) -> str:
    """A schema or table name in a key whose reader does not need it back: at most 100 bytes, whatever the script.

    A file's name has at most 255 bytes, an object's whole key 1,024. What is longer ends in a digest of all of it.
    """
    text = safe_name(name)
    if len(text) <= _SHORT:
        return text
    kept = re.sub(r"%.?$", "", text[: _SHORT - _DIGEST - 1])
    return f"{kept}~{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]}"


def window_key(start: Tso) -> str:
    """Manifest of the window that begins after ``start``."""
    return f"{WINDOWS}{name20(start)}.json"


def before_window(start: Tso) -> str:
    """What sorts before the manifest of that window, and behind those before it."""
    return f"{WINDOWS}{name20(start)}"


def window_start(key: str) -> Tso:
    """Start of the window that a manifest's key names."""
    found = _WINDOW_KEY.fullmatch(key)
    if found is None:
        raise CorruptionError(f"{key} is no name of a manifest", path=key)
    return Tso(int(found.group(1)))


def window_folder(start: Tso, planned_end: Tso) -> str:
    """``<start>-<planned end>``."""
    return f"{name20(start)}-{name20(planned_end)}"


def segment_key(start: Tso, planned_end: Tso, node_id: str, attempt: str, number: int) -> str:
    """One segment of a window."""
    return f"{SEGMENTS}{window_folder(start, planned_end)}/{safe_name(node_id)}/{attempt}-{number}.parquet"


def ddl_key(start: Tso, planned_end: Tso, attempt: str) -> str:
    """DDL jobs of a window."""
    return f"{DDL}{window_folder(start, planned_end)}/{attempt}.parquet"


def genesis_ddl_key(attempt: str) -> str:
    """DDL jobs before genesis."""
    return f"{DDL}genesis/{attempt}.parquet"


def expired_ddl_key(attempt: str) -> str:
    """DDL jobs of windows that are not kept any more."""
    return f"{DDL}expired/{attempt}.parquet"


def range_key(number: int) -> str:
    """A version of what is kept."""
    return f"{RANGE}{number:020d}.json"


def index_key(start: Tso, end: Tso, digest: str) -> str:
    """Windows from one that begins at ``start`` to one that ends at ``end``, as columns; ``digest``: of its bytes."""
    return f"{INDEX}{name20(start)}-{name20(end)}-{digest}.parquet"


def index_range(key: str) -> tuple[Tso, Tso, str] | None:
    """Start, end and digest that a key of `index_key` names; None for another key."""
    found = re.fullmatch(rf"{INDEX}(\d{{20}})-(\d{{20}})-([0-9a-f]{{64}})\.parquet", key)
    return None if found is None else (Tso(int(found.group(1))), Tso(int(found.group(2))), found.group(3))


def pack_key(start: Tso, end: Tso) -> str:
    """The document of the pack of the windows from ``start`` to ``end``."""
    return f"{PACKS}{name20(start)}-{name20(end)}.json"


def pack_data(start: Tso, end: Tso, attempt: str) -> str:
    """What the pack has."""
    return f"{PACKS}{name20(start)}-{name20(end)}-{attempt}.bin"


def pack_range(key: str) -> tuple[Tso, Tso] | None:
    """Start and end that a key of `pack_key` or `pack_data` names; None for another key."""
    found = re.fullmatch(rf"{PACKS}(\d{{20}})-(\d{{20}})(?:\.json|-[0-9a-f]+\.bin)", key)
    return None if found is None else (Tso(int(found.group(1))), Tso(int(found.group(2))))


def folder_start(key: str) -> Tso | None:
    """Start of the window whose folder under ``segments/`` or ``ddl/`` a key lies in; None where it lies in none."""
    found = re.match(rf"(?:{SEGMENTS}|{DDL})(\d{{20}})-\d{{20}}/", key)
    return None if found is None else Tso(int(found.group(1)))


def base_key(ts: Tso, schema: str, table: str, attempt: str, number: int) -> str:
    """One segment of a base snapshot."""
    return f"{BASE}{name20(ts)}/{short_name(schema)}.{short_name(table)}/{attempt}-{number}.parquet"


def base_folder(low: Tso) -> str:
    """What the names of all objects begin with that a dump or a folded base has made."""
    return f"{BASE}{name20(low)}/"


def base_begun(low: Tso) -> str:
    """What says that a dump was begun."""
    return f"{base_folder(low)}begun.json"


def base_document(low: Tso) -> str:
    """What makes a dump visible."""
    return f"{base_folder(low)}base.json"


def folded_document(ts: Tso) -> str:
    """What makes a folded base visible: never that of a dump which began at its moment."""
    return f"{base_folder(ts)}folded.json"


def fold_note(ts: Tso, attempt: str) -> str:
    """What says that a fold of a moment is under way, and over which base."""
    return f"{base_folder(ts)}folding-{attempt}.json"


def is_fold_note(key: str) -> bool:
    """Whether a key is one of `fold_note`."""
    return re.fullmatch(rf"{BASE}\d{{20}}/folding-[0-9a-f]+\.json", key) is not None


def base_objects(low: Tso) -> str:
    """What a copy of the source lacks, as text."""
    return f"{base_folder(low)}objects"


def base_documents(keys: Iterable[str]) -> list[str]:
    """Those of the keys that make a dump or a folded base visible."""
    return [key for key in keys if re.fullmatch(rf"{BASE}\d{{20}}/(base|folded)\.json", key)]


def base_low(key: str) -> Tso:
    """Low of the dump that a key under ``base/`` belongs to."""
    found = re.match(rf"{BASE}(\d{{20}})/", key)
    if found is None:
        raise CorruptionError(f"{key} belongs to no dump", path=key)
    return Tso(int(found.group(1)))


def chunk_folder(dump_low: Tso, schema: str, table: str, table_id: int, low: Tso, *, whole: bool = False) -> str:
    """Chunks of one table that were read after ``low``; ``whole``: as releases that did not bound names called it."""
    called = safe_name if whole else short_name
    return f"{BASE}{name20(dump_low)}/{called(schema)}.{called(table)}-{table_id}/{name20(low)}/"


def chunk_note(folder: str, number: int) -> str:
    """What says that a chunk was read; ``folder``: of `chunk_folder`."""
    return f"{folder}{number:08d}.json"


def proof_key(at: Tso, attempt: str) -> str:
    """How the rows of a server at a moment were held against the archive."""
    return f"{PROOFS}{name20(at)}-{attempt}.json"


def drill_key(begun_ms: int, attempt: str) -> str:
    """How a drill ended that was begun then."""
    return f"{DRILLS}{begun_ms:020d}-{attempt}.json"


def genesis_copy(sha256: str) -> str:
    """A ``genesis.json`` that is too large for the registry, kept to be put back."""
    return f"{GENESIS_COPIES}{sha256}.json"


def declared_key(node_id: str, from_ts: Tso) -> str:
    """A range of one Pump that was declared lost."""
    return f"{DECLARED}{safe_name(node_id)}/{name20(from_ts)}.json"


def extended_key(node_id: str, from_ts: Tso, to_ts: Tso) -> str:
    """A longer range from the same ts."""
    return f"{DECLARED}{safe_name(node_id)}/{name20(from_ts)}-{name20(to_ts)}.json"


def accepted_key(node_id: str, start_ts: Tso, commit_ts: Tso) -> str:
    """A transaction that was accepted by name."""
    return f"{DECLARED}{safe_name(node_id)}/accept-{name20(start_ts)}-{name20(commit_ts)}.json"


def settled_prefix(node_id: str) -> str:
    """What all names of one Pump's settled commits begin with."""
    return f"{SETTLED}{safe_name(node_id)}/"


def settled_key(node_id: str, start_ts: Tso, commit_ts: Tso) -> str:
    """A late or orphan commit that a manifest lists as accepted."""
    return f"{settled_prefix(node_id)}{name20(start_ts)}-{name20(commit_ts)}.json"


def accepted_at(key: str) -> Tso | None:
    """Commit ts that a key of `accepted_key` names; None for another key."""
    found = re.search(r"/accept-\d{20}-(\d{20})\.json$", key)
    return None if found is None else Tso(int(found.group(1)))
