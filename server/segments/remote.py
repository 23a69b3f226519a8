"""SegmentAdmin for a cluster of processes: asks the owner of each segment over the wire.

There is one connection per store, opened when needed. Every request can be retried: if a store is gone or no longer
owns the container, the owner is looked up again until the deadline.

Invariant: a request ends by its deadline. After `aclose` there is no connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from segstore.server.controller import NobodyOwns, SegmentAdmin, SegmentStoreFailed
from segstore.server.shared_folder import Owners
from segstore.wire import Command, WireError, WrongHost
from segstore.wire.endpoint import Endpoint
from segstore.wire.names import container_of
from segstore.wire.protocol import ClientProtocol

_PATIENCE_S: Final = 10.0
_ASK_AGAIN_S: Final = 0.05
_READ_BYTES: Final = 256 * 1024


class StoreConnection:
    """A connection to one store: requests and their replies. Made by `open`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol: ClientProtocol[asyncio.Future[Command]] = ClientProtocol(version)
        self._last_id = 0
        self._over = ""
        writer.write(self._protocol.hello())
        self._reading = asyncio.create_task(self._read(), name="controller's connection to a store")

    @classmethod
    async def open(cls, where: Endpoint, version: int, tls: ssl.SSLContext | None) -> StoreConnection:
        """Connects to a store. Raises OSError."""
        reader, writer = await asyncio.open_connection(
            where.host, where.port, ssl=tls, server_hostname=None if tls is None else where.host
        )
        return cls(reader, writer, version)

    @property
    def is_over(self) -> bool:
        return bool(self._over)

    async def ask(self, request: Command) -> Command:
        """Sends a request under an id of its own and returns the reply. Raises ConnectionError, WireError."""
        if self._over:
            raise ConnectionError(self._over)
        self._last_id += 1
        request = msgspec.structs.replace(request, request_id=self._last_id)
        answered: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._writer.write(self._protocol.send(request, answered))
        try:
            return await answered
        finally:
            self._protocol.requests.forget(request)

    async def _read(self) -> None:
        why = "the store closed the connection"
        try:
            while data := await self._reader.read(_READ_BYTES):
                for reply, asked in self._protocol.receive(data):
                    for answered in asked:
                        if not answered.done():
                            answered.set_result(reply)
        except (OSError, WireError) as error:
            why = f"the connection to the store failed: {error}"
        finally:
            self._over = why
            for request in self._protocol.requests:
                if not request.done():
                    request.set_exception(ConnectionError(why))
            self._writer.transport.abort()

    async def aclose(self) -> None:
        """Closes the connection. May be called twice."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


class RemoteSegments(SegmentAdmin):
    def __init__(
        self,
        owners: Owners,
        containers: int,
        *,
        token: Callable[[str], str],
        wire_version: int,
        tls: ssl.SSLContext | None = None,
        refused: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """token: returns a token for a stream (scope/stream) and its segments. wire_version: the stores' version.
        refused: the containers that cannot be opened, with the reasons.
        """
        self._owners = owners
        self._containers = containers
        self._token = token
        self._version = wire_version
        self._tls = tls
        self._refused = refused
        self._connections: dict[Endpoint, asyncio.Task[StoreConnection]] = {}

    def owner_of(self, segment: str) -> Endpoint:
        container_id = container_of(segment, self._containers)
        owner = self._owners.of(container_id)
        if owner is None:
            raise NobodyOwns(segment, "be found for", self._refused.get(container_id, ""))
        return owner

    async def aclose(self) -> None:
        """Closes all connections. May be called twice."""
        opened, self._connections = self._connections, {}
        for task in opened.values():
            task.cancel()
        for connection in await asyncio.gather(*opened.values(), return_exceptions=True):
            if isinstance(connection, StoreConnection):
                await connection.aclose()

    # --- one request ------------------------------------------------------------------------------------------------

    async def _connection(self, where: Endpoint) -> StoreConnection:
        task = self._connections.get(where)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().is_over)):
            task = self._connections[where] = asyncio.create_task(
                StoreConnection.open(where, self._version, self._tls), name=f"connecting to {where.host}:{where.port}"
            )
        return await asyncio.shield(task)

    async def ask(self, segment: str, did: str, request: Command) -> Command:
        why: Exception | None = None
        container_id = container_of(segment, self._containers)
        stream = segment.rpartition("/")[0] or segment
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while True:
                    where = self._owners.of(container_id)
                    if where is not None:
                        try:
                            connection = await self._connection(where)
                            reply = await connection.ask(self._with_token(request, stream))
                        except OSError as error:
                            why = error
                        else:
                            if not isinstance(reply, WrongHost):
                                return reply
                            why = ConnectionError(f"the store answered {reply}")
                    elif container_id in self._refused:
                        raise NobodyOwns(segment, did, self._refused[container_id])
                    await asyncio.sleep(_ASK_AGAIN_S)
        except WireError as error:
            raise SegmentStoreFailed(segment, did) from error
        except TimeoutError as error:
            raise NobodyOwns(segment, did) from (why or error)

    def _with_token(self, request: Command, stream: str) -> Command:
        if not hasattr(request, "delegation_token"):
            return request
        return msgspec.structs.replace(request, delegation_token=self._token(stream))
