"""gRPC methods of scopes."""

from __future__ import annotations

from segstore.server.controller.api import convert
from segstore.server.controller.api.resources import SCOPES, scope_resource
from segstore.server.controller.api.service.caller import READ, UPDATE, Caller
from segstore.server.controller.controller import Controller
from segstore.wire.controller_api import messages as m


class ScopeService:
    """Methods about scopes."""

    def __init__(self, controller: Controller) -> None:
        self._scopes = controller.scopes

    async def create_scope(self, request: m.ScopeInfo, caller: Caller) -> m.CreateScopeStatus:
        caller.needs(SCOPES, UPDATE)
        self._scopes.create(request.scope)
        return m.CreateScopeStatus(status=m.CreateScopeStatus.SUCCESS)

    async def check_scope_exists(self, request: m.ScopeInfo, caller: Caller) -> m.ExistsResponse:
        caller.needs(scope_resource(request.scope), READ)
        return m.ExistsResponse(exists=self._scopes.exists(request.scope))

    async def list_scopes(self, request: m.ScopesRequest, caller: Caller) -> m.ScopesResponse:
        caller.needs(SCOPES, READ)
        names, token = await caller.page(self._scopes.names, request.continuationToken.token, scope_resource)
        return m.ScopesResponse(scopes=names, continuationToken=convert.page_token(token))

    async def delete_scope(self, request: m.ScopeInfo, caller: Caller) -> m.DeleteScopeStatus:
        caller.needs(SCOPES, UPDATE)
        self._scopes.delete(request.scope)
        return m.DeleteScopeStatus(status=m.DeleteScopeStatus.SUCCESS)

    async def delete_scope_recursive(self, request: m.ScopeInfo, caller: Caller) -> m.DeleteScopeStatus:
        caller.needs(SCOPES, UPDATE)
        await self._scopes.delete_recursively(request.scope)
        return m.DeleteScopeStatus(status=m.DeleteScopeStatus.SUCCESS)
