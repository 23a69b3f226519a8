"""Conditional appends, stored only if the segment ends at the offset that their writer expects.

Appends are sent one at a time, each until its outcome is known: after a lost connection, set-up returns the last event
number that the store has from this writer.

Invariants: an append is stored at most once; `False` means that no part of it was stored; concurrent calls run in
order. Follows `ConditionalOutputStreamImpl` (Pravega's client) and `ByteWriter` of the Rust client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

from segstore.client.attempts import Attempts
from segstore.client.connection import ConnectionPool, Endpoint, Locations, RawClient, learn
from segstore.client.errors import (
    ClientError,
    Closed,
    ConnectionLost,
    PeerRefused,
    ProtocolViolation,
    Retriable,
    TokenExpired,
    failure,
)
from segstore.wire import (
    AppendSetup,
    Command,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    DataAppended,
    Event,
    SetupAppend,
)

_Make = Callable[[int, int], Command]
"""Makes the append from an event number and a request id."""


class ConditionalWriter:
    """Sends conditional appends under one writer id, one at a time."""

    def __init__(self, pool: ConnectionPool, locations: Locations, segment: str) -> None:
        self._pool = pool
        self._locations = locations
        self._segment = segment
        self._id = uuid4()
        self._number = 0
        self._client: RawClient | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    async def write_event(self, data: bytes, expected_offset: int) -> bool:
        """Stores an event with its 8-byte header; returns False, storing nothing, unless the segment ended there.

        Raises Closed, SegmentOver, TokenRefused, RetriesExhausted.
        """
        event = Event(data)
        return await self._write(lambda number, id_: ConditionalAppend(self._id, number, expected_offset, event, id_))

    async def write_bytes(self, data: bytes, expected_offset: int) -> bool:
        """Like `write_event`, for raw bytes without a header."""
        return await self._write(lambda number, id_: ConditionalBlockEnd(self._id, number, expected_offset, data, id_))

    async def _write(self, make: _Make) -> bool:
        async with self._lock:
            self._number += 1
            what = f"a conditional append to {self._segment}"
            attempts = Attempts(self._pool.settings, what, segment=self._segment, random=self._pool.random)
            try:
                while True:
                    try:
                        async with attempts.one():
                            return await self._write_once(self._number, make)
                    except (Retriable, TokenExpired) as error:
                        self._drop()
                        pause_s = attempts.failed(error)
                    await asyncio.sleep(pause_s)
            except BaseException:
                self._drop()  # the append may still be stored: the next set-up will show
                raise

    async def _write_once(self, number: int, make: _Make) -> bool:
        if self._closed:
            raise Closed(f"the writer of {self._segment} was closed", segment=self._segment)
        endpoint = await self._locations.endpoint_of(self._segment)
        token = await self._locations.token_for(self._segment)
        try:
            client = self._client
            if client is None or client.closed:
                stored = await self._set_up(endpoint, token)
                if stored >= number:
                    return True
                client = self._client
                assert client is not None
            reply = await client.request(lambda id_: make(number, id_))
            if isinstance(reply, DataAppended):
                return True
            if isinstance(reply, ConditionalCheckFailed):
                return False
            raise self._failure(reply, endpoint)
        except ClientError as error:
            learn(self._locations, self._segment, error, endpoint, token, in_doubt=isinstance(error, ConnectionLost))
            raise

    async def _set_up(self, endpoint: Endpoint, token: str) -> int:
        """Sets up the writer on a new flow; returns the last event number that the store has from it."""
        client = await RawClient.open(self._pool, endpoint)
        try:
            reply = await client.request(lambda id_: SetupAppend(id_, self._id, self._segment, token))
            if not isinstance(reply, AppendSetup):
                raise self._failure(reply, endpoint)
            if self._closed:
                raise Closed(f"the writer of {self._segment} was closed", segment=self._segment)
        except BaseException:
            client.close()
            raise
        self._client = client
        return reply.last_event_number

    def _failure(self, reply: Command, endpoint: Endpoint) -> ClientError:
        error = failure(reply, endpoint=str(endpoint), segment=self._segment)
        if isinstance(error, ProtocolViolation):
            # Replies to an older set-up may arrive late; a new connection gives a definite answer.
            return PeerRefused(error.message, endpoint=error.endpoint, segment=self._segment)
        return error

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def close(self) -> None:
        """Closes the writer immediately; pending calls raise Closed. Can be called twice."""
        self._closed = True
        self._drop()
