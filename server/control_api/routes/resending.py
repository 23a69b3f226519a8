"""Sends a recorded request to its store again, over a connection of its own.

The store treats the connection as any client's: fault rules apply, and its traffic is kept. It begins with a handshake
and, for an append, with the set-up of its writer. The request itself is the recorded frame, byte by byte; its
delegation token was not kept, so a store that verifies tokens refuses it. An append with an event number that the store
already has is stored once more and not acknowledged, as in the reference; a KeepAlive behind it shows that.

Invariant: a request is sent and answered within `_PATIENCE_S`, and `_MOST_BYTES` of replies are read.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from segstore.server.control_api.detail import frame_of
from segstore.server.control_api.models import SentAgain
from segstore.server.control_api.problems import ApiProblem
from segstore.wire import MAX_FRAME_BYTES, encode
from segstore.wire import commands as c
from segstore.wire.protocol import HELLO
from segstore.wire.trace import Direction, Exchange, Exchanges, Record, RecordKind

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterator

    from segstore.server.node import SegmentStoreServer
    from segstore.server.traffic import RecordedRequest, Traffic

_PATIENCE_S: Final = 5.0
_MOST_BYTES: Final = 2 * MAX_FRAME_BYTES
_HEADER_BYTES: Final = 8
_STORED_TWICE: Final = "stored once more, and not acknowledged: the store had its event number already"
_LOOKS: Final = 50
_LOOK_S: Final = 0.02
_CLOSED: Final = "the store closed the connection"
_APPENDS: Final = c.AppendBlockEnd, c.ConditionalAppend, c.ConditionalBlockEnd


async def resend(recorded: RecordedRequest, store: SegmentStoreServer, traffic: Traffic, *, admin: bool) -> SentAgain:
    """Sends a request to a store, and returns the frames received until its reply or the end of the connection.

    traffic: records it again. admin: use the store's admin port. Raises ApiProblem if the request cannot be sent.
    """
    frames = list(_frames(recorded))
    where = store.admin_address if admin else store.address
    if where is None or store.hub.closing:
        raise ApiProblem(409, f"store {store.number} does not listen: it is stopped", "path.number")
    try:
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_connection(where.host, where.port, ssl=_tls(store))
        try:
            own = "{}:{}".format(*writer.get_extra_info("sockname")[:2])
            replies, ended = await _exchange(frames, reader, writer)
        finally:
            writer.transport.abort()
    except OSError as error:
        why = str(error) or f"it was not there within {_PATIENCE_S:g} s"
        raise ApiProblem(409, f"no connection to store {store.number} at {where}: {why}", "path") from error
    # A port of an older connection may have been used again.
    number = next(
        (connection for connection, facts in reversed(traffic.peers.items()) if facts.get("peer") == own), None
    )
    if ended == _CLOSED and number is not None:
        why = await _reason(traffic, number)
        ended = f"{ended}: {why}" if why else ended
    return SentAgain(connection=number, replies=[frame_of("reply", reply) for reply in replies], ended=ended)


def _tls(store: SegmentStoreServer) -> ssl.SSLContext | None:
    """Trusts only the store's own certificate, with any names in it."""
    if store.settings.tls is None:
        return None
    context = store.settings.tls.trusting_context()
    context.check_hostname = False
    return context


async def _exchange(
    frames: list[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[list[Exchange], str]:
    """Sends frames and returns the replies up to the reply to the last frame, or why it has no reply."""
    exchanges, replies = Exchanges(), list[Exchange]()
    *_, asked = [exchanges.see(_record(frame, Direction.REQUEST)) for frame in frames]
    behind = None
    if isinstance(asked.command, _APPENDS):
        frames = [*frames, encode(c.KeepAlive())]
        behind = exchanges.see(_record(frames[-1], Direction.REQUEST))
    try:
        async with asyncio.timeout(_PATIENCE_S):
            writer.write(b"".join(frames))
            await writer.drain()
            async for frame in _read(reader):
                replies.append(exchanges.see(_record(frame, Direction.REPLY)))
                if asked in replies[-1].answers:
                    return replies, ""
                if behind is not None and behind in replies[-1].answers:
                    return replies, _STORED_TWICE
    except ConnectionError:
        return replies, _CLOSED
    except TimeoutError:
        return replies, f"there was no reply within {_PATIENCE_S:g} s"
    return replies, _CLOSED


async def _reason(traffic: Traffic, connection: int) -> str:
    """Returns why the store closed a connection, when it has recorded that; empty if there is no reason."""
    for _ in range(_LOOKS):
        facts = traffic.peers.get(connection, {})
        if "ended" in facts:
            return facts["ended"]
        await asyncio.sleep(_LOOK_S)  # a client of TLS learns of the end first
    return ""


def _record(frame: bytes, direction: Direction) -> Record:
    return Record(time.time_ns(), 1, direction, RecordKind.FRAME, frame)


async def _read(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yields the frames of a store until it closes the connection, or sends too much."""
    left = _MOST_BYTES
    try:
        while left > 0:
            header = await reader.readexactly(_HEADER_BYTES)
            length = int.from_bytes(header[4:], "big", signed=True)
            if not 0 <= length <= MAX_FRAME_BYTES:
                return  # a fault rule has changed it
            left -= _HEADER_BYTES + length
            yield header + await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return


def _frames(recorded: RecordedRequest) -> Iterator[bytes]:
    """The frames that a connection with this request alone has. Raises ApiProblem."""
    request = recorded.request
    if request.kind != "frame":
        what = "a controller call" if request.call is not None else "what is no frame"
        raise ApiProblem(409, f"{what} cannot be sent again", "path.number")
    command = request.command
    if not isinstance(command, c.Hello):
        yield encode(HELLO)
    if isinstance(command, _APPENDS):
        if not request.segments:
            raise ApiProblem(409, "the segment of its writer is no longer known", "path.number")
        yield encode(c.SetupAppend(0, command.writer_id, request.segments[0], ""))
    if request.block is not None:
        yield request.block.record.data
    elif isinstance(command, c.AppendBlockEnd) and len(command.data) != command.size_of_whole_events:
        raise ApiProblem(409, "the frame with its events is no longer kept", "path.number")
    yield request.record.data
