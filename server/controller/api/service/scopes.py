"""gRPC methods of scopes."""

from __future__ import annotations

from segstore.server.controller.api import convert
from segstore.server.controller.api.resources import SCOPES, scope_resource
from segstore.server.controller.api.service.caller import READ, UPDATE, Caller, Service
from segstore.wire.controller_api import messages as m


class ScopeService(Service):
    async def create_scope(self, request: m.ScopeInfo, caller: Caller) -> None:
        caller.needs(SCOPES, UPDATE)
        self._controller.scopes.create(request.scope)

    async def check_scope_exists(self, request: m.ScopeInfo, caller: Caller) -> m.ExistsResponse:
        caller.needs(scope_resource(request.scope), READ)
        return m.ExistsResponse(exists=self._controller.scopes.exists(request.scope))

    async def list_scopes(self, request: m.ScopesRequest, caller: Caller) -> m.ScopesResponse:
        caller.needs(SCOPES, READ)
        names, token = self._controller.scopes.names(
            request.continuationToken.token, lambda name: caller.sees(scope_resource(name))
        )
        return m.ScopesResponse(scopes=names, continuationToken=convert.page_token(token))

    async def delete_scope(self, request: m.ScopeInfo, caller: Caller) -> None:
        caller.needs(SCOPES, UPDATE)
        self._controller.scopes.delete(request.scope)

    async def delete_scope_recursive(self, request: m.ScopeInfo, caller: Caller) -> None:
        caller.needs(SCOPES, UPDATE)
        await self._controller.scopes.delete_recursively(request.scope)
