"""Sessions with a real ZooKeeper, through kazoo (the extra `zookeeper`).

A session object is one session from start to end; a new session needs another `connect`. A kazoo client whose session
has expired would open a new session by itself, with the pending requests, so it gets no further connection then
(`KazooLine`). This also makes a client stop quickly: kazoo waits for its threads, which wait for the servers, for a
pause between attempts, or for the reply to their close request. kazoo calls back on its own threads; everything is
passed to the loop's thread.

A ZooKeeper that has lost its data, or was restored from an older copy, closes connections of sessions that have seen
newer data, without a reply. So a session without a connection reads the servers' last change through a new connection,
and is lost if it has seen a newer change. A ZooKeeper that has just started may ignore requests for sessions, and kazoo
would wait for the reply until the session has expired. So once the service answers a new session, a connection that was
stuck before is closed, and kazoo reconnects.

Invariants: no request outlives its session, waits longer than its timeout, or is queued: a request without a connection
raises `Disconnected` at once. After `aclose`, no thread of kazoo is left. With credentials, every created
node is accessible only with them.

Refused with `Unreachable`, in one sentence: servers that do not answer, invalid names, a missing kazoo, and a tree that
can be changed without the credentials.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from pydantic import SecretStr

from segstore.server.coordination import errors
from segstore.server.coordination.types import CoordinationSession, Node, SessionState
from segstore.wire.extras import pip_command

log = logging.getLogger(__name__)

_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.ERROR)  # kazoo logs a warning for each attempt; the session's owner logs its loss

_TREE: Final = "/segstore"
_OPEN_TO: Final = ("world", "ip")
"""Schemes of ZooKeeper's access-control lists that need no credentials."""

_REFUSALS: Final = {
    "NodeExistsError": (errors.NodeExists, "node {path} exists"),
    "NoNodeError": (errors.NoNode, "there is no node {path}"),
    "BadVersionError": (errors.BadVersion, "node {path} has another version"),
    "NoAuthError": (
        errors.CoordinationError,
        "ZooKeeper refuses these credentials for node {path}; give those used to create it",
    ),
}
"""Name of kazoo's error → the error and its text."""

_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 1.0
"""Limits of the pause between attempts to reach the servers, while the session may still exist."""

_LOOK_S: Final = 1.0
"""Time from the loss of a connection to the first check of the servers' last change, and between checks."""
_LOOK_TIMEOUT_S: Final = 3.0
"""Timeout of a check. A server that has just started may not answer the request for a session."""

_CLOSE_PATIENCE_S: Final = 1.0
"""Time for the servers to answer when a session is closed; without an answer it ends after its timeout."""
_SPARE_S = 0.02
"""Pause between attempts of a client that is stopping."""
_CONNECT_S = 3.0
"""Timeout for opening a connection; kazoo's is the session's, in which another server could have been tried."""


class ZooKeeperCoordinator:
    """Opens sessions with a ZooKeeper (`Coordinator`)."""

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_ms: float = 10_000,
        connect_timeout_ms: float = 10_000,
        credentials: SecretStr | None = None,
    ) -> None:
        """hosts: "host:port", several separated by commas, optionally followed by a path as the root of all nodes.
        session_timeout_ms: the requested timeout, which the servers may limit. connect_timeout_ms: deadline for a
        server's answer. credentials: "user:password" for the scheme `digest`; nodes created with them can be read and
        changed with them only.

        Raises ValueError for malformed credentials.
        """
        if credentials is not None and not all(credentials.get_secret_value().partition(":")):
            raise ValueError("the credentials for ZooKeeper are not user:password")
        self.hosts = hosts
        self._credentials = credentials
        self._session_timeout_s = session_timeout_ms / 1000
        self._connect_timeout_s = connect_timeout_ms / 1000

    async def connect(self) -> ZooKeeperSession:
        session = ZooKeeperSession(self.hosts, self._session_timeout_s, self._credentials)
        try:
            await session.begin(self._connect_timeout_s)
        except BaseException:
            await session.aclose()
            raise
        return session


