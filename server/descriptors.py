"""Budget of file descriptors, divided between the process's ports and its files.

Invariant: the shares of all ports and the reserve for files are together at most what the process may have, so that
peers, however many connect to however many ports, leave the files of a data directory what they need.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from typing import Final, NamedTuple

_FILES_OF_A_CONTAINER: Final = 8
"""Descriptors of its journals, snapshots and chunk files that are open at a time, at most."""
_OTHER_FILES: Final = 64
_BEFORE_PEERS: Final = 48
"""Of these, descriptors that are open before a peer connects: of the loop, of listening sockets, of journals."""
_SMALL_SHARE: Final = 8
"""One in this many descriptors is for each of the smaller shares."""
_MOST_SMALL: Final = 256
_MOST_CONTROLLER: Final = (1 << 31) - 1


class Shares(NamedTuple):
    """How many descriptors each use may have.

    stores: connections of all stores. handshakes: connections of a port of a store whose TLS handshake is in progress.
    controller, http: connections to these.
    highest: a socket of a store has no higher descriptor. The system gives the lowest that is free, so that many are
    open then, whatever opened them.
    """

    stores: int
    handshakes: int
    controller: int
    http: int
    highest: int


def shares(containers: int = 0) -> Shares:
    """Divides what this process may have now. containers: those whose files it may hold."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = sys.maxsize
    files = min(soft // 2, _OTHER_FILES + _FILES_OF_A_CONTAINER * containers)
    small = max(1, min(soft // _SMALL_SHARE, _MOST_SMALL))
    controller = max(1, min(soft // _SMALL_SHARE, _MOST_CONTROLLER))
    stores = max(1, soft - files - controller - 2 * small)
    return Shares(stores, small, controller, small, stores + small + min(files // 2, _BEFORE_PEERS))


def are_short() -> bool:
    """Whether this process, or the system, cannot open now what a journal takes."""
    opened: list[int] = []
    try:
        for _ in range(_FILES_OF_A_CONTAINER):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401 — each is closed below
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for each in opened:
            os.close(each)
    return False
