"""The operations of the REST API: each checks the caller, calls the controller, and returns JSON.

If the gRPC API has a corresponding method, an operation calls it (`Calling`): checks, conversions, recordings and fault
rules apply. Permissions are as in Pravega's `StreamMetadataResourceImpl`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from operator import attrgetter
from string import Formatter
from typing import Any, Final, NamedTuple

from segstore.server.auth import Permission
from segstore.server.controller import ControllerError, NotFound
from segstore.server.controller.api import (
    Caller,
    Calls,
    ControllerServer,
    scope_resource,
    stream_resource,
    user_resource,
)
from segstore.server.controller.state import READER_GROUP_PREFIX, Epoch
from segstore.server.durable import JournalFailed
from segstore.server.rest import bodies
from segstore.server.rest.asking import Refused, RestRequest, RestResponse, refusal
from segstore.server.rest.calling import Calling
from segstore.wire.controller_api import messages as m
from segstore.wire.names import MAX_INT64, is_stream_name, is_user_stream_name

_INTERNAL: Final = "_"


class RestOperation(NamedTuple):
    """An operation. verb: of HTTP. like: the gRPC method that has its errors and its limits."""

    verb: str
    path: str
    like: str
    perform: Callable[[Calling, RestRequest], Awaitable[RestResponse]]

    @property
    def names(self) -> set[str]:
        """The parameters in the path."""
        return {name for _, name, _, _ in Formatter().parse(self.path) if name}


async def answered(
    server: ControllerServer, asked: RestRequest, authorization: str | None, peer: str, *, calls: Calls | None = None
) -> RestResponse:
    """Answers a request.

    authorization: its credentials, if any. peer: its address. calls: sees the gRPC methods that it calls.
    """
    operation = OPERATIONS[asked.operation]

    async def perform(caller: Caller) -> RestResponse:
        try:
            return await operation.perform(Calling(server, caller, peer, calls), asked)
        except Refused as error:
            return RestResponse(error.status, why=error.why)

    try:
        return await server.execute(
            operation.like, asked.body, authorization, lambda _, caller: partial(perform, caller)
        )
    except JournalFailed as error:
        return RestResponse(HTTPStatus.SERVICE_UNAVAILABLE, why=str(error))
    except ControllerError as error:
        return refusal(operation.like, error)


def _bad(why: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, why)


def _named(asked: RestRequest) -> tuple[str, str]:
    return asked.parameters["scopeName"], asked.parameters["streamName"]


async def _listed(calling: Calling, method: str, request: Any, field: str) -> list[Any]:
    """Returns all pages of a listing."""
    entries: list[Any] = []
    while True:
        page = await calling.call(method, request)
        part = getattr(page, field)
        if not part:
            return entries
        entries += part
        await asyncio.sleep(0)
        request.continuationToken.token = page.continuationToken.token


# Scopes ----------------------------------------------------------------------------------------------------------


async def _create_scope(calling: Calling, asked: RestRequest) -> RestResponse:
    scope = bodies.read(asked.body, bodies.SCOPE).scope_name or ""
    if not is_stream_name(scope) or scope.startswith(_INTERNAL):
        raise _bad(f"{scope[:80]!r} cannot be the name of a scope: give letters, digits, dots and hyphens")
    await calling.call("createScope", m.ScopeInfo(scope=scope))
    return RestResponse(HTTPStatus.CREATED, bodies.encode(bodies.ScopeProperty(scope)))


async def _get_scope(calling: Calling, asked: RestRequest) -> RestResponse:
    scope = asked.parameters["scopeName"]
    if not (await calling.call("checkScopeExists", m.ScopeInfo(scope=scope))).exists:
        raise NotFound("scope", scope)
    return RestResponse(HTTPStatus.OK, bodies.encode(bodies.ScopeProperty(scope)))


async def _delete_scope(calling: Calling, asked: RestRequest) -> RestResponse:
    await calling.call("deleteScope", m.ScopeInfo(scope=asked.parameters["scopeName"]))
    return RestResponse(HTTPStatus.NO_CONTENT)


async def _list_scopes(calling: Calling, asked: RestRequest) -> RestResponse:
    scopes = await _listed(calling, "listScopes", m.ScopesRequest(), "scopes")
    items = [bodies.encode(bodies.ScopeProperty(scope)) for scope in scopes]
    return RestResponse(HTTPStatus.OK, _array("scopes", items))


def _array(name: str, items: list[bytes]) -> bytes:
    """Returns an object with an array; without it if it is empty, as in the reference."""
    return b'{"%s":[%s]}' % (name.encode(), b",".join(items)) if items else b"{}"


# Streams ---------------------------------------------------------------------------------------------------------


async def _create_stream(calling: Calling, asked: RestRequest) -> RestResponse:
    properties = bodies.read(asked.body, bodies.STREAM)
    stream = properties.stream_name or ""
    if not is_user_stream_name(stream):
        raise _bad(f"{stream[:80]!r} cannot be the name of a stream: give letters, digits, dots and hyphens")
    scope = asked.parameters["scopeName"]
    calling.caller.needs(scope_resource(scope), Permission.READ_UPDATE)
    message = bodies.to_stream_config(scope, stream, properties)
    await calling.call("createStream", message)
    return RestResponse(HTTPStatus.CREATED, bodies.encode(bodies.from_stream_config(message)))


async def _update_stream(calling: Calling, asked: RestRequest) -> RestResponse:
    properties, (scope, stream) = bodies.read(asked.body, bodies.STREAM), _named(asked)
    calling.caller.needs(stream_resource(scope, stream), Permission.READ_UPDATE)
    message = bodies.to_stream_config(scope, stream, properties)
    await calling.call("updateStream", message)
    return RestResponse(HTTPStatus.OK, bodies.encode(bodies.from_stream_config(message)))


async def _get_stream(calling: Calling, asked: RestRequest) -> RestResponse:
    scope, stream = _named(asked)
    config = await calling.call("getStreamConfiguration", m.StreamInfo(scope=scope, stream=stream))
    return RestResponse(HTTPStatus.OK, bodies.encode(bodies.from_stream_config(config)))


async def _list_streams(calling: Calling, asked: RestRequest) -> RestResponse:
    """Returns a scope's streams: all user streams, the internal streams, or the streams with a tag."""
    scope = m.ScopeInfo(scope=asked.parameters["scopeName"])
    kind, tag = asked.parameters.get("filter_type"), asked.parameters.get("filter_value")
    if kind == "tag" and tag is not None:
        request: Any = m.StreamsInScopeWithTagRequest(scope=scope, tag=tag)
        infos = await _listed(calling, "listStreamsInScopeForTag", request, "streams")
    else:
        internal = kind == "showInternalStreams"
        listed = await _listed(calling, "listStreamsInScope", m.StreamsInScopeRequest(scope=scope), "streams")
        infos = [info for info in listed if info.stream.startswith(_INTERNAL) is internal]
    items = []
    for info in infos:
        try:
            config = await calling.unseen("getStreamConfiguration", info)
        except NotFound:  # deleted since it was listed
            continue
        items.append(bodies.encode(bodies.from_stream_config(config)))
    return RestResponse(HTTPStatus.OK, b'{"streams":[%s]}' % b",".join(items))