class ZooKeeperSession(CoordinationSession):
    """One session (`CoordinationSession`). client: the kazoo client; to inspect its id and password."""

    def __init__(self, hosts: str, timeout_s: float, credentials: SecretStr | None) -> None:
        """Must be called in the loop's thread. Raises Unreachable."""
        try:
            from kazoo.client import KazooClient
            from kazoo.handlers.threading import SequentialThreadingHandler
            from kazoo.retry import KazooRetry
            from kazoo.security import CREATOR_ALL_ACL
        except ModuleNotFoundError as error:
            raise errors.Unreachable(f"ZooKeeper needs kazoo: {pip_command('zookeeper')}") from error
        handler = SequentialThreadingHandler()
        self._line = KazooLine(handler)
        pause = {"delay": _FIRST_RETRY_S, "max_delay": _LAST_RETRY_S, "sleep_func": self._line.sleep}
        servers, _, below = hosts.partition("/")
        try:
            self.client = KazooClient(
                servers,
                timeout=timeout_s,
                handler=handler,
                connection_retry=KazooRetry(max_tries=-1, **pause),
                command_retry=KazooRetry(max_tries=0, **pause),
                logger=_kazoo_log,
                auth_data=None if credentials is None else [("digest", credentials.get_secret_value())],
                default_acl=None if credentials is None else CREATOR_ALL_ACL,
            )
        except ValueError as error:
            raise errors.Unreachable(
                f"{hosts!r} is not the address of a ZooKeeper, which is HOST:PORT: {error}"
            ) from error
        super().__init__(0, SessionState.SUSPENDED)
        self._hosts = hosts
        self._credentials = credentials
        self._root = f"/{below}".rstrip("/")
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._answers: set[asyncio.Future[Any]] = set()
        self._watches: dict[object, Callable[[], None]] = {}  # those that have not fired
        self._looks: set[asyncio.Task[None]] = set()
        self._stopping: asyncio.Future[None] | None = None
        self.client.add_listener(self._listen)

    async def begin(self, connect_timeout_s: float) -> None:
        """Waits for the session. Raises Unreachable."""
        self.client.start_async()
        try:
            async with asyncio.timeout(connect_timeout_s):
                await self._connected
        except TimeoutError as error:
            why: object = self._line.failed or f"it gave no session within {connect_timeout_s:g} s"
            if not self._line.tried:
                why = "no such name is known"
            raise errors.Unreachable(
                f"ZooKeeper at {self._hosts} does not answer: {why}; make sure that it runs there, or name another one"
            ) from error
        if self._credentials is not None:
            await self._check_tree()

    async def _check_tree(self) -> None:
        """Raises Unreachable if the stores' nodes can be changed without credentials, or not with these."""
        from kazoo.security import Permissions

        try:
            entries, _ = await self._ask(_TREE, "get_acls_async")
        except errors.NoNode:
            return
        except errors.CoordinationError as error:
            raise errors.Unreachable(str(error)) from error
        if any(entry.id.scheme in _OPEN_TO and entry.perms & ~Permissions.READ for entry in entries):
            raise errors.Unreachable(
                f"node {self._root}{_TREE} of ZooKeeper can be changed without credentials: it was made without them; "
                "delete it, or use another name: HOST:PORT/NAME"
            )

    # --- requests ---------------------------------------------------------------------------------------------------

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        await self._ask(path, "create_async", data, ephemeral=ephemeral, makepath=True)

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> Node | None:
        # Only `exists` can watch a missing node; both can watch an existing one.
        heard = self._watcher(watch)
        if await self._ask(path, "exists_async", heard) is None:
            return None
        try:
            data, stat = await self._ask(path, "get_async")
        except errors.NoNode:
            return None
        return Node(data, stat.version, stat.ephemeralOwner)

    async def set(self, path: str, data: bytes, version: int = -1) -> None:
        await self._ask(path, "set_async", data, version)

    async def delete(self, path: str, version: int = -1) -> None:
        await self._ask(path, "delete_async", version)

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        heard = self._watcher(watch)
        while True:
            try:
                return sorted(await self._ask(path, "get_children_async", heard))
            except errors.NoNode:
                if await self._ask(path, "exists_async", heard) is None:
                    return []

    async def aclose(self) -> None:
        self._become(SessionState.CLOSED)
        await asyncio.shield(self._stop())
        await asyncio.gather(*self._looks, return_exceptions=True)

    async def _ask(self, path: str, name: str, *args: Any, **named: Any) -> Any:
        from kazoo import exceptions as kazoo_errors

        self._check_connection(path)
        answered: asyncio.Future[Any] = self._loop.create_future()
        self._answers.add(answered)

        def hand_over(result: Any) -> None:
            self._to_loop(_settle, answered, result)

        try:
            getattr(self.client, name)((self._root + path).rstrip("/") or "/", *args, **named).rawlink(hand_over)
            async with asyncio.timeout(self._timeout_s):
                return await answered
        except (
            kazoo_errors.ConnectionLoss,
            kazoo_errors.OperationTimeoutError,
            kazoo_errors.ConnectionClosedError,
        ) as error:
            self._check_connection(path)
            raise errors.Disconnected(
                f"the connection to ZooKeeper was lost during a request for {path}", path
            ) from error
        except kazoo_errors.SessionExpiredError as error:
            raise errors.SessionExpired(f"session {self.session_id:#x} has expired", path) from error
        except kazoo_errors.KazooException as error:
            kind, text = _REFUSALS.get(
                type(error).__name__, (errors.CoordinationError, "ZooKeeper refused a request for {path}: {error!r}")
            )
            raise kind(text.format(path=path, error=error), path) from error
        except TimeoutError as error:
            raise errors.Disconnected(
                f"ZooKeeper did not answer for {path} within {self._timeout_s:g} s", path
            ) from error
        finally:
            self._answers.discard(answered)

    def _check_connection(self, path: str) -> None:
        self.check(path)
        if self._state is SessionState.SUSPENDED:
            raise errors.Disconnected(f"there is no connection to ZooKeeper at {self._hosts}", path)

    # --- events from kazoo's threads --------------------------------------------------------------------------------

    def _watcher(self, watch: Callable[[], None] | None) -> Callable[[Any], None] | None:
        """Returns the watcher for kazoo, which also calls it when the connection is lost and its watches with it."""
        if watch is None:
            return None
        key = object()
        self._watches[key] = watch
        return lambda _: self._to_loop(self._fire, key)

    def _fire(self, key: object) -> None:
        if (watch := self._watches.pop(key, None)) is not None:
            watch()

    def _listen(self, state: str) -> None:
        """Called by kazoo on its connection thread, which waits until this returns."""
        if state == "LOST":
            self._line.end()
        elif state == "CONNECTED" and not self.session_id:
            self.session_id = self.client.client_id[0]
        self._to_loop(self._on_state, state)

    def _on_state(self, state: str) -> None:
        self._become(SessionState[state])
        if state == "LOST":
            self._stop()

    def _become(self, state: SessionState) -> None:
        if self._state in (state, SessionState.CLOSED) or (self._state.is_over and not state.is_over):
            return
        self._state = state
        here = asyncio.current_task()
        for look in self._looks:
            if look is not here:
                look.cancel()
        if state is SessionState.SUSPENDED:
            look = self._loop.create_task(self._look(), name=f"looking for session {self.session_id:#x}")
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)
        if state.is_over:
            expired = errors.SessionExpired(f"session {self.session_id:#x} is {state.value}")
            for answered in self._answers | {self._connected}:
                if not answered.done():
                    answered.set_exception(expired)
            if not self._connected.cancelled():
                self._connected.exception()  # retrieved in case nothing awaits it
            for key in self._watches:
                self._loop.call_soon(self._fire, key)
        elif state is SessionState.CONNECTED and not self._connected.done():
            self._connected.set_result(None)
        for callback in self._callbacks:
            callback(state)

    def _to_loop(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            log.debug("ZooKeeper said something after the loop was closed")

    # --- a service that has lost its data ---------------------------------------------------------------------------

    async def _look(self) -> None:
        """While disconnected: closes a stuck connection once the service answers, or marks the session as lost if the
        service's data is older than the session.
        """
        while True:
            await asyncio.sleep(_LOOK_S)
            stuck = self._line.current
            try:
                last = await self._last_change()
            except errors.CoordinationError as error:
                log.debug("cannot read the last change of ZooKeeper at %s: %s", self._hosts, error)
                continue
            seen = self.client.last_zxid
            if last < seen:
                self.why = (
                    f"ZooKeeper at {self._hosts} has lost its data: its last change is {last:#x}, "
                    f"and session {self.session_id:#x} has seen {seen:#x}"
                )
                self._on_state("LOST")
                return
            if not self.client.connected:
                self._line.drop(stuck)

    async def _last_change(self) -> int:
        """Returns the number of the service's last change (zxid). Raises CoordinationError.

        The `sync` ensures that a lagging server has everything that other servers have shown before.
        """
        fresh = ZooKeeperSession(self._hosts, _LOOK_TIMEOUT_S, self._credentials)
        try:
            await fresh.begin(_LOOK_TIMEOUT_S)
            await fresh._ask("/", "sync_async")
            return int(fresh.client.last_zxid)
        finally:
            await fresh.aclose()

    # --- the end ----------------------------------------------------------------------------------------------------

    def _stop(self) -> asyncio.Future[None]:
        """Stops kazoo's threads, in a thread of ours; starts only once."""
        if self._stopping is None:
            self._stopping = self._loop.run_in_executor(None, self._stop_client)
        return self._stopping

    def _stop_client(self) -> None:
        patience = threading.Timer(_CLOSE_PATIENCE_S if self.client.connected else 0, self._line.cut)
        self._line.end()
        patience.start()
        try:
            self.client.stop()
            self.client.close()
        except Exception:  # kazoo gave up on its own threads
            log.exception("ZooKeeper session %#x did not end cleanly", self.session_id)
        finally:
            patience.cancel()
            patience.join()


def _settle(answered: asyncio.Future[Any], result: Any) -> None:
    if answered.done():
        return
    error = result.exception
    if error is None:
        answered.set_result(result.value)
    else:
        answered.set_exception(error)


class KazooLine:
    """Replaces a kazoo handler's functions for opening connections and sleeping; used by kazoo's threads.

    After `end`, kazoo makes no connection; after `cut`, it has no connection and waits for none. `tried` is whether a
    connection was ever attempted, `failed` the error of the last attempt, None if it succeeded.
    """

    def __init__(self, handler: Any) -> None:
        self.tried = False
        self.failed: OSError | None = None
        self._connect = handler.create_connection
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        handler.create_connection = self._create_connection
        handler.sleep_func = self.sleep

    def sleep(self, seconds: float) -> None:
        """Waits, but only briefly once the session has ended."""
        if self._ended.is_set():
            time.sleep(min(seconds, _SPARE_S))
        else:
            self._ended.wait(seconds)

    def end(self) -> None:
        """Refuses new connections; an existing one stays."""
        self._ended.set()

    def cut(self) -> None:
        """Refuses new connections and closes the current connection."""
        with self._lock:
            self._ended.set()
        self.drop(self.current)

    @property
    def current(self) -> socket.socket | None:
        """Returns the last connection made, open or not; None before the first connection."""
        with self._lock:
            return self._socket

    def drop(self, connection: socket.socket | None) -> None:
        """Shuts down a connection that was not replaced since, so that kazoo stops waiting on it and reconnects."""
        with self._lock:
            if connection is not None and connection is self._socket:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    return  # it is already closed, here or by the server

    def _create_connection(self, *args: Any, **named: Any) -> socket.socket:
        if self._ended.is_set():
            raise ConnectionAbortedError("the session has ended")
        self.tried = True
        try:
            named["timeout"] = min(named["timeout"], _CONNECT_S)
            connection: socket.socket = self._connect(*args, **named)
        except OSError as error:
            self.failed = error
            raise
        with self._lock:
            if not self._ended.is_set():
                self.failed = None
                self._socket = connection
                return connection
        connection.close()
        raise ConnectionAbortedError("the session has ended")
