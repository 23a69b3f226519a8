"""gRPC methods of reader groups and subscribers."""

from __future__ import annotations

from segstore.server.controller.api import convert
from segstore.server.controller.api.resources import permission_for_groups, scope_resource
from segstore.server.controller.api.service.caller import READ, UPDATE, Caller, Service
from segstore.server.controller.controller import Controller
from segstore.server.controller.errors import GenerationMismatch, IllegalState, NotFound
from segstore.wire.controller_api import messages as m


class ReaderGroupService(Service):
    """Methods about reader groups. If so configured, READ on a scope is enough to create reader groups in it."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._groups = controller.reader_groups
        self._to_change = permission_for_groups(controller.config)

    async def create_reader_group(
        self, request: m.ReaderGroupConfiguration, caller: Caller
    ) -> m.CreateReaderGroupResponse:
        scope, name = request.scope, request.readerGroupName
        caller.needs(scope_resource(scope), self._to_change)
        config = await self._groups.create(scope, name, convert.to_reader_group(request))
        return m.CreateReaderGroupResponse(
            status=m.CreateReaderGroupResponse.SUCCESS, config=convert.from_reader_group(scope, name, config)
        )

    async def get_reader_group_config(self, request: m.ReaderGroupInfo, caller: Caller) -> m.ReaderGroupConfigResponse:
        scope, name = request.scope, request.readerGroup
        caller.needs(scope_resource(scope), READ)
        try:
            config = self._groups.get(scope, name)
        except NotFound as error:
            if error.kind == "scope":
                raise
            return m.ReaderGroupConfigResponse(
                status=m.ReaderGroupConfigResponse.RG_NOT_FOUND, config=m.ReaderGroupConfiguration()
            )
        return m.ReaderGroupConfigResponse(
            status=m.ReaderGroupConfigResponse.SUCCESS, config=convert.from_reader_group(scope, name, config)
        )

    async def update_reader_group(
        self, request: m.ReaderGroupConfiguration, caller: Caller
    ) -> m.UpdateReaderGroupResponse:
        """A refusal returns the generation in the request; a missing scope is an error instead."""
        caller.needs(scope_resource(request.scope), self._to_change)
        config = convert.to_reader_group(request)
        try:
            generation = self._groups.update(request.scope, request.readerGroupName, config)
        except NotFound as error:
            if error.kind == "scope":
                raise
            status, generation = m.UpdateReaderGroupResponse.RG_NOT_FOUND, request.generation
        except (GenerationMismatch, IllegalState):
            status, generation = m.UpdateReaderGroupResponse.INVALID_CONFIG, request.generation
        else:
            status = m.UpdateReaderGroupResponse.SUCCESS
        return m.UpdateReaderGroupResponse(status=status, generation=generation)

    async def delete_reader_group(self, request: m.ReaderGroupInfo, caller: Caller) -> None:
        caller.needs(scope_resource(request.scope), self._to_change)
        await self._groups.delete(request.scope, request.readerGroup, request.readerGroupId)

    async def list_subscribers(self, request: m.StreamInfo, caller: Caller) -> m.SubscribersResponse:
        scope, stream = caller.stream(request, UPDATE)
        return m.SubscribersResponse(
            subscribers=self._groups.subscribers(scope, stream), status=m.SubscribersResponse.SUCCESS
        )

    async def update_subscriber_stream_cut(self, request: m.SubscriberStreamCut, caller: Caller) -> None:
        scope, stream = caller.stream(request.streamCut.streamInfo, UPDATE)
        self._groups.move(
            scope, stream, request.subscriber, request.readerGroupId, request.generation, request.streamCut.cut
        )
