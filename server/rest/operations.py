"""The operations of the REST API: each checks the caller, calls the controller, and returns JSON.

Where the gRPC API has a method for it, an operation calls that method, with its checks and conversions. Permissions are
those of Pravega's `StreamMetadataResourceImpl`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from string import Formatter
from typing import Any, Final, NamedTuple

from segstore.server.controller import ControllerError, NotFound
from segstore.server.controller.api import Caller, Executor, Permission, scope_resource, stream_resource, user_resource
from segstore.server.controller.state import READER_GROUP_PREFIX, Epoch
from segstore.server.durable import JournalFailed
from segstore.server.rest import bodies
from segstore.server.rest.asking import Answer, Asked, Refused, refusal
from segstore.wire.controller_api import messages as m
from segstore.wire.names import is_stream_name, is_user_stream_name

_INTERNAL: Final = "_"
_LONG_MAX: Final = (1 << 63) - 1


class Operation(NamedTuple):
    """An operation. verb: of HTTP. like: the gRPC method that has its errors and its limits."""

    verb: str
    path: str
    like: str
    perform: Callable[[Executor, Caller, Asked], Awaitable[Answer]]

    @property
    def names(self) -> set[str]:
        """The parameters in the path."""
        return {name for _, name, _, _ in Formatter().parse(self.path) if name}


async def answered(executor: Executor, asked: Asked, authorization: str | None, peer: str) -> Answer:
    """Answers a request. authorization: its credentials, if any. peer: whose share of the controller it uses."""
    operation = OPERATIONS[asked.operation]

    async def perform(caller: Caller) -> Answer:
        answer = await operation.perform(executor, caller, asked)
        executor.charge(len(answer.body))
        return answer

    try:
        return await executor.execute(
            operation.like, peer, asked.body, authorization, lambda _, caller: partial(perform, caller)
        )
    except Refused as error:
        return Answer(error.status, why=error.why)
    except JournalFailed as error:
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, why=str(error))
    except ControllerError as error:
        return refusal(operation.like, error)


def _bad(why: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, why)


def _named(asked: Asked) -> tuple[str, str]:
    return asked.parameters["scopeName"], asked.parameters["streamName"]


async def _listed(executor: Executor, caller: Caller, method: str, request: Any, field: str) -> list[Any]:
    """Returns all pages of a listing."""
    found: list[Any] = []
    while True:
        page = await executor.served[method](request, caller)
        part = getattr(page, field)
        if not part:
            return found
        found += part
        request.continuationToken.token = page.continuationToken.token


# Scopes ----------------------------------------------------------------------------------------------------------


async def _create_scope(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    scope = bodies.read(asked.body, bodies.SCOPE).scope_name or ""
    if not is_stream_name(scope) or scope.startswith(_INTERNAL):
        raise _bad(f"{scope[:80]!r} cannot be the name of a scope: give letters, digits, dots and hyphens")
    await executor.served["createScope"](m.ScopeInfo(scope=scope), caller)
    return Answer(HTTPStatus.CREATED, bodies.encode(bodies.ScopeProperty(scope)))


async def _get_scope(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    scope = asked.parameters["scopeName"]
    if not (await executor.served["checkScopeExists"](m.ScopeInfo(scope=scope), caller)).exists:
        raise NotFound("scope", scope)
    return Answer(HTTPStatus.OK, bodies.encode(bodies.ScopeProperty(scope)))


async def _delete_scope(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    await executor.served["deleteScope"](m.ScopeInfo(scope=asked.parameters["scopeName"]), caller)
    return Answer(HTTPStatus.NO_CONTENT)


async def _list_scopes(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    found = await _listed(executor, caller, "listScopes", m.ScopesRequest(), "scopes")
    items = [bodies.encode(bodies.ScopeProperty(each)) async for each in executor.controller.pace.over(found)]
    return Answer(HTTPStatus.OK, _array("scopes", items))


def _array(name: str, items: list[bytes]) -> bytes:
    """Returns an object with an array; without it if it is empty, as in the reference."""
    return b'{"%s":[%s]}' % (name.encode(), b",".join(items)) if items else b"{}"


# Streams ---------------------------------------------------------------------------------------------------------


async def _create_stream(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    given = bodies.read(asked.body, bodies.STREAM)
    stream = given.stream_name or ""
    if not is_user_stream_name(stream):
        raise _bad(f"{stream[:80]!r} cannot be the name of a stream: give letters, digits, dots and hyphens")
    scope = asked.parameters["scopeName"]
    caller.needs(scope_resource(scope), Permission.READ_UPDATE)
    message = bodies.to_stream_config(scope, stream, given)
    await executor.served["createStream"](message, caller)
    return Answer(HTTPStatus.CREATED, bodies.encode(bodies.from_stream_config(message)))


async def _update_stream(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    given, (scope, stream) = bodies.read(asked.body, bodies.STREAM), _named(asked)
    caller.needs(stream_resource(scope, stream), Permission.READ_UPDATE)
    message = bodies.to_stream_config(scope, stream, given)
    await executor.served["updateStream"](message, caller)
    return Answer(HTTPStatus.OK, bodies.encode(bodies.from_stream_config(message)))


async def _properties(executor: Executor, caller: Caller, scope: str, stream: str) -> bytes:
    info = m.StreamInfo(scope=scope, stream=stream)
    return bodies.encode(bodies.from_stream_config(await executor.served["getStreamConfiguration"](info, caller)))


async def _get_stream(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    return Answer(HTTPStatus.OK, await _properties(executor, caller, *_named(asked)))


async def _list_streams(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    """Returns a scope's streams: those with a tag, or the internal ones, or all others."""
    scope = m.ScopeInfo(scope=asked.parameters["scopeName"])
    kind, tag = asked.parameters.get("filter_type"), asked.parameters.get("filter_value")
    if kind == "tag" and tag is not None:
        request: Any = m.StreamsInScopeWithTagRequest(scope=scope, tag=tag)
        found = await _listed(executor, caller, "listStreamsInScopeForTag", request, "streams")
    else:
        internal = kind == "showInternalStreams"
        listed = await _listed(executor, caller, "listStreamsInScope", m.StreamsInScopeRequest(scope=scope), "streams")
        found = [each for each in listed if each.stream.startswith(_INTERNAL) is internal]
    items = []
    async for each in executor.controller.pace.over(found):
        try:
            items.append(await _properties(executor, caller, each.scope, each.stream))
        except NotFound:  # deleted since it was listed
            continue
    return Answer(HTTPStatus.OK, b'{"streams":[%s]}' % b",".join(items))


