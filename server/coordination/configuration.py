"""The configuration service: scopes and stream configurations in the coordination service (seed 57.6).

A cluster's controller publishes it, and every store can look it up. It uses a session of its own, with the containers'
service or with another service. Lookups ask the service, and nothing is cached.

Invariant: losing this session never ends a store: it reconnects until it has a new session, and then publishes again
what differs from the nodes. Other programs may write nodes, too: lookups refuse invalid bytes, and publishing replaces
them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from segstore.server.controller import StreamConfig
from segstore.server.controller.state import State
from segstore.server.controller.state import operations as op
from segstore.server.coordination import errors
from segstore.server.coordination.policy import backoff_s, cancel_and_wait
from segstore.server.coordination.types import CoordinationSession, Coordinator, SessionState

log = logging.getLogger(__name__)

CONFIGURATION: Final = "/segstore/configuration"

Configured = Mapping[str, Mapping[str, StreamConfig]]
"""Scope → stream → configuration."""

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(StreamConfig)

_CONFIGURING: Final = (op.ScopeCreated, op.ScopeDeleted, op.StreamCreated, op.StreamUpdated, op.StreamDeleted)


def configured(state: State) -> Configured:
    """Returns the configuration of all user streams."""
    return {
        scope.name: {name: stream.config for name, stream in scope.streams.items() if not stream.is_internal}
        for scope in state.scopes.values()
    }


class NoConfiguration(errors.CoordinationError):
    """A stream's node does not contain a configuration."""


class Configuration:
    """Looks up the configuration, and publishes it once `publish` was called.

    `session` is None while disconnected; `published` counts how often the nodes were found or made up to date.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self.session: CoordinationSession | None = None
        self.published = 0
        self._coordinator = coordinator
        self._source: Callable[[], Configured | None] = lambda: None
        self._work = asyncio.Event()
        self._main: asyncio.Task[None] | None = None

    # --- start and stop ---------------------------------------------------------------------------------------------

    async def start(self) -> CoordinationSession:
        """Opens a session and returns it for inspection. Raises Unreachable."""
        self.session = session = await self._coordinator.connect()
        self._main = asyncio.create_task(self._run(session), name="configuration")
        return session

    async def aclose(self) -> None:
        """Closes the session. Can be called twice."""
        main, self._main = self._main, None
        await cancel_and_wait(main)
        session, self.session = self.session, None
        if session is not None:
            await session.aclose()

    async def _run(self, session: CoordinationSession) -> None:
        while True:
            self.session = session
            await self._live(session)
            self.session = None
            await session.aclose()
            why = session.why and f": {session.why}"
            log.warning("the session with the configuration service has ended%s; stores continue without it", why)
            for failed in count():
                try:
                    session = await self._coordinator.connect()
                    break
                except errors.Unreachable as error:
                    log.warning("no session with the configuration service: %s", error)
                    await asyncio.sleep(backoff_s(failed))

    async def _live(self, session: CoordinationSession) -> None:
        """Works with one session until it ends."""

        def on_change(state: SessionState) -> None:
            self._work.set()
            if state is SessionState.SUSPENDED:
                log.warning("the configuration service does not answer; stores continue without it")

        session.on_change(on_change)
        self._work.set()
        known: dict[str, bytes] | None = None
        failed = 0
        while not session.state.is_over:
            await self._work.wait()
            self._work.clear()
            try:
                if session.state is not SessionState.CONNECTED or (wanted := self._source()) is None:
                    known = None  # another process may publish meanwhile
                    continue
                known = await self._contents(session) if known is None else known
                await self._put(session, known, _nodes(wanted))
            except errors.SessionExpired:
                return
            except (errors.CoordinationError, OSError) as error:
                # OSError: the source cannot check whether it still leads.
                log.warning("the configuration was not published: %s; trying again", error)
                known = None
                self._work.set()
                await asyncio.sleep(backoff_s(failed))
                failed += 1
            else:
                failed = 0
                self.published += 1

    # --- publishing -------------------------------------------------------------------------------------------------

    def publish(self, source: Callable[[], Configured | None]) -> None:
        """Starts publishing the values of `source`; while it returns None, the nodes stay unchanged."""
        self._source = source
        self.changed()

    def withdraw(self) -> None:
        """Stops publishing; the nodes stay."""
        self.publish(lambda: None)

    def changed(self) -> None:
        """Reports that the configuration to publish has changed or is about to change."""
        self._work.set()

    def changed_by(self, operation: op.Operation) -> None:
        """Reports an operation that the controller is about to apply."""
        if isinstance(operation, _CONFIGURING):
            self.changed()

    @staticmethod
    async def _contents(session: CoordinationSession) -> dict[str, bytes]:
        """Returns the current content of the nodes."""
        contents = {}
        for scope in await session.children(CONFIGURATION):
            contents[f"{CONFIGURATION}/{scope}"] = b""
            for stream in await session.children(f"{CONFIGURATION}/{scope}"):
                path = f"{CONFIGURATION}/{scope}/{stream}"
                if (node := await session.get(path)) is not None:
                    contents[path] = node.data
        return contents

    @staticmethod
    async def _put(session: CoordinationSession, known: dict[str, bytes], wanted: Mapping[str, bytes]) -> None:
        """Changes the nodes to `wanted`, and updates `known`."""
        for path in sorted(known.keys() - wanted.keys(), reverse=True):  # streams before their scope
            await session.delete(path)
            del known[path]
        for path, data in wanted.items():  # scopes before their streams
            if path not in known:
                await session.create(path, data)
            elif known[path] != data:
                await session.set(path, data)
            known[path] = data

    # --- looking up -------------------------------------------------------------------------------------------------

    async def scopes(self) -> list[str]:
        """Returns the names of all scopes. Raises CoordinationError, as all lookups do."""
        return await self._names(CONFIGURATION)

    async def streams(self, scope: str) -> list[str]:
        """Returns the names of a scope's streams; an empty list for an unknown scope."""
        return await self._names(_path(scope))

    async def stream(self, scope: str, stream: str) -> StreamConfig | None:
        """Returns a stream's configuration; None for an unknown stream. Raises NoConfiguration for invalid bytes."""
        path = _path(scope, stream)
        node = await self._current(path).get(path)
        if node is None:
            return None
        try:
            return _DECODER.decode(node.data)
        except msgspec.MsgspecError as error:
            raise NoConfiguration(
                f"node {path} is not a stream's configuration: {error}: {node.data[:200]!r}", path
            ) from error

    async def _names(self, path: str) -> list[str]:
        return [unquote(name) for name in await self._current(path).children(path)]

    def _current(self, path: str) -> CoordinationSession:
        if self.session is None:
            raise errors.Disconnected("there is no session with the configuration service", path)
        return self.session


def _path(*names: str) -> str:
    """Returns the node of a scope or a stream. Names that consist of dots are escaped: nodes cannot have them."""
    quoted = (quote(name, safe="") for name in names)
    return "/".join((CONFIGURATION, *(name if name.strip(".") else name.replace(".", "%2E") for name in quoted)))


def _nodes(configured: Configured) -> dict[str, bytes]:
    nodes: dict[str, bytes] = {}
    for scope, streams in configured.items():
        nodes[_path(scope)] = b""
        for stream, config in streams.items():
            nodes[_path(scope, stream)] = _ENCODER.encode(config)
    return nodes
