"""Sessions on servers of MySQL's kind: who is trusted with the password, which answers are taken, what is set.

Every connection of ours to a source, to the history's server or to a target is made here.
"""

from pumphouse.mysql.connection import NO_RIGHT, ServerConnection, connect, denied, place
from pumphouse.mysql.session import DUMP, FLASHBACK, HISTORY, LOAD, LOOSE_MODE, SQL_MODE, Session

__all__ = [
    "DUMP",
    "FLASHBACK",
    "HISTORY",
    "LOAD",
    "LOOSE_MODE",
    "NO_RIGHT",
    "SQL_MODE",
    "ServerConnection",
    "Session",
    "connect",
    "denied",
    "place",
]