async def _update_stream_state(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    state = bodies.read(asked.body, bodies.STATE)
    scope, stream = _named(asked)
    caller.needs(stream_resource(scope, stream), Permission.READ_UPDATE)
    if state.stream_state is None:
        raise _bad("a stream can only become SEALED")
    await executor.served["sealStream"](m.StreamInfo(scope=scope, stream=stream), caller)
    return Answer(HTTPStatus.OK, bodies.encode(state))


async def _delete_stream(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    scope, stream = _named(asked)
    await executor.served["deleteStream"](m.StreamInfo(scope=scope, stream=stream), caller)
    return Answer(HTTPStatus.NO_CONTENT)


async def _get_scaling_events(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    """Returns the epochs that began in a time, and before them the one that was current at its start."""
    given = [_time_ms(asked, name) for name in ("from", "to")]
    if None in given:
        raise _bad("scaling events need the parameters from and to, in milliseconds since 1970")
    scope, stream = _named(asked)
    caller.needs(stream_resource(scope, stream), Permission.READ)
    start_ms, end_ms = (each or 0 for each in given)
    if not 0 <= start_ms <= end_ms:
        raise _bad(f"the time from {start_ms} to {end_ms} is negative")
    pace, epochs = executor.controller.pace, tuple(executor.controller.streams.get(scope, stream).epochs)
    first = max(bisect_right(epochs, start_ms, key=_begun_ms) - 1, 0)
    items, before = [], None
    for epoch in epochs[first : bisect_right(epochs, end_ms, key=_begun_ms)]:
        await pace.take(len(epoch.segments))
        items.append(bodies.encode(_scale(before, epoch)))
        before = epoch
    return Answer(HTTPStatus.OK, b"[%s]" % b",".join(items))


def _time_ms(asked: Asked, name: str) -> int | None:
    """Returns a parameter. One that is not a number is as if the path did not exist, as in JAX-RS."""
    text = asked.parameters.get(name)
    if text is None:
        return None
    try:
        value = int(text) if len(text) < 30 and text.isascii() and "_" not in text else None
    except ValueError:
        value = None
    if value is None or not -_LONG_MAX <= value <= _LONG_MAX:
        raise Refused(HTTPStatus.NOT_FOUND, f"the parameter {name} is not a 64-bit number")
    return value


def _begun_ms(epoch: Epoch) -> int:
    return epoch.created_ms


def _scale(before: Epoch | None, epoch: Epoch) -> bodies.ScaleMetadata:
    """Returns an epoch. A segment of one epoch that overlaps several of the other was split, or was merged of them."""
    splits = merges = 0
    if before is not None:
        splits = sum(len(epoch.overlapping(each.start, each.end)) > 1 for each in before.segments)
        merges = sum(len(before.overlapping(each.start, each.end)) > 1 for each in epoch.segments)
    segments = [
        bodies.Segment(each.number, each.epoch, each.created_ms, each.start, each.end) for each in epoch.segments
    ]
    return bodies.ScaleMetadata(epoch.created_ms, segments, splits, merges)


# Reader groups ---------------------------------------------------------------------------------------------------


def _group(asked: Asked) -> tuple[str, str]:
    return asked.parameters["scopeName"], asked.parameters["readerGroupName"]


async def _list_reader_groups(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    """Returns the groups that have a stream; READ on the scope is enough, as in the reference."""
    scope, token = asked.parameters["scopeName"], ""
    caller.needs(scope_resource(scope), Permission.READ)
    items: list[bytes] = []
    while True:
        names, token = await executor.controller.streams.names(scope, token)
        if not names:
            return Answer(HTTPStatus.OK, _array("readerGroups", items))
        items += [
            bodies.encode(bodies.ReaderGroupName(each.removeprefix(READER_GROUP_PREFIX)))
            for each in names
            if each.startswith(READER_GROUP_PREFIX)
        ]


async def _get_reader_group(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    scope, name = _group(asked)
    caller.needs(user_resource(scope, READER_GROUP_PREFIX + name), Permission.READ)
    config = executor.controller.reader_groups.get(scope, name)
    readers = (await executor.controller.reader_groups.shared_state(scope, name)).readers
    found = bodies.ReaderGroupProperty(scope, name, sorted(config.starting_cuts), sorted(readers))
    return Answer(HTTPStatus.OK, bodies.encode(found))


async def _delete_reader_group(executor: Executor, caller: Caller, asked: Asked) -> Answer:
    """Deletes a group; of one that an older client made only its stream, as the reference does."""
    scope, name = _group(asked)
    stream = READER_GROUP_PREFIX + name
    caller.needs(user_resource(scope, stream), Permission.READ_UPDATE)
    groups, streams = executor.controller.reader_groups, executor.controller.streams
    try:
        await groups.delete(scope, name, groups.get(scope, name).group_id)
    except NotFound:
        if not streams.exists(scope, stream):
            raise
        await streams.seal(scope, stream)
        await streams.delete(scope, stream)
    return Answer(HTTPStatus.NO_CONTENT)


_SCOPES: Final = "/v1/scopes"
_SCOPE: Final = f"{_SCOPES}/{{scopeName}}"
_STREAMS: Final = f"{_SCOPE}/streams"
_STREAM: Final = f"{_STREAMS}/{{streamName}}"
_GROUPS: Final = f"{_SCOPE}/readergroups"
_GROUP: Final = f"{_GROUPS}/{{readerGroupName}}"

OPERATIONS: Final[Mapping[str, Operation]] = {
    "listScopes": Operation("GET", _SCOPES, "listScopes", _list_scopes),
    "createScope": Operation("POST", _SCOPES, "createScope", _create_scope),
    "getScope": Operation("GET", _SCOPE, "checkScopeExists", _get_scope),
    "deleteScope": Operation("DELETE", _SCOPE, "deleteScope", _delete_scope),
    "listStreams": Operation("GET", _STREAMS, "listStreamsInScope", _list_streams),
    "createStream": Operation("POST", _STREAMS, "createStream", _create_stream),
    "getStream": Operation("GET", _STREAM, "getStreamConfiguration", _get_stream),
    "updateStream": Operation("PUT", _STREAM, "updateStream", _update_stream),
    "deleteStream": Operation("DELETE", _STREAM, "deleteStream", _delete_stream),
    "updateStreamState": Operation("PUT", f"{_STREAM}/state", "sealStream", _update_stream_state),
    "getScalingEvents": Operation("GET", f"{_STREAM}/scaling-events", "getEpochSegments", _get_scaling_events),
    "listReaderGroups": Operation("GET", _GROUPS, "listStreamsInScope", _list_reader_groups),
    "getReaderGroup": Operation("GET", _GROUP, "getReaderGroupConfig", _get_reader_group),
    "deleteReaderGroup": Operation("DELETE", _GROUP, "deleteReaderGroup", _delete_reader_group),
}
"""The operations by their names in the reference's description of its API."""
