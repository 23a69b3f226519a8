"""An in-process coordination service: the default, for single-process clusters and tests.

It follows ZooKeeper's rules: one tree, ephemeral nodes that end with their session, watches that fire once, and
sessions that expire when the service has not heard of them for their timeout. Time is the running loop's, so a loop
with virtual time makes everything deterministic. Tests inject failures: `expire` ends a session, `cut` disconnects a
session from the service, `heal` reconnects it; `pause` and `resume` do so for all sessions.

Invariants: only the service decides expiry; no session expires while the service is paused; a request whose session is
cut may have been executed. After `close` no timer is left.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from segstore.server.coordination import errors
from segstore.server.coordination.types import CoordinationSession, Node, SessionState

P = ParamSpec("P")
T = TypeVar("T")
Watch = Callable[[], None]

_SUSPENDED_AFTER = 1 / 3
"""Fraction of the timeout after which a disconnected session is suspended."""


class InProcessCoordinator:
    """The tree, and the sessions that have not expired, by id."""

    def __init__(self, *, session_timeout_ms: float = 10_000, delay_s: Callable[[], float] | None = None) -> None:
        """delay_s: returns the delay of each request and each reply; None for no delay."""
        self.session_timeout_ms = session_timeout_ms
        self.sessions: dict[int, InProcessSession] = {}
        self._delay_s = delay_s
        self._nodes: dict[str, Node] = {}
        self._watches: defaultdict[str, list[_Watch]] = defaultdict(list)
        """The watches of a node by its path, and of its children by its path with a slash behind it."""
        self._next_id = 1
        self.paused = False
        self._unnotified: list[InProcessSession] = []

    # --- failures ---------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stops answering, and lets no session expire, until `resume`."""
        self.paused = True
        for session in tuple(self.sessions.values()):
            session.update()

    def resume(self) -> None:
        self.paused = False
        unaware, self._unnotified = self._unnotified, []
        for session in (*self.sessions.values(), *unaware):
            session.update(restart=True)

    def cut(self, session_id: int) -> None:
        """Disconnects a session, which expires after its timeout. Raises KeyError."""
        session = self.sessions[session_id]
        session.cut = True
        session.update()

    def heal(self, session: InProcessSession) -> None:
        """Reconnects a session, which continues or learns that it has expired."""
        session.cut = False
        session.update()

    def expire(self, session_id: int) -> None:
        """Ends a session now; its holder learns of it when it is connected. Raises KeyError."""
        session = self.sessions.pop(session_id)
        session.expired = True
        for path in [path for path, node in self._nodes.items() if node.owner == session_id]:
            self._remove(path)
        session.update()
        if self.paused:
            self._unnotified.append(session)

    def close(self) -> None:
        for session_id in tuple(self.sessions):
            self.expire(session_id)

    # --- requests of sessions ---------------------------------------------------------------------------------------

    async def connect(self) -> InProcessSession:
        """Opens a new session. Raises Unreachable while the service is paused."""
        await self.travel()
        if self.paused:
            raise errors.Unreachable("the coordination service does not answer")
        session = InProcessSession(self, self._next_id)
        self._next_id += 1
        self.sessions[session.session_id] = session
        return session

    async def travel(self) -> None:
        """Waits for the delay of a message."""
        await asyncio.sleep(0 if self._delay_s is None else self._delay_s())

    def create(self, path: str, data: bytes, owner: int) -> None:
        if path in self._nodes:
            raise errors.NodeExists(f"node {path} exists", path)
        parent = path.rpartition("/")[0]
        if parent and parent not in self._nodes:
            self.create(parent, b"", 0)
        self._nodes[path] = Node(data, 0, owner)
        self._fire(path, f"{parent}/")

    def get(self, path: str, watch: _Watch | None = None) -> Node | None:
        if watch is not None:
            self._watches[path.rstrip("/")].append(watch)
        return self._nodes.get(path)

    def set(self, path: str, data: bytes, version: int) -> None:
        node = self._checked(path, version)
        self._nodes[path] = Node(data, node.version + 1, node.owner)
        self._fire(path)

    def delete(self, path: str, version: int) -> None:
        self._checked(path, version)
        self._remove(path)

    def children(self, path: str, watch: _Watch | None = None) -> list[str]:
        start = path.rstrip("/") + "/"
        if watch is not None:
            self._watches[start].append(watch)
        return sorted(
            node[len(start) :] for node in self._nodes if node.startswith(start) and "/" not in node[len(start) :]
        )

    def forget_watches(self, session: InProcessSession) -> list[Watch]:
        """Removes and returns the watches of a session that has ended."""
        forgotten = []
        for path, waiting in list(self._watches.items()):
            forgotten += [watch for holder, watch in waiting if holder is session]
            self._watches[path] = [waiter for waiter in waiting if waiter[0] is not session]
            if not self._watches[path]:
                del self._watches[path]
        return forgotten

    def _checked(self, path: str, version: int) -> Node:
        node = self._nodes.get(path)
        if node is None:
            raise errors.NoNode(f"there is no node {path}", path)
        if version not in (-1, node.version):
            raise errors.BadVersion(f"node {path} has version {node.version}, not {version}", path)
        return node

    def _remove(self, path: str) -> None:
        del self._nodes[path]
        self._fire(path, path.rpartition("/")[0] + "/")

    def _fire(self, *paths: str) -> None:
        for path in paths:
            for session, watch in self._watches.pop(path, ()):
                session.fire(watch)


