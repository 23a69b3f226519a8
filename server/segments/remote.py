"""The segments of a cluster of processes, as the controller asks for them: over the wire, from whoever owns them.

One connection a store, made when it is needed. Every request is one that can be asked again; a store that has gone, or
owns the container no longer, is looked for anew until the time is up.

Invariant: a request ends by its deadline. After `aclose` there is no connection.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from segstore.server.controller import CONTROLLER_WRITER, Load, NobodyOwns, ScalingPolicy, SegmentStoreFailed
from segstore.server.net import Endpoint
from segstore.server.shared_folder import Owners
from segstore.server.store import EVENT_COUNT, NULL_VALUE
from segstore.wire import (
    OLDEST_COMPATIBLE_VERSION,
    AppendBlockEnd,
    AppendSetup,
    Command,
    CreateSegment,
    CreateTableSegment,
    DataAppended,
    DeleteSegment,
    DeleteTableSegment,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    Hello,
    MergeSegmentsBatch,
    NoSuchSegment,
    SealSegment,
    SegmentAlreadyExists,
    SegmentAttribute,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsSealed,
    SegmentPolicyUpdated,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentTruncated,
    SetupAppend,
    StreamSegmentInfo,
    TruncateSegment,
    UpdateSegmentPolicy,
    WireError,
    WrongHost,
)
from segstore.wire.codec import encoder, frame_decoder
from segstore.wire.names import container_of

log = logging.getLogger(__name__)

_PATIENCE_S: Final = 10.0
_ASK_AGAIN_S: Final = 0.05
_READ_BYTES: Final = 256 * 1024

R = TypeVar("R", bound=Command)
MakeRequest = Callable[[int, str], Command]
"""From a request id and a token to the request."""


class StoreRefused(Exception):
    """A store did not do what it was asked for. reply: what it said."""

    def __init__(self, reply: Command) -> None:
        super().__init__(f"the store answered {reply}")
        self.reply = reply


class StoreConnection:
    """Requests to one store and their replies. Made by `open`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self._reader = reader
        self._writer = writer
        self._encode = encoder(version)
        self._decoder = frame_decoder(version)
        self._pending: dict[int, asyncio.Future[Command]] = {}
        self._last_id = 0
        self._over = ""
        writer.write(self._encode(Hello(version, OLDEST_COMPATIBLE_VERSION)))
        self._reading = asyncio.create_task(self._read(), name="controller's connection to a store")

    @classmethod
    async def open(cls, where: Endpoint, version: int, tls: ssl.SSLContext | None) -> StoreConnection:
        """Raises OSError."""
        reader, writer = await asyncio.open_connection(
            where.host, where.port, ssl=tls, server_hostname=None if tls is None else where.host
        )
        return cls(reader, writer, version)

    @property
    def is_over(self) -> bool:
        return bool(self._over)

    async def ask(self, make: Callable[[int], Command]) -> Command:
        """The reply to a request, which is made of an id. Raises ConnectionError, WireError."""
        if self._over:
            raise ConnectionError(self._over)
        self._last_id += 1
        request_id = self._last_id
        answered = self._pending[request_id] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(self._encode(make(request_id)))
            reply: Command = await answered
            return reply
        finally:
            self._pending.pop(request_id, None)

    async def _read(self) -> None:
        why = "the store closed the connection"
        try:
            while data := await self._reader.read(_READ_BYTES):
                for command in self._decoder.feed(data):
                    request_id = getattr(command, "request_id", None)
                    answered = None if request_id is None else self._pending.get(request_id)
                    if answered is not None and not answered.done():
                        answered.set_result(command)
        except (OSError, WireError) as error:
            why = f"the connection to the store failed: {error}"
        finally:
            self._over = why
            for each in self._pending.values():
                if not each.done():
                    each.set_exception(ConnectionError(why))
            self._writer.transport.abort()

    async def aclose(self) -> None:
        """May be called twice."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


class RemoteSegments:
    """`SegmentAdmin` for stores in processes of their own."""

    def __init__(
        self,
        owners: Owners,
        containers: int,
        *,
        token: Callable[[str], str],
        wire_version: int,
        tls: ssl.SSLContext | None = None,
        patience_s: float = _PATIENCE_S,
        refused: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """token: returns a token for a stream, scope/stream, and its segments. wire_version: that of the stores.
        patience_s: timeout of a request. refused: the containers that cannot be opened, and why."""
        self._owners = owners
        self._containers = containers
        self._token = token
        self._version = wire_version
        self._tls = tls
        self._patience_s = patience_s
        self._refused = refused
        self._connections: dict[Endpoint, asyncio.Task[StoreConnection]] = {}

    def owner_of(self, segment: str) -> Endpoint:
        container_id = container_of(segment, self._containers)
        found = self._owners.of(container_id)
        if found is None:
            raise NobodyOwns(segment, "be found for", self._refused.get(container_id, ""))
        return found

    async def aclose(self) -> None:
        """Ends all connections. May be called twice."""
        opened, self._connections = self._connections, {}
        for task in opened.values():
            task.cancel()
        for each in await asyncio.gather(*opened.values(), return_exceptions=True):
            if isinstance(each, StoreConnection):
                await each.aclose()

    # --- one request ------------------------------------------------------------------------------------------------

    async def _connection(self, where: Endpoint) -> StoreConnection:
        task = self._connections.get(where)
        if task is not None and task.done() and (task.cancelled() or task.exception() or task.result().is_over):
            if not (task.cancelled() or task.exception()):
                await task.result().aclose()
            task = None
        if task is None:
            task = self._connections[where] = asyncio.create_task(
                StoreConnection.open(where, self._version, self._tls), name=f"connecting to {where.host}:{where.port}"
            )
        return await asyncio.shield(task)

    async def _ask(self, segment: str, did: str, make: MakeRequest, *expected: type[R]) -> R:
        """A reply of an expected type. Raises NobodyOwns, SegmentStoreFailed."""
        why: Exception | None = None
        container_id = container_of(segment, self._containers)
        stream = segment.rpartition("/")[0] or segment
        try:
            async with asyncio.timeout(self._patience_s):
                while True:
                    where = self._owners.of(container_id)
                    if where is not None:
                        try:
                            connection = await self._connection(where)
                            reply = await connection.ask(lambda request_id: make(request_id, self._token(stream)))
                        except OSError as error:
                            why = error
                        else:
                            if isinstance(reply, expected):
                                return reply
                            why = StoreRefused(reply)
                            if not isinstance(reply, WrongHost):
                                raise SegmentStoreFailed(segment, did) from why
                    elif container_id in self._refused:
                        raise NobodyOwns(segment, did, self._refused[container_id])
                    await asyncio.sleep(_ASK_AGAIN_S)
        except WireError as error:
            raise SegmentStoreFailed(segment, did) from error
        except TimeoutError as error:
            raise NobodyOwns(segment, did) from (why or error)

    # --- what the controller asks -----------------------------------------------------------------------------------

    async def create_segment(self, segment: str, scaling: ScalingPolicy, rollover_bytes: int) -> None:
        await self._ask(
            segment,
            "create",
            lambda number, token: CreateSegment(
                number, segment, scaling.kind, scaling.target_rate, token, rollover_bytes
            ),
            SegmentCreated,
            SegmentAlreadyExists,
        )

    async def update_policy(self, segment: str, scaling: ScalingPolicy) -> None:
        await self._ask(
            segment,
            "update",
            lambda number, token: UpdateSegmentPolicy(number, segment, scaling.kind, scaling.target_rate, token),
            SegmentPolicyUpdated,
            SegmentIsSealed,
        )

    async def seal_segment(self, segment: str) -> int:
        await self._ask(
            segment, "seal", lambda number, token: SealSegment(number, segment, token), SegmentSealed, SegmentIsSealed
        )
        return await self.segment_length(segment)

    async def segment_length(self, segment: str) -> int:
        return (await self._info(segment, "measure")).write_offset

    async def _info(self, segment: str, did: str) -> StreamSegmentInfo:
        return await self._ask(
            segment, did, lambda number, token: GetStreamSegmentInfo(number, segment, token), StreamSegmentInfo
        )

    async def append_event(self, segment: str, number: int, event: bytes) -> None:
        reply = await self._ask(
            segment,
            "set up appends to",
            lambda request_id, token: SetupAppend(request_id, CONTROLLER_WRITER, segment, token),
            AppendSetup,
        )
        if reply.last_event_number < number:
            await self._ask(
                segment,
                "append to",
                lambda request_id, _: AppendBlockEnd(CONTROLLER_WRITER, len(event), event, 1, number, request_id),
                DataAppended,
            )

    async def truncate_segment(self, segment: str, offset: int) -> None:
        if offset > (await self._info(segment, "truncate")).start_offset:
            await self._ask(
                segment,
                "truncate",
                lambda number, token: TruncateSegment(number, segment, offset, token),
                SegmentTruncated,
            )

    async def delete_segment(self, segment: str) -> None:
        await self._ask(
            segment,
            "delete",
            lambda number, token: DeleteSegment(number, segment, token),
            SegmentDeleted,
            NoSuchSegment,
        )

    async def merge_segments(self, target: str, sources: Sequence[str]) -> None:
        if (await self._info(target, "merge into")).is_sealed:
            raise SegmentStoreFailed(target, "merge into")
        await self._ask(
            target,
            "merge into",
            lambda number, token: MergeSegmentsBatch(number, target, list(sources), token),
            SegmentsBatchMerged,
        )

    async def create_table(self, segment: str, key_bytes: int, rollover_bytes: int) -> None:
        await self._ask(
            segment,
            "create",
            lambda number, token: CreateTableSegment(number, segment, False, key_bytes, token, rollover_bytes),
            SegmentCreated,
            SegmentAlreadyExists,
        )

    async def delete_table(self, segment: str) -> None:
        await self._ask(
            segment,
            "delete",
            lambda number, token: DeleteTableSegment(number, segment, False, token),
            SegmentDeleted,
            NoSuchSegment,
        )

    async def loads(self, segments: Sequence[str]) -> Mapping[str, Load]:
        loads: dict[str, Load] = {}
        for segment in segments:
            try:
                length = await self.segment_length(segment)
                events = await self._event_count(segment)
            except SegmentStoreFailed as error:
                log.debug("no load of %s: %s", segment, error.__cause__)
                continue
            loads[segment] = Load(events, length)
        return loads

    async def _event_count(self, segment: str) -> int:
        reply = await self._ask(
            segment,
            "count the events of",
            lambda number, token: GetSegmentAttribute(number, segment, EVENT_COUNT, token),
            SegmentAttribute,
        )
        return 0 if reply.value == NULL_VALUE else reply.value
