"""Which controllers there are, which store owns a segment, and tokens for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from segstore.server.controller.controller import Controller
from segstore.server.controller.resources import permission_to_write, stream_resource, user_resource
from segstore.server.controller.segment_admin import Endpoint
from segstore.server.controller.service.caller import READ, UPDATE, Caller
from segstore.wire.controller_api import messages as m

__all__ = ["ClusterService"]


class ClusterService:
    """Methods about the cluster."""

    def __init__(self, controller: Controller, servers: Callable[[], Sequence[Endpoint]]) -> None:
        self._controller = controller
        self._servers = servers

    async def get_controller_server_list(self, request: m.ServerRequest, caller: Caller) -> m.ServerResponse:
        return m.ServerResponse(nodeURI=[m.NodeUri(endpoint=host, port=port) for host, port in self._servers()])

    async def get_uri(self, request: m.SegmentId, caller: Caller) -> m.NodeUri:
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        caller.needs(user_resource(scope, stream), READ)
        host, port = self._controller.streams.endpoint(scope, stream, request.segmentId)
        return m.NodeUri(endpoint=host, port=port)

    async def get_delegation_token(self, request: m.StreamInfo, caller: Caller) -> m.DelegationToken:
        """For what the caller says that he wants to do, or, if he says nothing, for reading and writing."""
        resource = stream_resource(request.scope, request.stream)
        asked = request.accessOperation
        if asked == m.StreamInfo.UNSPECIFIED:
            needed = granted = UPDATE
        elif asked in (m.StreamInfo.WRITE, m.StreamInfo.READ_WRITE):
            needed, granted = permission_to_write(request.stream), UPDATE
        else:
            needed = granted = READ
        caller.needs(user_resource(request.scope, request.stream), needed)
        return m.DelegationToken(delegationToken=caller.granted(resource, granted))
