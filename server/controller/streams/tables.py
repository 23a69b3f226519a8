"""Key-value tables: partitions are table segments, created and deleted with the table.

Invariant: a table's partitions never change; a table created again under an old name numbers its partitions after the
old partitions. Follows `TableMetadataTasks` and `ControllerService`.
"""

from __future__ import annotations

from collections.abc import Callable

from segstore.server.controller.errors import AlreadyExists, InvalidArgument, InvalidName
from segstore.server.controller.policies import TableConfig
from segstore.server.controller.state import TABLE_SUFFIX, Core, StreamSegment, Table, history
from segstore.server.controller.state import operations as op
from segstore.server.controller.streams.streams import page
from segstore.wire.names import is_user_stream_name


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
            key_bytes = config.primary_key_bytes + config.secondary_key_bytes
            for segment in table.epoch.segments:
                await core.segments.create_table(table.segment_name(segment), key_bytes, config.rollover_bytes)
            core.state.scope(scope)  # it may have been deleted while the store worked
            core.record(op.TableCreated(scope, name, config, number, now_ms))

    def get(self, scope: str, name: str) -> TableConfig:
        return self._core.state.table(scope, name).config

    def partitions(self, scope: str, name: str) -> list[StreamSegment]:
        """Returns the table's segments, by key."""
        return list(self._core.state.table(scope, name).epoch.segments)

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
