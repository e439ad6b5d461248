"""Why a server refused a statement: for what a row is, or for a state of the server or a right of the account.

Of a row are errors of data alone. Whatever is not known to be one is not a row's: nobody is told to park a table
because a disk is full.
"""

from __future__ import annotations

from dataclasses import dataclass

from pumphouse.mysql import NO_RIGHT


@dataclass(frozen=True, slots=True)
class Condition:
    """A state of the server or of the account; ``passes``: by itself, or by a hand elsewhere, so a later try helps."""

    remedy: str
    passes: bool


_SPACE = Condition("it has no room: free or add some on its disk, or raise the limit of its tablespace", passes=True)
_READ_ONLY = Condition("is it a replica, or in a failover? Else SET GLOBAL read_only = OFF there", passes=True)
_LIMIT = Condition("raise that limit of the server or of the user (ALTER USER … WITH …)", passes=True)
_MEMORY = Condition("give the server more memory, or lower load.unit_bytes and load.connections", passes=True)
_RIGHT = Condition("grant it to the user: GRANT … ON `database`.* TO …", passes=False)
_TIME = Condition("take the time limit away: ALTER USER … WITH MAX_STATEMENT_TIME 0", passes=False)
_SIZE = Condition("raise that limit of the server (max_allowed_packet, max_binlog_cache_size)", passes=False)
_BROKEN = Condition("look into the server's error log", passes=False)
_CONDITIONS = {
    **dict.fromkeys((3, 20, 1021, 1026, 1114), _SPACE),
    **dict.fromkeys((1036, 1290, 1792, 1836), _READ_ONLY),
    **dict.fromkeys((1040, 1047, 1203, 1226), _LIMIT),
    **dict.fromkeys((1037, 1038, 1041, 1206), _MEMORY),
    **dict.fromkeys(NO_RIGHT, _RIGHT),
    **dict.fromkeys((1969, 3024), _TIME),
    **dict.fromkeys((1153, 1197), _SIZE),
    **dict.fromkeys((1016, 1030, 1033, 1034, 1035, 1180, 1194, 1195, 1712, 1815), _BROKEN),
}

# Values that do not fit, keys that are taken, checks that say no.
_OF_A_ROW = frozenset({
    1048, 1062, 1118, 1216, 1217, 1263, 1264, 1265, 1292, 1300, 1364, 1365, 1366, 1367, 1406, 1411, 1416, 1425, 1439,
    1441, 1451, 1452, 1526, 1557, 1586, 1644, 1690, 1748, 1761, 1762, 3140, 3141, 3156, 3819, 3903, 4025, 4038, 8025,
})  # fmt: skip


def condition_of(code: int, text: str) -> Condition | None:
    """The state that an error of the server speaks of; None where it speaks of a statement or of data."""
    if code == 1290 and "read" not in text.lower():  # of another option than read-only, which the text names
        return Condition("change that option of the server", passes=False)
    if code == 1030 and "No space left" in text:
        return _SPACE
    return _CONDITIONS.get(code)


def is_of_a_row(code: int, text: str) -> bool:
    """Whether the server refused a statement for the data in it."""
    return code in _OF_A_ROW or (condition_of(code, text) is None and "at row " in text)
