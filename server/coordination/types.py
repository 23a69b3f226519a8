"""Interface of a coordination service: a tree of nodes, and sessions whose ephemeral nodes end with them.

The interface is the part of ZooKeeper that ownership needs, so that the same code works with an in-process service and
with ZooKeeper. A session is connected, or suspended (the service does not answer; the session may still exist), or lost
(the service reported its expiry), or closed, which is final. Only the service decides that a session has expired: a
disconnected client cannot know (seed 57.3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from segstore.server.coordination.errors import SessionExpired


class SessionState(Enum):
    """State of a session, as known to its holder."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"
    CLOSED = "closed"

    @property
    def is_over(self) -> bool:
        """Whether the session has ended for good."""
        return self in (SessionState.LOST, SessionState.CLOSED)


class Node(NamedTuple):
    """A node, as read.

    owner: the id of the session with which it ends, 0 for a persistent node. version: counts changes of its data.
    """

    data: bytes
    version: int
    owner: int


class CoordinationSession(ABC):
    """A session with the service. Every request can raise Disconnected and SessionExpired.

    why: why the session was lost, in one sentence, if more is known than the service reported; else "".
    """

    def __init__(self, session_id: int, state: SessionState) -> None:
        self.session_id = session_id
        self.why = ""
        self._state = state
        self._callbacks: list[Callable[[SessionState], None]] = []

    @property
    def state(self) -> SessionState:
        return self._state

    def check(self, path: str = "") -> None:
        """Raises SessionExpired, about a request for `path`, if the session has ended."""
        if self._state.is_over:
            raise SessionExpired(f"session {self.session_id:#x} is {self._state.value}", path)

    def on_change(self, callback: Callable[[SessionState], None]) -> None:
        """Registers a callback that is called with each new state, in the loop's thread."""
        self._callbacks.append(callback)

    @abstractmethod
    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Creates a node, and persistent parents. Raises NodeExists."""

    @abstractmethod
    async def get(self, path: str, watch: Callable[[], None] | None = None) -> Node | None:
        """Returns the node, or None. watch: called once, when the node is created, changed or deleted, or the session
        ends.
        """

    @abstractmethod
    async def set(self, path: str, data: bytes, version: int = -1) -> None:
        """Sets a node's data. Raises NoNode; BadVersion unless the version is the node's or -1."""

    @abstractmethod
    async def delete(self, path: str, version: int = -1) -> None:
        """Deletes a node. Raises NoNode; BadVersion unless the version is the node's or -1."""

    @abstractmethod
    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """Returns the sorted names of a node's children; an empty list if it does not exist. `watch` as in `get`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Ends the session and its ephemeral nodes. Can be called twice."""


class Coordinator(Protocol):
    async def connect(self) -> CoordinationSession:
        """Opens a new session. Raises Unreachable."""
