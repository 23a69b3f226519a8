"""SegmentAdmin for stores in this process: a session of the owning store, without a socket.

Pravega's controller uses connections of its own. So that a recording holds all requests of its store and can be
replayed to another, these calls are recorded as the requests and replies of one connection per store, whose opening
record has `"role": "controller"`.

Invariants: waiting reads that a change wakes are answered before the call returns; a query or a failed request changes
nothing and is not recorded. Refused: a segment that no store owns; with several stores, the request may be retried.
Deliberate difference: recorded requests carry no delegation token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from segstore.server.connection import Session
from segstore.server.controller import NobodyOwns, SegmentAdmin, SegmentStoreFailed
from segstore.server.node import SegmentStoreServer
from segstore.server.store import NotOwner
from segstore.wire import Command, decode, encode
from segstore.wire import commands as c
from segstore.wire.blocks import AppendBlockDecoder
from segstore.wire.endpoint import Endpoint
from segstore.wire.names import container_of
from segstore.wire.protocol import HELLO
from segstore.wire.trace import Direction

if TYPE_CHECKING:
    from segstore.server.recording import Recorder

_AT_ONCE: Final = 256
"""Number of requests in one loop iteration; a request takes about 50 µs."""
ROLE: Final = "controller"
_QUERIES: Final = (
    *(c.GetSegmentAttribute, c.GetStreamSegmentInfo, c.GetTableSegmentInfo),
    *(c.LocateOffset, c.ReadSegment, c.ReadTableEntries),
)


class LocalSegments(SegmentAdmin):
    def __init__(
        self,
        servers: Sequence[SegmentStoreServer],
        public_host: str,
        recorder: Callable[[], Recorder | None] = lambda: None,
    ) -> None:
        """recorder: returns the current recorder, or None."""
        self._servers = servers
        self._public_host = public_host
        # What a single store does not own will never be owned; one of several stores will own it soon.
        self._failed = SegmentStoreFailed if len(servers) == 1 else NobodyOwns
        self._sessions: dict[int, _LocalSession] = {}
        self._asked = 0
        self._recorder = recorder
        self._connections: dict[Endpoint, tuple[Recorder, int]] = {}
        self._recorded = 0

    def close(self) -> None:
        """Records that the connections close. May be called twice."""
        while self._connections:
            _, (recorder, number) = self._connections.popitem()
            recorder.closed(number, Direction.REQUEST)

    def server_of(self, segment: str, did: str = "be found for") -> SegmentStoreServer:
        """The store that owns the segment's container. did: as for `ask`. Raises SegmentStoreFailed."""
        for server in self._servers:
            if server.store.owns(segment):
                return server
        container = container_of(segment, self._servers[0].settings.containers)
        raise self._failed(segment, did) from NotOwner(segment, container=container)

    def owner_of(self, segment: str) -> Endpoint:
        address = self.server_of(segment).address
        assert address is not None
        return Endpoint(self._public_host, address.port)

    async def ask(self, segment: str, did: str, request: Command) -> Command:
        self._asked += 1
        if self._asked % _AT_ONCE == 0:  # a call about thousands of segments must not stop all other calls
            await asyncio.sleep(0)
        server = self.server_of(segment, did)
        session = self._sessions.get(server.number)
        if session is None or session.server is not server or session.ended:
            if session is not None:
                session.close()
            session = self._sessions[server.number] = _LocalSession(server)
        reply = session.ask(request)
        if reply is None:
            raise SegmentStoreFailed(segment, did) from ConnectionError(session.why)
        if isinstance(reply, c.WrongHost):
            raise self._failed(segment, did)
        recorder = self._recorder()
        if recorder is not None and not reply.is_failure and not isinstance(request, _QUERIES):
            number = self._connection(recorder, self.owner_of(segment))
            self._recorded += 1
            recorder.received(number, encode(msgspec.structs.replace(request, request_id=self._recorded)))
            recorder.sent(number, [encode(msgspec.structs.replace(reply, request_id=self._recorded))])
        return reply

    def _connection(self, recorder: Recorder, store: Endpoint) -> int:
        """Returns the recorded connection to a store, which is opened if needed."""
        known = self._connections.get(store)
        if known is not None and known[0] is recorder:
            return known[1]
        number = recorder.opened(peer=ROLE, role=ROLE, store=f"{store.host}:{store.port}")
        self._connections[store] = recorder, number
        hello = encode(HELLO)
        recorder.received(number, hello)
        recorder.sent(number, [hello])
        return number


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
        if isinstance(request, c.SetupAppend | c.AppendBlockEnd):
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