class InProcessSession(CoordinationSession):
    """A session with an `InProcessCoordinator`, as seen by its holder (`CoordinationSession`).

    cut: it is disconnected from the service. expired: the service has ended it, which its state shows later.
    """

    def __init__(self, service: InProcessCoordinator, session_id: int) -> None:
        super().__init__(session_id, SessionState.CONNECTED)
        self.cut = False
        self.expired = False
        self.service = service
        self._unfired: list[Watch] = []
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def reachable(self) -> bool:
        """Whether it is connected to the service."""
        return not self.cut and not self.service.paused

    # --- requests ---------------------------------------------------------------------------------------------------

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        await self._ask(self.service.create, path, data, self.session_id if ephemeral else 0)

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        return await self._ask(self.service.get, path, watch and (self, watch))

    async def set(self, path: str, data: bytes, version: int = -1) -> None:
        await self._ask(self.service.set, path, data, version)

    async def delete(self, path: str, version: int = -1) -> None:
        await self._ask(self.service.delete, path, version)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        return await self._ask(self.service.children, path, watch and (self, watch))

    async def aclose(self) -> None:
        if self._state is SessionState.CLOSED:
            return
        if self.service.sessions.get(self.session_id) is self and self.reachable:
            self._become(SessionState.CLOSED)
            self.service.expire(self.session_id)
        else:
            self._become(SessionState.CLOSED)  # the service ends it after its timeout

    # --- connection -------------------------------------------------------------------------------------------------

    async def _ask(self, request: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Executes a request after its delay, and returns after the reply's delay."""
        self._check_connection()
        await self.service.travel()
        self._check_connection()
        answer = request(*args, **named)
        await self.service.travel()
        self._check_connection()
        return answer

    def _check_connection(self) -> None:
        self.check()
        if self.expired and self.reachable:
            self.update()
            raise errors.SessionExpired(f"session {self.session_id:#x} has expired")
        if not self.reachable:
            raise errors.Disconnected("the coordination service does not answer")

    def update(self, *, restart: bool = False) -> None:
        """Updates the holder's state after a change of the connection, or of the session in the service.

        A session that is disconnected is suspended after a while, and expires after its timeout; `restart`: both timers
        start again. A connected session learns its state, and its pending watches fire.
        """
        if self._state.is_over or (not self.reachable and self._timers and not restart):
            return
        self._cancel_timers()
        if not self.reachable:
            loop = asyncio.get_running_loop()
            timeout_s = self.service.session_timeout_ms / 1000
            self._timers = [
                loop.call_later(timeout_s * _SUSPENDED_AFTER, self._become, SessionState.SUSPENDED),
                loop.call_later(timeout_s, self._expire),
            ]
            return
        if self.expired:
            self._become(SessionState.LOST)
            return
        if self._state is SessionState.SUSPENDED:
            self._become(SessionState.CONNECTED)
        unfired, self._unfired = self._unfired, []
        for watch in unfired:
            watch()

    def fire(self, watch: Watch) -> None:
        """Delivers a fired watch to the holder, now or once the session is connected."""
        if self._state.is_over:
            return
        if self.reachable:
            asyncio.get_running_loop().call_soon(watch)
        else:
            self._unfired.append(watch)

    def _expire(self) -> None:
        if not self.service.paused and self.service.sessions.get(self.session_id) is self:
            self.service.expire(self.session_id)

    def _become(self, state: SessionState) -> None:
        if self._state in (state, SessionState.CLOSED):
            return
        self._state = state
        if self._state.is_over:
            self._cancel_timers()
            loop = asyncio.get_running_loop()
            for watch in self._unfired + self.service.forget_watches(self):
                loop.call_soon(watch)
            self._unfired = []
        for callback in self._callbacks:
            callback(state)

    def _cancel_timers(self) -> None:
        timers, self._timers = self._timers, []
        for timer in timers:
            timer.cancel()


_Watch = tuple[InProcessSession, Watch]
"""A session that waits for a change, and the function that notifies it."""
