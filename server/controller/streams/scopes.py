"""Scopes: created, listed, deleted when empty or with their contents. Follows `Scope` and `DeleteScopeTask`."""

from __future__ import annotations

from collections.abc import Callable

from segstore.server.controller.errors import AlreadyExists, InvalidName, ScopeNotEmpty
from segstore.server.controller.state import Core, require
from segstore.server.controller.state import operations as op
from segstore.server.controller.streams.reader_groups import ReaderGroups
from segstore.server.controller.streams.streams import Streams, page
from segstore.server.controller.streams.tables import Tables
from segstore.wire.names import is_stream_name


class Scopes:
    """Operations on scopes. A scope's name follows the rules for streams."""

    def __init__(self, core: Core, streams: Streams, reader_groups: ReaderGroups, tables: Tables) -> None:
        self._core = core
        self._streams = streams
        self._reader_groups = reader_groups
        self._tables = tables

    def create(self, scope: str) -> None:
        require(scope=scope)
        if not is_stream_name(scope):
            raise InvalidName("scope", scope)
        if scope in self._core.state.scopes:
            raise AlreadyExists("scope", scope)
        self._core.record(op.ScopeCreated(scope, self._core.now_ms()))

    def exists(self, scope: str) -> bool:
        return scope in self._core.state.scopes

    def names(self, token: str, accepts: Callable[[str], bool] = bool) -> tuple[list[str], str]:
        """Returns a page of the names of the scopes that are accepted."""
        return page(self._core.config.page_size, self._core.state.scopes, token, accepts=accepts)

    def delete(self, scope: str) -> None:
        """Deletes an empty scope."""
        found = self._core.state.scope(scope)
        held = len(found.streams) + len(found.reader_groups) + len(found.tables)
        if held:
            raise ScopeNotEmpty(scope, held)
        self._core.record(op.ScopeDeleted(scope))

    async def delete_recursively(self, scope: str) -> None:
        """Deletes a scope and its contents; no-op if it does not exist."""
        require(scope=scope)
        state = self._core.state
        while scope in state.scopes:
            found = state.scopes[scope]
            # Streams created meanwhile are deleted, too. The last one comes first: a dictionary finds it in O(1).
            if found.reader_groups:
                name, config = next(reversed(found.reader_groups.items()))
                await self._reader_groups.delete(scope, name, config.group_id)
            elif found.streams:
                name = next(reversed(found.streams))
                await self._streams.seal(scope, name)
                await self._streams.delete(scope, name)
            elif found.tables:
                await self._tables.delete(scope, next(reversed(found.tables)))
            else:
                self.delete(scope)
