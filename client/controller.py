"""The controller, as a client uses it: scopes and streams, the segments of a stream, where they live, their tokens.

Each method is one call (lists: one a page); names and ids become `SegmentRange`s here and protobuf stays inside.
Follows `ControllerImpl` (Pravega's client) for what is sent and how answers are read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from random import Random
from typing import Any, Literal, NamedTuple

from segstore.client.auth import TokenCache
from segstore.client.controller_channels import ControllerChannels
from segstore.client.errors import NoSuchStream, RequestRejected, Retriable, RetriesExhausted, StreamSealed
from segstore.client.pool import Endpoint
from segstore.client.retry import Backoff
from segstore.client.routing import SegmentRange
from segstore.wire.controller_api import messages as m
from segstore.wire.names import SegmentName, segment_name, split_segment_id

__all__ = ["Access", "Controller", "ControllerLocations", "Successor", "name_of"]

Access = Literal["READ", "WRITE", "READ_WRITE"]


class Successor(NamedTuple):
    """A segment that follows others, and the ids of those."""

    segment: SegmentRange
    predecessors: tuple[int, ...]


def _range(each: Any) -> SegmentRange:
    info = each.segmentId.streamInfo
    number = each.segmentId.segmentId
    return SegmentRange(number, name_of(info.scope, info.stream, number), each.minKey, each.maxKey)


def name_of(scope: str, stream: str, segment_id: int) -> str:
    """The qualified name of a segment."""
    epoch, number = split_segment_id(segment_id)
    return segment_name(scope, stream, number, epoch)


class Controller:
    """Calls to the controller. Errors are those of `ControllerChannels.call`, and RequestRejected for a status."""

    def __init__(self, channels: ControllerChannels) -> None:
        self._call = channels.call

    # --- scopes and streams -----------------------------------------------------------------------------------------

    async def create_scope(self, scope: str) -> bool:
        """Returns whether it was created; False if it exists."""
        answer = await self._call("createScope", m.ScopeInfo(scope=scope))
        return _created(answer, "SCOPE_EXISTS", f"scope {scope}")

    async def delete_scope(self, scope: str) -> bool:
        """Returns whether it was deleted; False if there is none."""
        answer = await self._call("deleteScope", m.ScopeInfo(scope=scope))
        return _created(answer, "SCOPE_NOT_FOUND", f"scope {scope}")

    async def list_scopes(self) -> AsyncIterator[str]:
        """All scopes, page by page."""
        token = ""
        while True:
            page = await self._call("listScopes", m.ScopesRequest(continuationToken=m.ContinuationToken(token=token)))
            for name in page.scopes:
                yield name
            if not page.scopes:
                return
            token = page.continuationToken.token

    async def list_streams(self, scope: str) -> AsyncIterator[str]:
        """All streams of a scope, page by page."""
        token = ""
        while True:
            request = m.StreamsInScopeRequest(
                scope=m.ScopeInfo(scope=scope), continuationToken=m.ContinuationToken(token=token)
            )
            page = await self._call("listStreamsInScope", request)
            _succeeded(page, f"scope {scope}")
            for each in page.streams:
                yield each.stream
            if not page.streams:
                return
            token = page.continuationToken.token

    async def create_stream(self, scope: str, stream: str, *, segments: int = 1) -> bool:
        """A stream with a fixed number of segments; returns whether it was created, False if it exists."""
        config = m.StreamConfig(
            streamInfo=m.StreamInfo(scope=scope, stream=stream),
            scalingPolicy=m.ScalingPolicy(scaleType=m.ScalingPolicy.FIXED_NUM_SEGMENTS, minNumSegments=segments),
        )
        return _created(await self._call("createStream", config), "STREAM_EXISTS", f"stream {scope}/{stream}")

    async def seal_stream(self, scope: str, stream: str) -> None:
        _succeeded(await self._call("sealStream", _info(scope, stream)), f"stream {scope}/{stream}")

    async def delete_stream(self, scope: str, stream: str) -> None:
        _succeeded(await self._call("deleteStream", _info(scope, stream)), f"stream {scope}/{stream}")

    async def truncate_stream(self, scope: str, stream: str, cut: Mapping[int, int]) -> None:
        """cut: segment id → offset; what lies before is gone."""
        request = m.StreamCut(streamInfo=_info(scope, stream), cut=cut)
        _succeeded(await self._call("truncateStream", request), f"stream {scope}/{stream}")

    async def scale(
        self, scope: str, stream: str, sealed: Sequence[int], ranges: Sequence[tuple[float, float]]
    ) -> list[SegmentRange]:
        """Seals segments and puts new ones over the same range in their place; returns the new ones.

        The scale may still be under way when this returns.
        """
        request = m.ScaleRequest(
            streamInfo=_info(scope, stream),
            sealedSegments=sealed,
            newKeyRanges=[m.ScaleRequest.KeyRangeEntry(start=low, end=high) for low, high in ranges],
            scaleTimestamp=int(time.time() * 1000),
        )
        answer = await self._call("scale", request)
        _succeeded(answer, f"stream {scope}/{stream}", "STARTED")
        return [_range(each) for each in answer.segments]

    # --- segments ---------------------------------------------------------------------------------------------------

    async def current_segments(self, scope: str, stream: str) -> list[SegmentRange]:
        """The segments that take events, [] for a sealed stream."""
        answer = await self._call("getCurrentSegments", _info(scope, stream))
        return [_range(each) for each in answer.segmentRanges]

    async def head(self, scope: str, stream: str) -> dict[int, int]:
        """Where the stream begins: segment id → offset."""
        answer = await self._call("getSegments", m.GetSegmentsRequest(streamInfo=_info(scope, stream), timestamp=0))
        return {each.segmentId.segmentId: each.offset for each in answer.segments}

    async def successors(self, scope: str, stream: str, segment_id: int) -> list[Successor]:
        """What follows a segment, [] if nothing does (yet)."""
        request = m.SegmentId(streamInfo=_info(scope, stream), segmentId=segment_id)
        answer = await self._call("getSegmentsImmediatelyFollowing", request)
        return [Successor(_range(each.segment), tuple(each.value)) for each in answer.segments]

    async def following(
        self, scope: str, stream: str, segment_id: int, retry: Backoff, random: Random
    ) -> list[Successor]:
        """The successors of a segment that has ended, [] for one of a sealed stream.

        A scale may not have come as far yet: then it asks again. Raises RetriesExhausted.
        """
        failures = 0
        while True:
            last: Retriable | None = None
            try:
                found = await self.successors(scope, stream, segment_id)
                if found or not await self.current_segments(scope, stream):
                    return found
            except Retriable as problem:
                last = problem
            failures += 1
            if retry.exhausted(failures):
                raise RetriesExhausted(
                    f"no successors of {name_of(scope, stream, segment_id)} after {failures} attempts",
                    segment=name_of(scope, stream, segment_id),
                    stream=f"{scope}/{stream}",
                    actual=failures,
                ) from last
            await asyncio.sleep(retry.delay_ms(failures, random) / 1000)

    async def endpoint_of(self, scope: str, stream: str, segment_id: int) -> Endpoint:
        """The store that owns a segment."""
        answer = await self._call("getURI", m.SegmentId(streamInfo=_info(scope, stream), segmentId=segment_id))
        return Endpoint(answer.endpoint, answer.port)

    async def delegation_token(self, scope: str, stream: str, access: Access) -> str:
        """ "" where the controller gives none."""
        request = m.StreamInfo(scope=scope, stream=stream, accessOperation=m.StreamInfo.AccessOperation.Value(access))
        token: str = (await self._call("getDelegationToken", request)).delegationToken
        return token


def _info(scope: str, stream: str) -> m.StreamInfo:
    return m.StreamInfo(scope=scope, stream=stream)


def _status(answer: Any) -> str:
    described = answer.DESCRIPTOR.fields_by_name["status"]
    name: str = described.enum_type.values_by_number[answer.status].name
    return name


def _succeeded(answer: Any, what: str, success: str = "SUCCESS") -> None:
    status = _status(answer)
    if status in ("STREAM_NOT_FOUND", "SCOPE_NOT_FOUND"):
        raise NoSuchStream(f"{what}: {status}", status=status)
    if status == "STREAM_SEALED":
        raise StreamSealed(f"{what}: {status}", status=status)
    if status != success:
        raise RequestRejected(f"{what}: the controller says {status}", status=status)


def _created(answer: Any, exists: str, what: str) -> bool:
    if _status(answer) == exists:
        return False
    _succeeded(answer, what)
    return True


class ControllerLocations:
    """Where segments live, as the controller says, and the tokens for them. Answers are kept until they prove wrong.

    Tokens are of one access, per stream, and are renewed before they expire.
    """

    def __init__(self, controller: Controller, access: Access, *, now_s: Callable[[], float] = time.time) -> None:
        self._controller = controller
        self._access: Access = access
        self._now_s = now_s
        self._endpoints: dict[str, Endpoint] = {}
        self._tokens: dict[tuple[str, str], TokenCache] = {}

    async def endpoint_of(self, segment: str) -> Endpoint:
        known = self._endpoints.get(segment)
        if known is None:
            scope, stream, segment_id = _parts(segment)
            known = self._endpoints[segment] = await self._controller.endpoint_of(scope, stream, segment_id)
        return known

    def forget(self, segment: str, endpoint: Endpoint) -> None:
        if self._endpoints.get(segment) == endpoint:
            del self._endpoints[segment]

    async def token_for(self, segment: str) -> str:
        scope, stream, _ = _parts(segment)
        tokens = self._tokens.get((scope, stream))
        if tokens is None:

            async def fetch() -> str:
                return await self._controller.delegation_token(scope, stream, self._access)

            tokens = self._tokens[scope, stream] = TokenCache(fetch, now_s=self._now_s)
        return await tokens.get()

    def expired(self, segment: str, token: str) -> None:
        scope, stream, _ = _parts(segment)
        if (tokens := self._tokens.get((scope, stream))) is not None:
            tokens.expired(token)


def _parts(segment: str) -> tuple[str, str, int]:
    parsed = SegmentName.parse(segment)
    if parsed.stream is None or parsed.segment_id is None:
        raise RequestRejected(f"{segment} is no segment of a stream", segment=segment)
    return parsed.scope or "", parsed.stream, parsed.segment_id
