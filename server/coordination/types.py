"""Interface of a coordination service: a tree of nodes, and sessions whose ephemeral nodes end with them.

The interface is the part of ZooKeeper that ownership needs, so that a service in this process and a real one are
driven by the same code. A session is connected, or suspended (the service does not answer; the session may live), or
lost (the service said that it has expired), or closed, which is final. That a session has expired is the service's
word alone: a client that hears nothing knows nothing (seed 57.3).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol


class SessionState(Enum):
    """Of a session, as its holder knows it."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"
    CLOSED = "closed"


class CoordinationError(Exception):
    """Root of what a coordination service answers.

    Attributes:
        path: the node that was asked for; "" where there is none.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class NodeExists(CoordinationError):
    """The node to be created is there."""


class NoNode(CoordinationError):
    """The node is not there."""


class BadVersion(CoordinationError):
    """The node has changed since the version that was named."""


class Disconnected(CoordinationError):
    """The service did not answer; what was asked may have been done. Ask again."""


class SessionExpired(CoordinationError):
    """The session is over: by the service's word, or because it was closed here."""


class Unreachable(CoordinationError):
    """No session could be had from the service."""


class Node(NamedTuple):
    """A node as it was read.

    owner: the id of the session that it ends with, 0 for a persistent one. version: counts changes of its data.
    """

    data: bytes
    version: int
    owner: int


class CoordinationSession(Protocol):
    """A session with the service. Every call may raise Disconnected and SessionExpired, and waits while neither."""

    @property
    def session_id(self) -> int: ...

    @property
    def state(self) -> SessionState: ...

    @property
    def why(self) -> str:
        """Why the session was lost, as a sentence, if more is known than the service reported; else ""."""

    def on_change(self, callback: Callable[[SessionState], None]) -> None:
        """`callback` hears of each new state, in the loop's thread."""

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Makes a node, and the persistent ones above it. Raises NodeExists."""

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> Node | None:
        """The node, or None. `watch` is called once: when it is made, changed or deleted, or the session is over."""

    async def set(self, path: str, data: bytes, version: int = -1) -> None:
        """Raises NoNode; BadVersion unless the version is the node's or -1."""

    async def delete(self, path: str, version: int = -1) -> None:
        """Raises NoNode; BadVersion unless the version is the node's or -1."""

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """Names of the nodes right below, sorted; none where the node is not there. `watch` as in `get`."""

    async def aclose(self) -> None:
        """Ends the session and with it its ephemeral nodes. May be called twice."""


class Coordinator(Protocol):
    """Where sessions come from."""

    async def connect(self) -> CoordinationSession:
        """A new session. Raises Unreachable."""
