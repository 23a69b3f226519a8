"""gRPC methods about the cluster: controllers, segment owners, delegation tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from segstore.server.controller.api.resources import SCOPES, permission_to_write, stream_resource, user_resource
from segstore.server.controller.api.service.caller import READ, UPDATE, Caller, Service
from segstore.server.controller.controller import Controller
from segstore.server.controller.errors import Malformed
from segstore.wire.controller_api import messages as m
from segstore.wire.endpoint import Endpoint

_BUCKETS: Final[Mapping[int, int]] = {
    m.ControllerToBucketMappingRequest.RetentionService: 1,
    m.ControllerToBucketMappingRequest.WatermarkingService: 100,
}
"""Number of buckets of streams per background service, as in Pravega's `Config`."""


def _named(endpoint: Endpoint) -> m.NodeUri:
    return m.NodeUri(endpoint=endpoint.named_host, port=endpoint.port)


class ClusterService(Service):
    def __init__(self, controller: Controller, servers: Callable[[], Sequence[Endpoint]]) -> None:
        super().__init__(controller)
        self._servers = servers

    async def get_controller_server_list(self, request: m.ServerRequest, caller: Caller) -> m.ServerResponse:
        return m.ServerResponse(nodeURI=[_named(server) for server in self._servers()])

    async def get_controller_to_bucket_mapping(
        self, request: m.ControllerToBucketMappingRequest, caller: Caller
    ) -> m.ControllerToBucketMappingResponse:
        """Returns the buckets of streams of each controller; buckets are distributed round robin."""
        caller.needs(SCOPES, UPDATE)
        count = _BUCKETS.get(request.serviceType)
        if count is None:
            raise Malformed(f"there is no service {request.serviceType}")
        names = [f"{host}:{port}" for host, port in self._servers()]
        return m.ControllerToBucketMappingResponse(
            mapping={name: m.BucketIds(id=range(at, count, len(names))) for at, name in enumerate(names)}
        )

    async def get_uri(self, request: m.SegmentId, caller: Caller) -> m.NodeUri:
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        caller.needs(user_resource(scope, stream), READ)
        return _named(self._controller.streams.endpoint(scope, stream, request.segmentId))

    async def get_delegation_token(self, request: m.StreamInfo, caller: Caller) -> m.DelegationToken:
        """Returns a token for the requested access or, if unspecified, for reading and writing.

        Names are not checked if there are no tokens.
        """
        if caller.is_free:
            return m.DelegationToken()
        resource = stream_resource(request.scope, request.stream)
        asked = request.accessOperation
        if asked == m.StreamInfo.UNSPECIFIED:
            needed = granted = UPDATE
        elif asked in (m.StreamInfo.WRITE, m.StreamInfo.READ_WRITE):
            needed, granted = permission_to_write(request.stream, self._controller.config), UPDATE
        else:
            needed = granted = READ
        caller.needs(user_resource(request.scope, request.stream), needed)
        return m.DelegationToken(delegationToken=caller.granted(resource, granted))