async def _update_stream_state(calling: Calling, asked: RestRequest) -> RestResponse:
    state = bodies.read(asked.body, bodies.STATE)
    scope, stream = _named(asked)
    calling.caller.needs(stream_resource(scope, stream), Permission.READ_UPDATE)
    if state.stream_state is None:
        raise _bad("a stream can only become SEALED")
    await calling.call("sealStream", m.StreamInfo(scope=scope, stream=stream))
    return RestResponse(HTTPStatus.OK, bodies.encode(state))


async def _delete_stream(calling: Calling, asked: RestRequest) -> RestResponse:
    scope, stream = _named(asked)
    await calling.call("deleteStream", m.StreamInfo(scope=scope, stream=stream))
    return RestResponse(HTTPStatus.NO_CONTENT)


async def _get_scaling_events(calling: Calling, asked: RestRequest) -> RestResponse:
    """Returns the epoch current at the start of a time range, and the epochs that began in it."""
    times = [_time_ms(asked, name) for name in ("from", "to")]
    if None in times:
        raise _bad("scaling events need the parameters from and to, in milliseconds since 1970")
    scope, stream = _named(asked)
    calling.caller.needs(stream_resource(scope, stream), Permission.READ)
    start_ms, end_ms = (time_ms or 0 for time_ms in times)
    if not 0 <= start_ms <= end_ms:
        raise _bad(f"the time from {start_ms} to {end_ms} is negative")
    epochs, begun_ms = tuple(calling.controller.streams.get(scope, stream).epochs), attrgetter("created_ms")
    first = max(bisect_right(epochs, start_ms, key=begun_ms) - 1, 0)
    items, before = [], None
    for epoch in epochs[first : bisect_right(epochs, end_ms, key=begun_ms)]:
        await asyncio.sleep(0)
        items.append(bodies.encode(_scale(before, epoch)))
        before = epoch
    return RestResponse(HTTPStatus.OK, b"[%s]" % b",".join(items))


def _time_ms(asked: RestRequest, name: str) -> int | None:
    """Returns a parameter. A value that is not a number is answered like a missing path, as in JAX-RS."""
    text = asked.parameters.get(name)
    if text is None:
        return None
    try:
        value = int(text) if len(text) < 30 and text.isascii() and "_" not in text else None
    except ValueError:
        value = None
    if value is None or not -MAX_INT64 <= value <= MAX_INT64:
        raise Refused(HTTPStatus.NOT_FOUND, f"the parameter {name} is not a 64-bit number")
    return value


