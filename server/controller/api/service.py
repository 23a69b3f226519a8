"""The controller's gRPC methods, which take a message, call the controller, and return a message.

They are named as in `controller.proto`, in snake case. A method first checks the caller's permission, then calls the
controller; `answers` maps the errors that it raises. Permissions and resources are as in Pravega's
`ControllerServiceImpl`. A method that returns None is answered with SUCCESS.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from segstore.server.controller.api import convert
from segstore.server.controller.api.caller import (
    READ,
    SCOPES,
    UPDATE,
    Caller,
    permission_for_groups,
    permission_to_write,
    scope_resource,
    stream_resource,
    table_resource,
    user_resource,
)
from segstore.server.controller.controller import Controller
from segstore.server.controller.errors import ControllerError, GenerationMismatch, IllegalState, Malformed, NotFound
from segstore.server.controller.state import StreamSegment, TransactionStatus, require
from segstore.wire.controller_api import METHODS
from segstore.wire.controller_api import messages as m
from segstore.wire.endpoint import Endpoint

Served = Callable[[Any, Caller], Awaitable[Any]]
"""A method: (request, caller) → response. Messages are Any, because each method has its own two classes."""

_BUCKETS: Final[Mapping[int, int]] = {
    m.ControllerToBucketMappingRequest.RetentionService: 1,
    m.ControllerToBucketMappingRequest.WatermarkingService: 100,
}
"""Number of buckets of streams per background service, as in Pravega's `Config`."""
_PINGED = {
    None: m.PingTxnStatus.UNKNOWN,
    TransactionStatus.OPEN: m.PingTxnStatus.OK,
    TransactionStatus.COMMITTING: m.PingTxnStatus.COMMITTED,
    TransactionStatus.COMMITTED: m.PingTxnStatus.COMMITTED,
    TransactionStatus.ABORTING: m.PingTxnStatus.ABORTED,
    TransactionStatus.ABORTED: m.PingTxnStatus.ABORTED,
}
"""The answer to a ping, by the transaction's status."""


def serve(controller: Controller, servers: Callable[[], Sequence[Endpoint]]) -> Mapping[str, Served]:
    """Returns the served methods by their names on the wire. `servers` returns the addresses of all controllers."""
    service = _Service(controller, servers)
    return {name: getattr(service, re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()) for name in METHODS}


