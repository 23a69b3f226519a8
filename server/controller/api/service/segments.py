"""gRPC methods about a stream's segments: current, by epoch, successors, between stream cuts; and scaling."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from segstore.server.controller.api import convert
from segstore.server.controller.api.resources import stream_resource, user_resource
from segstore.server.controller.api.service.caller import READ, UPDATE, Caller, Service
from segstore.server.controller.errors import Malformed
from segstore.server.controller.state import KeyRange
from segstore.wire.controller_api import messages as m


class SegmentService(Service):
    """Methods about segments. A caller that asks for no access (`NONE`) needs only to read, and gets no token."""

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
        return m.SuccessorResponse(
            segments=[
                m.SuccessorResponse.SegmentEntry(segment=convert.segment_range(scope, stream, each), value=before)
                for each, before in following.items()
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
        ranges = [(newkeyrange.start, newkeyrange.end) for newkeyrange in request.newKeyRanges]
        if len({start for start, _ in ranges}) < len(ranges):
            raise Malformed("two of the new key ranges have the same start")
        coming, left = await self._controller.scaling.start(
            scope, stream, request.sealedSegments, _in_numbering_order(ranges)
        )
        return m.ScaleResponse(
            status=m.ScaleResponse.STARTED, segments=convert.segment_ranges(scope, stream, coming), epoch=left
        )

    async def check_scale(self, request: m.ScaleStatusRequest, caller: Caller) -> m.ScaleStatusResponse:
        scope, stream = caller.stream(request.streamInfo, READ)
        status = self._controller.scaling.status(scope, stream, request.epoch)
        return m.ScaleStatusResponse(status=m.ScaleStatusResponse.ScaleStatus.Value(status))

    def _token(self, request: m.StreamInfo, resource: str, caller: Caller) -> str:
        if request.accessOperation == m.StreamInfo.NONE:
            caller.needs(resource, READ)
            return ""
        return caller.token(resource, UPDATE)


def _in_numbering_order(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Returns the ranges in the order in which new segments are numbered.

    It is the order of a Java hash map keyed by their starts: by bucket, then by insertion. Pravega's controller uses
    such a map, so the same ranges get the same numbers here.
    """
    buckets = 16
    while len(ranges) > buckets * 3 // 4:
        buckets *= 2
    return sorted(ranges, key=lambda each: _spread_hash(each[0]) & (buckets - 1))


def _spread_hash(value: float) -> int:
    bits = int.from_bytes(struct.pack(">d", value))
    folded = (bits >> 32 ^ bits) & 0xFFFFFFFF
    return folded ^ folded >> 16