def _scale(before: Epoch | None, epoch: Epoch) -> bodies.ScaleMetadata:
    """Returns an epoch. A segment that overlaps several segments of the next epoch was split, of the last epoch,
    merged.
    """
    splits = merges = 0
    if before is not None:
        splits = sum(len(epoch.overlapping(segment.start, segment.end)) > 1 for segment in before.segments)
        merges = sum(len(before.overlapping(segment.start, segment.end)) > 1 for segment in epoch.segments)
    segments = [bodies.ScaleSegment(it.number, it.epoch, it.created_ms, it.start, it.end) for it in epoch.segments]
    return bodies.ScaleMetadata(epoch.created_ms, segments, splits, merges)


# Reader groups ---------------------------------------------------------------------------------------------------


def _group(asked: RestRequest) -> tuple[str, str]:
    return asked.parameters["scopeName"], asked.parameters["readerGroupName"]


async def _list_reader_groups(calling: Calling, asked: RestRequest) -> RestResponse:
    """Returns the groups that have a stream; READ on the scope is enough, as in the reference."""
    scope, token = asked.parameters["scopeName"], ""
    calling.caller.needs(scope_resource(scope), Permission.READ)
    items: list[bytes] = []
    while True:
        names, token = calling.controller.streams.names(scope, token)
        if not names:
            return RestResponse(HTTPStatus.OK, _array("readerGroups", items))
        items += [
            bodies.encode(bodies.ReaderGroupName(name.removeprefix(READER_GROUP_PREFIX)))
            for name in names
            if name.startswith(READER_GROUP_PREFIX)
        ]
        await asyncio.sleep(0)


async def _get_reader_group(calling: Calling, asked: RestRequest) -> RestResponse:
    scope, name = _group(asked)
    calling.caller.needs(user_resource(scope, READER_GROUP_PREFIX + name), Permission.READ)
    groups = calling.controller.reader_groups
    config = groups.get(scope, name)
    readers = (await groups.shared_state(scope, name)).readers
    properties = bodies.ReaderGroupProperty(scope, name, sorted(config.starting_cuts), sorted(readers))
    return RestResponse(HTTPStatus.OK, bodies.encode(properties))


async def _delete_reader_group(calling: Calling, asked: RestRequest) -> RestResponse:
    """Deletes a group; for a group made by an older client, only its stream, as in the reference."""
    scope, name = _group(asked)
    stream = READER_GROUP_PREFIX + name
    calling.caller.needs(user_resource(scope, stream), Permission.READ_UPDATE)
    groups, streams = calling.controller.reader_groups, calling.controller.streams
    try:
        await groups.delete(scope, name, groups.get(scope, name).group_id)
    except NotFound:
        if not streams.exists(scope, stream):
            raise
        await streams.seal(scope, stream)
        await streams.delete(scope, stream)
    return RestResponse(HTTPStatus.NO_CONTENT)


_SCOPES: Final = "/v1/scopes"
_SCOPE: Final = f"{_SCOPES}/{{scopeName}}"
_STREAMS: Final = f"{_SCOPE}/streams"
_STREAM: Final = f"{_STREAMS}/{{streamName}}"
_GROUPS: Final = f"{_SCOPE}/readergroups"
_GROUP: Final = f"{_GROUPS}/{{readerGroupName}}"

OPERATIONS: Final[Mapping[str, RestOperation]] = {
    "listScopes": RestOperation("GET", _SCOPES, "listScopes", _list_scopes),
    "createScope": RestOperation("POST", _SCOPES, "createScope", _create_scope),
    "getScope": RestOperation("GET", _SCOPE, "checkScopeExists", _get_scope),
    "deleteScope": RestOperation("DELETE", _SCOPE, "deleteScope", _delete_scope),
    "listStreams": RestOperation("GET", _STREAMS, "listStreamsInScope", _list_streams),
    "createStream": RestOperation("POST", _STREAMS, "createStream", _create_stream),
    "getStream": RestOperation("GET", _STREAM, "getStreamConfiguration", _get_stream),
    "updateStream": RestOperation("PUT", _STREAM, "updateStream", _update_stream),
    "deleteStream": RestOperation("DELETE", _STREAM, "deleteStream", _delete_stream),
    "updateStreamState": RestOperation("PUT", f"{_STREAM}/state", "sealStream", _update_stream_state),
    "getScalingEvents": RestOperation("GET", f"{_STREAM}/scaling-events", "getEpochSegments", _get_scaling_events),
    "listReaderGroups": RestOperation("GET", _GROUPS, "listStreamsInScope", _list_reader_groups),
    "getReaderGroup": RestOperation("GET", _GROUP, "getReaderGroupConfig", _get_reader_group),
    "deleteReaderGroup": RestOperation("DELETE", _GROUP, "deleteReaderGroup", _delete_reader_group),
}
"""The operations by their names in the reference's description of its API."""
