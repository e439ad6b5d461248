"""Descriptors of the process: connections must leave enough of them for the log, the index and the registry."""

from __future__ import annotations

import resource

import structlog

log = structlog.get_logger(__name__)

# Enough for 4,096 connections and tens of thousands of files of the log; more costs nothing, and helps nobody.
_WANTED = 1 << 16


def connections(most: int) -> int:
    """How many connections the process can have: ``most``, but at most half of its descriptors.

    RLIMIT_NOFILE is raised to what it may be: the soft limit of many shells, 1,024, is from the days of select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY or most <= soft // 2:
        return most
    log.warning(
        "fewer_connections", connections=soft // 2, wanted=most, descriptors=soft,
        hint="raise the limit of open files (LimitNOFILE of systemd, ulimit -n), or lower pump.max_connections",
    )  # fmt: skip
    return soft // 2
