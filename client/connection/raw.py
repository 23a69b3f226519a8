"""Raw requests: sends any command to a store and returns its reply.

A `RawClient` is one flow with its pending requests. WrongHost, ErrorMessage or a failure reply that matches no request
ends it; pending requests then fail with a retriable error, and the owner opens another client. A success reply that
matches no request is ignored, as that request was abandoned. `SegmentRequests` holds one such client per store, and
retries.

Invariants: every request ends by its deadline; a reply reaches the request whose id it carries; after `aclose` nothing
is pending. Follows `RawClient` (Pravega's client).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self, TypeVar

from segstore.client.attempts import Attempts
from segstore.client.config import ClientSettings
from segstore.client.connection.locations import FixedStore, Locations, learn
from segstore.client.connection.pool import ConnectionPool
from segstore.client.connection.transport import Flow
from segstore.client.errors import (
    ClientError,
    Closed,
    ConnectionLost,
    PeerRefused,
    ProtocolViolation,
    RequestTimedOut,
    Retriable,
    RetriesExhausted,
    SegmentTruncated,
    TokenExpired,
    failure,
)
from segstore.client.lifecycle import FreedAfter
from segstore.wire import (
    Command,
    ErrorMessage,
    ErrorMessageCode,
    GetStreamSegmentInfo,
    SegmentRead,
    StreamSegmentInfo,
    TableEntriesDeltaRead,
    TableEntriesRead,
    TableKeysRead,
    TableRead,
    TruncateSegment,
    WrongHost,
    decode,
    encode,
)
from segstore.wire import SegmentTruncated as TruncatedReply
from segstore.wire.endpoint import Endpoint

R = TypeVar("R", bound=Command)

_WITH_PAYLOAD = frozenset({SegmentRead, TableRead, TableKeysRead, TableEntriesRead, TableEntriesDeltaRead})

MakeRequest = Callable[[int], Command]
"""Returns the request with a given request id."""


class RawClient:
    """Requests to one store. Made by `open`."""

    flow: Flow

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, asyncio.Future[Command]] = {}
        self._ended: ClientError | None = None

    @classmethod
    async def open(cls, pool: ConnectionPool, endpoint: Endpoint) -> Self:
        """Opens a flow to a store. Raises as `ConnectionPool.flow`."""
        self = cls(pool.settings)
        self.flow = await pool.flow(endpoint, self)
        return self

    @property
    def closed(self) -> bool:
        return self._ended is not None

    async def request(self, make: MakeRequest, *, timeout_ms: float | None = None) -> Command:
        """Sends the request that `make` returns for the next request id; returns the reply, which may be a failure.

        The reply owns its payloads. Raises RequestTimedOut, the error that ended the client, and WireError for a
        request that cannot be encoded.
        """
        flow = self.flow
        limit_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        request_id = flow.next_request_id()
        try:
            async with asyncio.timeout(limit_ms / 1000):
                if flow.connection.outbox.paused:
                    await flow.connection.outbox.writable()
                if self._ended is not None:
                    raise self._again(self._ended)
                flow.send(make(request_id))
                reply: asyncio.Future[Command] = self._loop.create_future()
                self._pending[request_id] = reply
                return await reply
        except TimeoutError as cause:
            text = f"{flow.endpoint} did not answer within {limit_ms:.0f} ms"
            raise RequestTimedOut(text, endpoint=flow.endpoint, request_id=request_id, limit=limit_ms) from cause
        finally:
            self._pending.pop(request_id, None)

    @staticmethod
    def _again(error: ClientError) -> ClientError:
        """A new error for each request: requests must not share a traceback."""
        if isinstance(error, Closed):
            return error.again()
        return ConnectionLost(error.message, endpoint=error.endpoint).caused_by(error)

    def on_reply(self, reply: Command) -> None:
        request_id: int = reply.request_id  # type: ignore[attr-defined]  # every reply has one
        pending = self._pending.pop(request_id, None)
        if isinstance(reply, (WrongHost, ErrorMessage)):
            error = failure(reply, endpoint=self.flow.endpoint)
            if pending is not None and not pending.done():
                pending.set_exception(error)
            self.on_lost(error)
        elif pending is not None:
            if not pending.done():
                pending.set_result(_own(reply))
        elif reply.is_failure:
            name = self.flow.endpoint
            self.on_lost(PeerRefused(f"{name} refuses request {request_id}, which is not pending", endpoint=name))

    def on_lost(self, error: ClientError) -> None:
        if self._ended is not None:
            return
        self._ended = error
        self.flow.close()
        pending, self._pending = self._pending, {}
        for reply in pending.values():
            if not reply.done():
                reply.set_exception(self._again(error))

    def close(self) -> None:
        """Closes the flow and fails pending requests."""
        self.on_lost(Closed("the client of raw requests was closed"))


def _own(reply: Command) -> Command:
    """The reply with payloads that outlive the read buffer."""
    return decode(encode(reply)) if type(reply) in _WITH_PAYLOAD else reply


class SegmentRequests(FreedAfter):
    """Requests about segments: locates their store, adds the token, retries retriable failures.

    reply = await requests.ask(segment, SegmentSealed, lambda id_, token: SealSegment(id_, segment, token))
    """

    def __init__(self, pool: ConnectionPool, locations: Locations, *, recovers: bool = False) -> None:
        """recovers: the requests are a writer's or a reader's, with its retry limits, not a user's calls."""
        self._pool = pool
        self._locations = locations
        self._calls = not recovers
        self._clients: dict[Endpoint, RawClient] = {}

    async def ask(
        self,
        segment: str,
        expected: type[R] | tuple[type[R], ...],
        make: Callable[[int, str], Command],
        *,
        timeout_ms: float | None = None,
    ) -> R:
        """Sends the request that `make` returns for a request id and a token; returns a reply of an expected type.

        Retries `Retriable` errors according to the settings, except an argument that the store rejects; a request may
        therefore be executed twice. Other failure replies are raised as their errors; RetriesExhausted has the last
        failure as its cause.
        """
        settings = self._pool.settings
        attempts = Attempts(
            settings,
            f"a request about {segment}",
            segment=segment,
            call=self._calls,
            may_move=not isinstance(self._locations, FixedStore),
            timeout_ms=settings.request_timeout_ms if timeout_ms is None else timeout_ms,
            random=self._pool.random,
        )
        while True:
            try:
                async with attempts.one():
                    return await self._ask_once(segment, expected, make, timeout_ms)
            except (Retriable, TokenExpired) as error:
                if error.details.get("error_code") == ErrorMessageCode.ILLEGAL_ARGUMENT_EXCEPTION.name:
                    raise
                pause_s = attempts.failed(error)
            except ClientError as error:
                if attempts.failures and not isinstance(error, RetriesExhausted):
                    error.details["retried"] = attempts.failures
                error.located(segment=segment)
                raise
            await asyncio.sleep(pause_s)

    async def info(self, segment: str) -> StreamSegmentInfo:
        """Where a segment begins and ends, and whether it is sealed. Raises as `ask`."""
        return await self.ask(segment, StreamSegmentInfo, lambda id_, token: GetStreamSegmentInfo(id_, segment, token))

    async def truncate(self, segment: str, offset: int) -> None:
        """Deletes the data before an offset; a no-op if it is gone already. Raises SegmentTruncated, and as `ask`."""
        try:
            await self.ask(segment, TruncatedReply, lambda id_, token: TruncateSegment(id_, segment, offset, token))
        except SegmentTruncated as gone:
            if gone.details.get("start_offset", -1) < offset:
                raise

    async def _ask_once(
        self,
        segment: str,
        expected: type[R] | tuple[type[R], ...],
        make: Callable[[int, str], Command],
        timeout_ms: float | None,
    ) -> R:
        endpoint = await self._locations.endpoint_of(segment)
        token = await self._locations.token_for(segment)
        try:
            client = await self._client(endpoint)
            reply = await client.request(lambda request_id: make(request_id, token), timeout_ms=timeout_ms)
            if isinstance(reply, expected):
                return reply
            if reply.is_failure:
                raise failure(reply, endpoint=str(endpoint), segment=segment)
            due = " or ".join(kind.type_name for kind in (expected if isinstance(expected, tuple) else (expected,)))
            raise ProtocolViolation(
                f"{endpoint} answers with {reply.type_name} where {due} is due", endpoint=str(endpoint), segment=segment
            )
        except ClientError as error:
            learn(self._locations, segment, error, endpoint, token, in_doubt=isinstance(error, ConnectionLost))
            raise

    async def _client(self, endpoint: Endpoint) -> RawClient:
        client = self._clients.get(endpoint)
        if client is not None and not client.closed:
            return client
        opened = await RawClient.open(self._pool, endpoint)
        client = self._clients.get(endpoint)
        if client is not None and not client.closed:
            opened.close()  # another request was faster
            return client
        self._clients[endpoint] = opened
        return opened

    def close(self) -> None:
        """Fails pending requests. Can be called twice; a later request opens a new client."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
