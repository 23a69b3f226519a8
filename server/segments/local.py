"""SegmentAdmin for stores in this process: a session of the owning store, without a socket.

Invariant: waiting reads that a change wakes are answered before the call returns. Refused: a segment that no store
owns; with several stores, the request may be retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from segstore.server.connection import Session
from segstore.server.controller import Endpoint, NobodyOwns, SegmentAdmin, SegmentStoreFailed
from segstore.server.node import SegmentStoreServer
from segstore.server.store import NotOwner
from segstore.wire import AppendBlockEnd, Command, SetupAppend, WrongHost, decode
from segstore.wire.blocks import AppendBlockDecoder
from segstore.wire.names import container_of

_AT_ONCE: Final = 256
"""Number of requests in one loop iteration; a request takes about 50 µs."""


class LocalSegments(SegmentAdmin):
    def __init__(self, servers: Sequence[SegmentStoreServer], public_host: str) -> None:
        self._servers = servers
        self._public_host = public_host
        # What a single store does not own will never be owned; one of several stores will own it soon.
        self._failed = SegmentStoreFailed if len(servers) == 1 else NobodyOwns
        self._sessions: dict[int, _LocalSession] = {}
        self._asked = 0

    def server_of(self, segment: str) -> SegmentStoreServer:
        """The store that owns the segment's container. Raises NotOwner."""
        for server in self._servers:
            if server.store.owns(segment):
                return server
        raise NotOwner(segment, container=container_of(segment, self._servers[0].settings.containers))

    def owner_of(self, segment: str) -> Endpoint:
        try:
            server = self.server_of(segment)
        except NotOwner as error:
            raise self._failed(segment, "be found for") from error
        assert server.address is not None
        return Endpoint(self._public_host, server.address[1])

    async def ask(self, segment: str, did: str, request: Command) -> Command:
        self._asked += 1
        if self._asked % _AT_ONCE == 0:  # a call about thousands of segments must not stop all other calls
            await asyncio.sleep(0)
        try:
            server = self.server_of(segment)
        except NotOwner as error:
            raise self._failed(segment, did) from error
        session = self._sessions.get(server.number)
        if session is None or session.server is not server or session.ended:
            if session is not None:
                session.close()
            session = self._sessions[server.number] = _LocalSession(server)
        reply = session.ask(request)
        if reply is None:
            raise SegmentStoreFailed(segment, did) from ConnectionError(session.why)
        if isinstance(reply, WrongHost):
            raise self._failed(segment, did)
        return reply


class _LocalSession(Session):
    """A session that needs no token, has the default limits, and returns replies as they are."""

    def __init__(self, server: SegmentStoreServer) -> None:
        self.server = server
        self._requests = server.service.unguarded()
        self._appends = AppendBlockDecoder()
        self._replied: Command | None = None
        super().__init__(self._requests, "the controller", admin=False, on_reply=lambda: None, blocks=self._appends)

    def ask(self, request: Command) -> Command | None:
        """Returns the reply; None if the session ends without a reply."""
        self._replied = None
        if isinstance(request, SetupAppend | AppendBlockEnd):
            self.receive_all(self._appends.feed_all((request,)))
            if self.out:  # an acknowledgement
                self._replied = decode(self.take_out()[0])
        else:
            self._requests.handle(self, request)
        self.server.service.answer_waiting()
        return self._replied

    def reply(self, command: Command) -> None:
        self._replied = command

    reply_with_payload = reply
