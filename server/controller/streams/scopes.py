"""Scopes, and the key-value tables in them.

A scope is deleted when it is empty, or with its contents. A table's partitions are table segments, created and deleted
with the table. Invariant: a table's partitions never change; a table created again under an old name numbers its
partitions after the old partitions. Follows `Scope`, `DeleteScopeTask`, `TableMetadataTasks`, `ControllerService`.
"""

from __future__ import annotations

from collections.abc import Callable

from segstore.server.controller.errors import AlreadyExists, InvalidArgument, InvalidName, ScopeNotEmpty
from segstore.server.controller.policies import TableConfig
from segstore.server.controller.state import TABLE_SUFFIX, Core, Table, history, require
from segstore.server.controller.state import operations as op
from segstore.server.controller.streams.reader_groups import ReaderGroups
from segstore.server.controller.streams.streams import Streams, page
from segstore.wire.names import is_stream_name, is_user_stream_name


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

    def delete(self, name: str) -> None:
        """Deletes an empty scope."""
        scope = self._core.state.scope(name)
        held = len(scope.streams) + len(scope.reader_groups) + len(scope.tables)
        if held:
            raise ScopeNotEmpty(name, held)
        self._core.record(op.ScopeDeleted(name))

    async def delete_recursively(self, name: str) -> None:
        """Deletes a scope and its contents; no-op if it does not exist."""
        require(scope=name)
        state = self._core.state
        while name in state.scopes:
            scope = state.scopes[name]
            # Streams created meanwhile are deleted, too. The last one comes first: a dictionary finds it in O(1).
            if scope.reader_groups:
                child, config = next(reversed(scope.reader_groups.items()))
                await self._reader_groups.delete(name, child, config.group_id)
            elif scope.streams:
                child = next(reversed(scope.streams))
                await self._streams.seal(name, child)
                await self._streams.delete(name, child)
            elif scope.tables:
                await self._tables.delete(name, next(reversed(scope.tables)))
            else:
                self.delete(name)


class Tables:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def create(self, scope: str, name: str, config: TableConfig) -> None:
        """Creates a table with its partitions, whose keys have a fixed length."""
        self._core.check_segments("partitions of a table", config.partitions)
        if (
            config.partitions < 1
            or config.primary_key_bytes < 1
            or config.secondary_key_bytes < 0
            or config.rollover_bytes < 0
        ):
            raise InvalidArgument(f"a key-value table cannot have the configuration {config}")
        if not is_user_stream_name(name):
            raise InvalidName("key-value table", name)
        core = self._core
        async with core.lock("table", scope, name):
            if name in core.state.scope(scope).tables:
                raise AlreadyExists("key-value table", f"{scope}/{name}")
            number = core.state.numbers.get(f"{scope}/{name}{TABLE_SUFFIX}", 0)
            now_ms = core.now_ms()
            table = Table(scope, name, config, now_ms, history.first_epoch(config.partitions, number, now_ms))
            for segment in table.epoch.segments:
                await core.segments.create_table(table.segment_name(segment), config.key_bytes, config.rollover_bytes)
            core.state.scope(scope)  # it may have been deleted while the store worked
            core.record(op.TableCreated(scope, name, config, number, now_ms))

    def names(self, scope: str, token: str, accepts: Callable[[str], bool] = bool) -> tuple[list[str], str]:
        """Returns a page of the names of a scope's tables that are accepted."""
        return page(self._core.config.page_size, self._core.state.scope(scope).tables, token, accepts=accepts)

    async def delete(self, scope: str, name: str) -> None:
        core = self._core
        async with core.lock("table", scope, name):
            table = core.state.table(scope, name)
            for segment in table.epoch.segments:
                await core.segments.delete_table(table.segment_name(segment))
            core.record(op.TableDeleted(scope, name))
