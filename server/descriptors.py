"""Budget of file descriptors, divided between the process's ports and its files.

Invariant: the shares of all ports and the reserve for files add up to at most the process's limit, so that connections,
however many, never take the descriptors that a data directory needs.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Final, NamedTuple

log = logging.getLogger(__name__)

_FILES_OF_A_CONTAINER: Final = 8
"""Maximum number of descriptors open at once for a container's journals, snapshots and chunk files."""
_OTHER_FILES: Final = 64
_SMALL_SHARE: Final = 8
"""One in this many descriptors is for each of the smaller shares."""
_MOST_SMALL: Final = 256
_MOST_CONTROLLER: Final = (1 << 31) - 2
"""gRPC aborts the process above this."""
_AGAIN_S: Final = 60.0


class DescriptorShares(NamedTuple):
    """Maximum number of descriptors for each use.

    stores: connections of all stores. handshakes: connections of one store port whose TLS handshake is in progress.
    controller: connections to the controller. http: those to each of the two HTTP ports, control API and REST API.
    """

    stores: int
    handshakes: int
    controller: int
    http: int


def shares(containers: int = 0) -> DescriptorShares:
    """Divides this process's current limit. containers: number of containers whose files it may open."""
    soft = _limit()
    files = min(soft // 2, _OTHER_FILES + _FILES_OF_A_CONTAINER * containers)
    small = max(1, min(soft // _SMALL_SHARE, _MOST_SMALL))
    controller = max(1, min(soft // _SMALL_SHARE, _MOST_CONTROLLER))
    stores = max(1, soft - files - controller - 2 * small)
    return DescriptorShares(stores, small, controller, max(1, small // 2))


class Limit:
    """At most `most` connections or handshakes.

    Logs a warning when the limit is reached, once while this goes on. what: such as "connections to the controller".
    """

    def __init__(self, what: str, most: int, setting: str = "ulimit -n") -> None:
        self.most = most
        self._what = what
        self._setting = setting
        self._at_s = -_AGAIN_S

    def reached(self) -> None:
        """Called for each connection, or handshake, too many."""
        now_s, said = time.monotonic(), "%d %s are open, the limit (%s): new ones replace old ones that wait"
        if now_s - self._at_s >= _AGAIN_S:
            log.warning(said, self.most, self._what, self._setting)
        self._at_s = now_s


def _limit() -> int:
    """The maximum number of descriptors of this process."""
    try:
        import resource
    except ImportError:  # Windows
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
