"""gRPC methods of key-value tables."""

from __future__ import annotations

from segstore.server.controller.api import convert
from segstore.server.controller.api.resources import scope_resource, table_resource
from segstore.server.controller.api.service.caller import READ, UPDATE, Caller, Service
from segstore.wire.controller_api import messages as m


class TableService(Service):
    async def create_key_value_table(self, request: m.KeyValueTableConfig, caller: Caller) -> None:
        caller.needs(scope_resource(request.scope), UPDATE)
        await self._controller.tables.create(request.scope, request.kvtName, convert.to_table(request))

    async def get_key_value_table_configuration(
        self, request: m.KeyValueTableInfo, caller: Caller
    ) -> m.KeyValueTableConfigResponse:
        scope, name = request.scope, request.kvtName
        caller.needs(table_resource(scope, name), READ)
        return m.KeyValueTableConfigResponse(
            config=convert.from_table(scope, name, self._controller.tables.get(scope, name)),
            status=m.KeyValueTableConfigResponse.SUCCESS,
        )

    async def get_current_segments_key_value_table(
        self, request: m.KeyValueTableInfo, caller: Caller
    ) -> m.SegmentRanges:
        scope, name = request.scope, request.kvtName
        token = caller.token(table_resource(scope, name), UPDATE)
        return self._ranges(scope, name, self._controller.tables.partitions(scope, name), token)

    async def list_key_value_tables_in_scope(
        self, request: m.KVTablesInScopeRequest, caller: Caller
    ) -> m.KVTablesInScopeResponse:
        scope = request.scope.scope
        caller.needs(scope_resource(scope), READ)
        names, token = self._controller.tables.names(
            scope, request.continuationToken.token, lambda name: caller.sees(table_resource(scope, name))
        )
        return m.KVTablesInScopeResponse(
            kvtables=[m.KeyValueTableInfo(scope=scope, kvtName=name) for name in names],
            continuationToken=convert.page_token(token),
            status=m.KVTablesInScopeResponse.SUCCESS,
        )

    async def delete_key_value_table(self, request: m.KeyValueTableInfo, caller: Caller) -> None:
        caller.needs(table_resource(request.scope, request.kvtName), UPDATE)
        await self._controller.tables.delete(request.scope, request.kvtName)