class _Service:
    def __init__(self, controller: Controller, servers: Callable[[], Sequence[Endpoint]]) -> None:
        self._controller = controller
        self._servers = servers
        self._scopes = controller.scopes
        self._streams = controller.streams
        self._transactions = controller.transactions
        self._tables = controller.tables
        self._groups = controller.reader_groups
        self._to_change_groups = permission_for_groups(controller.config)

    # The cluster --------------------------------------------------------------------------------------------------

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
        return _named(self._streams.endpoint(scope, stream, request.segmentId))

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

    # Scopes -------------------------------------------------------------------------------------------------------

    async def create_scope(self, request: m.ScopeInfo, caller: Caller) -> None:
        caller.needs(SCOPES, UPDATE)
        self._scopes.create(request.scope)

    async def check_scope_exists(self, request: m.ScopeInfo, caller: Caller) -> m.ExistsResponse:
        caller.needs(scope_resource(request.scope), READ)
        return m.ExistsResponse(exists=self._scopes.exists(request.scope))

    async def list_scopes(self, request: m.ScopesRequest, caller: Caller) -> m.ScopesResponse:
        caller.needs(SCOPES, READ)
        token = request.continuationToken.token
        names, token = self._scopes.names(token, lambda name: caller.sees(scope_resource(name)))
        return m.ScopesResponse(scopes=names, continuationToken=convert.page_token(token))

    async def delete_scope(self, request: m.ScopeInfo, caller: Caller) -> None:
        caller.needs(SCOPES, UPDATE)
        self._scopes.delete(request.scope)

    async def delete_scope_recursive(self, request: m.ScopeInfo, caller: Caller) -> None:
        caller.needs(SCOPES, UPDATE)
        await self._scopes.delete_recursively(request.scope)

    # Streams ------------------------------------------------------------------------------------------------------

    async def create_stream(self, request: m.StreamConfig, caller: Caller) -> None:
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        caller.needs(scope_resource(scope), permission_to_write(stream, self._controller.config))
        await self._controller.create_stream(scope, stream, convert.to_stream_config(request))

    async def check_stream_exists(self, request: m.StreamInfo, caller: Caller) -> m.ExistsResponse:
        scope, stream = caller.stream(request, READ)
        return m.ExistsResponse(exists=self._streams.exists(scope, stream))

    async def get_stream_configuration(self, request: m.StreamInfo, caller: Caller) -> m.StreamConfig:
        scope, stream = caller.stream(request, READ)
        return convert.from_stream_config(scope, stream, self._streams.get(scope, stream).config)

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

    # Segments -----------------------------------------------------------------------------------------------------

    async def get_current_segments(self, request: m.StreamInfo, caller: Caller) -> m.SegmentRanges:
        scope, stream = request.scope, request.stream
        token = self._token(request, user_resource(scope, stream), caller)
        return self._ranges(scope, stream, await self._streams.current(scope, stream), token)

    async def get_epoch_segments(self, request: m.GetEpochSegmentsRequest, caller: Caller) -> m.SegmentRanges:
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        token = caller.token(stream_resource(scope, stream), UPDATE)
        return self._ranges(scope, stream, self._streams.at_epoch(scope, stream, request.epoch), token)

    async def get_segments(self, request: m.GetSegmentsRequest, caller: Caller) -> m.SegmentsAtTime:
        """Returns the head of the stream, whatever the requested time, as Pravega's controller does since 0.9."""
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        token = self._token(request.streamInfo, stream_resource(scope, stream), caller)
        head = await self._streams.head(scope, stream)
        return m.SegmentsAtTime(
            segments=[
                m.SegmentsAtTime.SegmentLocation(segmentId=convert.segment_id(scope, stream, identifier), offset=offset)
                for identifier, offset in head.items()
            ],
            delegationToken=token,
        )

    async def get_segments_immediately_following(self, request: m.SegmentId, caller: Caller) -> m.SuccessorResponse:
        scope, stream = caller.stream(request.streamInfo, READ)
        following = await self._streams.following(scope, stream, request.segmentId)
        entry = m.SuccessorResponse.SegmentEntry
        return m.SuccessorResponse(
            segments=[
                entry(segment=convert.segment_range(scope, stream, successor), value=before)
                for successor, before in following.items()
            ]
        )

    get_segments_immediatly_following = get_segments_immediately_following

    async def get_segments_between(self, request: m.StreamCutRange, caller: Caller) -> m.StreamCutRangeResponse:
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        token = caller.token(stream_resource(scope, stream), READ)
        start = getattr(request, "from")  # a keyword of Python
        segments = self._streams.between(scope, stream, start, request.to)
        return m.StreamCutRangeResponse(
            segments=[convert.segment_id(scope, stream, segment.id) for segment in segments], delegationToken=token
        )

    async def is_segment_valid(self, request: m.SegmentId, caller: Caller) -> m.SegmentValidityResponse:
        scope, stream = caller.stream(request.streamInfo, READ)
        return m.SegmentValidityResponse(response=self._streams.is_current(scope, stream, request.segmentId))

    async def is_stream_cut_valid(self, request: m.StreamCut, caller: Caller) -> m.StreamCutValidityResponse:
        scope, stream = caller.stream(request.streamInfo, READ)
        return m.StreamCutValidityResponse(response=self._streams.is_cut_valid(scope, stream, request.cut))

    async def scale(self, request: m.ScaleRequest, caller: Caller) -> m.ScaleResponse:
        scope, stream = caller.stream(request.streamInfo, UPDATE)
        ranges = convert.to_key_ranges(request.newKeyRanges)
        coming, epoch = await self._controller.scaling.start(scope, stream, request.sealedSegments, ranges)
        segments = convert.segment_ranges(scope, stream, coming)
        return m.ScaleResponse(status=m.ScaleResponse.STARTED, segments=segments, epoch=epoch)

    async def check_scale(self, request: m.ScaleStatusRequest, caller: Caller) -> m.ScaleStatusResponse:
        scope, stream = caller.stream(request.streamInfo, READ)
        status = self._controller.scaling.status(scope, stream, request.epoch)
        return m.ScaleStatusResponse(status=m.ScaleStatusResponse.ScaleStatus.Value(status))

    def _token(self, request: m.StreamInfo, resource: str, caller: Caller) -> str:
        """Returns a token for a stream's segments; "" for a caller that asks for no access, and needs only READ."""
        if request.accessOperation == m.StreamInfo.NONE:
            caller.needs(resource, READ)
            return ""
        return caller.token(resource, UPDATE)

    def _ranges(self, scope: str, stream: str, segments: Sequence[StreamSegment], token: str) -> m.SegmentRanges:
        ranges = convert.segment_ranges(scope, stream, segments)
        return m.SegmentRanges(segmentRanges=ranges, delegationToken=token)

    # Transactions -------------------------------------------------------------------------------------------------

    async def create_transaction(self, request: m.CreateTxnRequest, caller: Caller) -> m.CreateTxnResponse:
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        token = caller.token(stream_resource(scope, stream), UPDATE)
        identifier, segments = await self._transactions.open(scope, stream, request.lease)
        return m.CreateTxnResponse(
            txnId=convert.from_transaction_id(identifier),
            activeSegments=convert.segment_ranges(scope, stream, segments),
            delegationToken=token,
        )

    async def ping_transaction(self, request: m.PingTxnRequest, caller: Caller) -> m.PingTxnStatus:
        scope, stream = caller.stream(request.streamInfo, UPDATE)
        status = self._transactions.ping(scope, stream, convert.to_transaction_id(request.txnId), request.lease)
        return m.PingTxnStatus(status=_PINGED[status])

    async def commit_transaction(self, request: m.TxnRequest, caller: Caller) -> None:
        scope, stream = caller.stream(request.streamInfo, UPDATE)
        identifier = convert.to_transaction_id(request.txnId)
        await self._transactions.commit(scope, stream, identifier, request.writerId, request.timestamp)

    async def abort_transaction(self, request: m.TxnRequest, caller: Caller) -> None:
        scope, stream = caller.stream(request.streamInfo, UPDATE)
        await self._transactions.abort(scope, stream, convert.to_transaction_id(request.txnId))

    async def check_transaction_state(self, request: m.TxnRequest, caller: Caller) -> m.TxnState:
        scope, stream = caller.stream(request.streamInfo, READ)
        status = self._transactions.status(scope, stream, convert.to_transaction_id(request.txnId))
        return m.TxnState(state=m.TxnState.UNKNOWN if status is None else m.TxnState.State.Value(status.value))

    async def list_completed_transactions(
        self, request: m.ListCompletedTxnRequest, caller: Caller
    ) -> m.ListCompletedTxnResponse:
        """Returns an empty list for an unknown stream."""
        scope, stream = caller.stream(request.streamInfo, READ)
        completed = self._transactions.completed(scope, stream) if self._streams.exists(scope, stream) else {}
        return m.ListCompletedTxnResponse(
            response=[
                m.TxnResponse(
                    txnId=convert.from_transaction_id(identifier), status=m.TxnResponse.Status.Value(status.value)
                )
                for identifier, status in completed.items()
            ]
        )

    # Reader groups ------------------------------------------------------------------------------------------------

    async def create_reader_group(
        self, request: m.ReaderGroupConfiguration, caller: Caller
    ) -> m.CreateReaderGroupResponse:
        scope, name = request.scope, request.readerGroupName
        caller.needs(scope_resource(scope), self._to_change_groups)
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
        caller.needs(scope_resource(request.scope), self._to_change_groups)
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
        caller.needs(scope_resource(request.scope), self._to_change_groups)
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

    # Key-value tables ---------------------------------------------------------------------------------------------

    async def create_key_value_table(self, request: m.KeyValueTableConfig, caller: Caller) -> None:
        caller.needs(scope_resource(request.scope), UPDATE)
        await self._tables.create(request.scope, request.kvtName, convert.to_table(request))

    async def get_key_value_table_configuration(
        self, request: m.KeyValueTableInfo, caller: Caller
    ) -> m.KeyValueTableConfigResponse:
        scope, name = request.scope, request.kvtName
        caller.needs(table_resource(scope, name), READ)
        return m.KeyValueTableConfigResponse(
            config=convert.from_table(scope, name, self._controller.state.table(scope, name).config),
            status=m.KeyValueTableConfigResponse.SUCCESS,
        )

    async def get_current_segments_key_value_table(
        self, request: m.KeyValueTableInfo, caller: Caller
    ) -> m.SegmentRanges:
        scope, name = request.scope, request.kvtName
        token = caller.token(table_resource(scope, name), UPDATE)
        return self._ranges(scope, name, self._controller.state.table(scope, name).epoch.segments, token)

    async def list_key_value_tables_in_scope(
        self, request: m.KVTablesInScopeRequest, caller: Caller
    ) -> m.KVTablesInScopeResponse:
        scope = request.scope.scope
        caller.needs(scope_resource(scope), READ)
        names, token = self._tables.names(
            scope, request.continuationToken.token, lambda name: caller.sees(table_resource(scope, name))
        )
        return m.KVTablesInScopeResponse(
            kvtables=[m.KeyValueTableInfo(scope=scope, kvtName=name) for name in names],
            continuationToken=convert.page_token(token),
            status=m.KVTablesInScopeResponse.SUCCESS,
        )

    async def delete_key_value_table(self, request: m.KeyValueTableInfo, caller: Caller) -> None:
        caller.needs(table_resource(request.scope, request.kvtName), UPDATE)
        await self._tables.delete(request.scope, request.kvtName)


def _named(endpoint: Endpoint) -> m.NodeUri:
    return m.NodeUri(endpoint=endpoint.named_host, port=endpoint.port)
