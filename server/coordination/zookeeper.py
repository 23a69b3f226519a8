"""Sessions with a real ZooKeeper, through kazoo (the extra `zookeeper`).

kazoo goes on with a new session by itself when one has expired. Here a session object is one session: when kazoo says
that it is lost, its client is stopped, and who wants another connects again. kazoo calls back on threads of its own;
everything is handed to the loop's thread before anybody hears of it.

Invariants: no request outlives its session's timeout, so a service that does not answer is `Disconnected`, never a wait
without end; after `aclose`, no thread of kazoo's is left.
Refused: with `Unreachable`, in one sentence, servers that do not answer and a missing kazoo.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from segstore.server.coordination.types import (
    BadVersion,
    CoordinationError,
    Disconnected,
    Node,
    NodeExists,
    NoNode,
    SessionExpired,
    SessionState,
    Unreachable,
)

__all__ = ["ZooKeeperCoordinator", "ZooKeeperSession"]

log = logging.getLogger(__name__)

class ZooKeeperCoordinator:
    """Where sessions with a ZooKeeper come from (`Coordinator`)."""

    def __init__(self, hosts: str, *, session_timeout_ms: float = 10_000, connect_timeout_ms: float = 10_000) -> None:
        """hosts: "host:port", several with commas, and a path at the end to stay below. session_timeout_ms: what is
        asked for; the servers may bound it."""
        self.hosts = hosts
        self._session_timeout_s = session_timeout_ms / 1000
        self._connect_timeout_s = connect_timeout_ms / 1000

    async def connect(self) -> ZooKeeperSession:
        try:
            from kazoo.client import KazooClient
            from kazoo.retry import KazooRetry
        except ModuleNotFoundError as error:
            raise Unreachable("ZooKeeper needs kazoo: pip install 'segstore[zookeeper]'") from error
        retry = {"delay": 0.1, "max_delay": 2.0, "max_tries": -1}
        client = KazooClient(
            self.hosts,
            timeout=self._session_timeout_s,
            connection_retry=KazooRetry(**retry),
            command_retry=KazooRetry(max_tries=0),
            logger=logging.getLogger(f"{__name__}.kazoo"),
        )
        session = ZooKeeperSession(client, asyncio.get_running_loop(), self._session_timeout_s)
        try:
            await asyncio.to_thread(client.start, self._connect_timeout_s)
        except asyncio.CancelledError:
            await session.aclose()
            raise
        except Exception as error:  # kazoo's timeouts, and what its threads met: names that do not resolve
            await session.aclose()
            raise Unreachable(f"ZooKeeper at {self.hosts} does not answer: {error}") from error
        session.begun()
        return session


class ZooKeeperSession:
    """One session (`CoordinationSession`).

    Attributes:
        session_id: the service's number for it.
        client: kazoo's; for looking at its id and password.
    """

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self.client = client
        self.session_id = 0
        self._loop = loop
        self._timeout_s = timeout_s
        self._state = SessionState.CONNECTED
        self._callbacks: list[Callable[[SessionState], None]] = []
        self._stopping: asyncio.Future[None] | None = None
        client.add_listener(self._listen)

    def begun(self) -> None:
        """The client has its session."""
        self.session_id = self.client.client_id[0]

    @property
    def state(self) -> SessionState:
        return self._state

    def on_change(self, callback: Callable[[SessionState], None]) -> None:
        self._callbacks.append(callback)

    # --- requests ---------------------------------------------------------------------------------------------------

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        await self._ask(path, "create_async", path, data, ephemeral=ephemeral, makepath=True)

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> Node | None:
        # A node that is not there is watched by `exists`, one that is there by either.
        heard = None if watch is None else self._watcher(watch)
        if await self._ask(path, "exists_async", path, heard) is None:
            return None
        try:
            data, stat = await self._ask(path, "get_async", path)
        except NoNode:
            return None
        return Node(data, stat.version, stat.ephemeralOwner)

    async def set(self, path: str, data: bytes, version: int = -1) -> None:
        await self._ask(path, "set_async", path, data, version)

    async def delete(self, path: str, version: int = -1) -> None:
        await self._ask(path, "delete_async", path, version)

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        heard = None if watch is None else self._watcher(watch)
        try:
            return sorted(await self._ask(path, "get_children_async", path, heard))
        except NoNode:
            if watch is not None:
                await self._ask(path, "exists_async", path, heard)
            return []

    async def aclose(self) -> None:
        if self._state is not SessionState.LOST:
            self._become(SessionState.CLOSED)
        await asyncio.shield(self._stop())

    async def _ask(self, path: str, name: str, *args: Any, **named: Any) -> Any:
        from kazoo import exceptions as kazoo_errors
        from kazoo.handlers.threading import KazooTimeoutError

        self._check()
        answered: asyncio.Future[Any] = self._loop.create_future()

        def hand_over(result: Any) -> None:
            self._to_loop(_settle, answered, result)

        try:
            getattr(self.client, name)(*args, **named).rawlink(hand_over)
            async with asyncio.timeout(self._timeout_s):
                return await answered
        except kazoo_errors.NodeExistsError as error:
            raise NodeExists(f"node {path} exists", path) from error
        except kazoo_errors.NoNodeError as error:
            raise NoNode(f"there is no node {path}", path) from error
        except kazoo_errors.BadVersionError as error:
            raise BadVersion(f"node {path} has another version", path) from error
        except kazoo_errors.SessionExpiredError as error:
            raise SessionExpired(f"session {self.session_id:#x} has expired", path) from error
        except (kazoo_errors.ConnectionLoss, kazoo_errors.OperationTimeoutError, KazooTimeoutError) as error:
            raise Disconnected(f"ZooKeeper did not answer for {path}", path) from error
        except TimeoutError as error:
            raise Disconnected(f"ZooKeeper did not answer for {path} within {self._timeout_s:g} s", path) from error
        except kazoo_errors.ConnectionClosedError as error:
            self._check()
            raise Disconnected(f"the connection to ZooKeeper was closed while {path} was asked for", path) from error
        except kazoo_errors.KazooException as error:
            raise CoordinationError(f"ZooKeeper refused what was asked of {path}: {error!r}", path) from error

    def _check(self) -> None:
        if self._state in (SessionState.LOST, SessionState.CLOSED):
            raise SessionExpired(f"session {self.session_id:#x} is {self._state.value}")

    # --- what kazoo's threads say -----------------------------------------------------------------------------------

    def _watcher(self, watch: Callable[[], None]) -> Callable[[Any], None]:
        return lambda _: self._to_loop(watch)

    def _listen(self, state: str) -> None:
        """Called by kazoo, on its thread."""
        self._to_loop(self._hear, state)

    def _hear(self, state: str) -> None:
        match state:
            case "CONNECTED":
                self._become(SessionState.CONNECTED)
            case "SUSPENDED":
                self._become(SessionState.SUSPENDED)
            case "LOST":
                self._become(SessionState.LOST)
                self._stop()

    def _become(self, state: SessionState) -> None:
        if self._state in (state, SessionState.LOST, SessionState.CLOSED):
            return
        self._state = state
        for callback in self._callbacks:
            callback(state)

    def _to_loop(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            log.debug("ZooKeeper said something after the loop was closed")

    def _stop(self) -> asyncio.Future[None]:
        """kazoo's threads end, on a thread of ours; begun once."""
        if self._stopping is None:
            self._stopping = self._loop.run_in_executor(None, self._stop_client)
        return self._stopping

    def _stop_client(self) -> None:
        self.client.stop()
        self.client.close()


def _settle(answered: asyncio.Future[Any], result: Any) -> None:
    if answered.done():
        return
    error = result.exception
    if error is None:
        answered.set_result(result.value)
    else:
        answered.set_exception(error)
