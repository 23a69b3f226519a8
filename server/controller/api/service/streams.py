"""gRPC methods of streams, and writers' timestamps."""

from __future__ import annotations

from collections.abc import Callable

from segstore.server.controller.api import convert
from segstore.server.controller.api.resources import permission_to_write, scope_resource, stream_resource, user_resource
from segstore.server.controller.api.service.caller import READ, UPDATE, Caller, Service
from segstore.server.controller.errors import ControllerError
from segstore.server.controller.state import require
from segstore.wire.controller_api import messages as m


class StreamService(Service):
    async def create_stream(self, request: m.StreamConfig, caller: Caller) -> None:
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        caller.needs(scope_resource(scope), permission_to_write(stream, self._controller.config))
        await self._controller.create_stream(scope, stream, convert.to_stream_config(request))

    async def check_stream_exists(self, request: m.StreamInfo, caller: Caller) -> m.ExistsResponse:
        scope, stream = caller.stream(request, READ)
        return m.ExistsResponse(exists=self._streams.exists(scope, stream))

    async def get_stream_configuration(self, request: m.StreamInfo, caller: Caller) -> m.StreamConfig:
        scope, stream = caller.stream(request, READ)
        config = self._streams.get(scope, stream).config
        return convert.from_stream_config(scope, stream, config)

    async def update_stream(self, request: m.StreamConfig, caller: Caller) -> None:
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        caller.needs(user_resource(scope, stream), UPDATE)
        await self._controller.update_stream(scope, stream, convert.to_stream_config(request))

    async def truncate_stream(self, request: m.StreamCut, caller: Caller) -> None:
        scope, stream = caller.stream(request.streamInfo, UPDATE)
        await self._streams.truncate(scope, stream, request.cut)

    async def seal_stream(self, request: m.StreamInfo, caller: Caller) -> None:
        scope, stream = caller.stream(request, UPDATE)
        await self._streams.seal(scope, stream)

    async def delete_stream(self, request: m.StreamInfo, caller: Caller) -> None:
        scope, stream = caller.stream(request, UPDATE)
        await self._streams.delete(scope, stream)

    async def list_streams_in_scope(self, request: m.StreamsInScopeRequest, caller: Caller) -> m.StreamsInScopeResponse:
        return self._page(request, caller, self._streams.names)

    async def list_streams_in_scope_for_tag(
        self, request: m.StreamsInScopeWithTagRequest, caller: Caller
    ) -> m.StreamsInScopeResponse:
        tagged, tag = self._streams.tagged, request.tag
        require(scope=request.scope.scope, tag=tag)
        return self._page(request, caller, lambda scope, token, sees: tagged(scope, token, tag, sees))

    def _page(
        self,
        request: m.StreamsInScopeRequest | m.StreamsInScopeWithTagRequest,
        caller: Caller,
        listing: Callable[[str, str, Callable[[str], bool]], tuple[list[str], str]],
    ) -> m.StreamsInScopeResponse:
        scope = request.scope.scope
        caller.needs(scope_resource(scope), READ)
        names, token = listing(
            scope, request.continuationToken.token, lambda name: caller.sees(stream_resource(scope, name))
        )
        return m.StreamsInScopeResponse(
            streams=[convert.stream_info(scope, name) for name in names],
            continuationToken=convert.page_token(token),
            status=m.StreamsInScopeResponse.SUCCESS,
        )

    async def note_timestamp_from_writer(self, request: m.TimestampFromWriter, caller: Caller) -> m.TimestampResponse:
        scope, stream = caller.stream(request.position.streamInfo, UPDATE)
        self._streams.get(scope, stream)
        if not request.writer:
            raise ControllerError(f"a timestamp for stream {scope}/{stream} has no writer name")
        result = self._controller.writers.note(scope, stream, request.writer, request.timestamp, request.position.cut)
        return m.TimestampResponse(result=m.TimestampResponse.Status.Value(result))

    async def remove_writer(self, request: m.RemoveWriterRequest, caller: Caller) -> m.RemoveWriterResponse | None:
        scope, stream = caller.stream(request.stream, UPDATE)
        self._streams.get(scope, stream)
        if not request.writer:
            return m.RemoveWriterResponse(result=m.RemoveWriterResponse.INTERNAL_ERROR)
        self._controller.writers.remove(scope, stream, request.writer)
        return None
