"""A client that makes the requests of a trace and retries: for the explorer, and as a model of a correct client.

Appends are pipelined, and so are reads, which may wait at the tail for later writes; every other request waits for its
reply. After a lost connection the client reconnects, repeats the handshake and the set-up of its writers, drops the
appends that the store reports as stored, and resends the others and the unanswered requests. It does not wait for a
read that the trace does not answer.

Invariants: an append that the store reports as stored in its set-up reply is not resent; a run ends when all requests
are answered, or raises ConnectionError after `_ATTEMPTS` connections in a row were lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from uuid import UUID

from segstore.server.replay import Step
from segstore.wire import (
    AppendSetup,
    Command,
    ConditionalCheckFailed,
    DataAppended,
    FrameDecoder,
    Hello,
    ReadSegment,
    SetupAppend,
    WireError,
)
from segstore.wire.blocks import Append
from segstore.wire.protocol import ClientProtocol

_LAST_NUMBER: Final = 2**63 - 1
_ATTEMPTS: Final = 5


class TraceClient:
    """Makes the requests of a trace in order, with one connection per connection of the trace."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps

    async def run(self, host: str, port: int) -> None:
        """Makes all requests. Raises ConnectionError."""
        lines: dict[int, _Line] = {}
        try:
            for step in self.steps:
                line = lines.get(step.connection)
                if line is None:
                    line = lines[step.connection] = self.line(host, port)
                if not isinstance(step.item, Append | ReadSegment):
                    for other in lines.values():
                        await other.stored()  # the request may depend on writes of another connection
                await line.ask(step.item, answered=bool(step.replies))
            for line in lines.values():
                await line.stored()  # all of them first: a read may wait for writes of another connection
            for line in lines.values():
                await line.settle()
        finally:
            for line in lines.values():
                await line.close()

    def line(self, host: str, port: int) -> _Line:
        """A connection that reopens itself."""
        return _Line(host, port)


class _Lost(Exception):
    """The connection was lost. Never raised out of this module."""


class _Line:
    """One connection of the trace, over one or more real connections."""

    def __init__(self, host: str, port: int) -> None:
        self._where = host, port
        self._set_ups: dict[bytes, SetupAppend] = {}
        self._pending: list[Append] = []
        self._reads: list[ReadSegment] = []
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._protocol: ClientProtocol[Command | Append] = ClientProtocol()
        self._replies: list[Command] = []

    async def ask(self, item: Command | Append, *, answered: bool = True) -> None:
        """Sends an append or a read, or makes a request and waits for its answer.

        answered: False for a read without a reply in the trace; `settle` does not wait for it.
        """
        if isinstance(item, Append):
            self._pending.append(item)
            try:
                if self._streams is not None:
                    self._send(item)
            except OSError:
                self._drop()
            return
        await self.stored()
        if isinstance(item, ReadSegment):
            await self._retry(lambda: self._sent(item))
            if answered:
                self._reads.append(item)
        elif not isinstance(item, Hello):  # every connection begins with one
            await self._retry(lambda: self._request(item))
            if isinstance(item, SetupAppend):
                self._set_ups[item.writer_id.bytes] = item

    async def settle(self) -> None:
        """Waits until all appends are acknowledged and all reads are answered."""
        await self.stored()
        if self._reads:
            await self._retry(lambda: self._until(lambda: not self._reads))

    async def stored(self) -> None:
        """Waits until all appends are acknowledged."""
        if self._pending:
            await self._retry(lambda: self._until(lambda: not self._pending))

    async def _retry(self, what: Callable[[], Awaitable[object]]) -> None:
        for _ in range(_ATTEMPTS):
            try:
                if self._streams is None:
                    await self._connect()
                await what()
            except (_Lost, OSError, WireError):
                self._drop()
            else:
                return
        raise ConnectionError(f"the store ended {_ATTEMPTS} connections in a row")

    async def _connect(self) -> None:
        _, writer = self._streams = await asyncio.open_connection(*self._where)
        self._protocol = ClientProtocol(decoder=FrameDecoder(unknown="keep"))
        writer.write(self._protocol.hello())
        await self._until(lambda: self._protocol.peer is not None)
        for set_up in self._set_ups.values():
            answer = await self._request(set_up)
            if isinstance(answer, AppendSetup):
                self.resume(answer)
            else:  # its segment is deleted or sealed: pending appends cannot be stored
                self._forget(set_up.writer_id)
        items: list[Command | Append] = [*self._pending, *self._reads]
        for item in items:
            self._send(item)

    def resume(self, answer: AppendSetup) -> None:
        """Drops the appends that the store already has, by its reply to a set-up."""
        self._forget(answer.writer_id, answer.last_event_number)

    def _forget(self, writer_id: UUID, number: int = _LAST_NUMBER) -> None:
        """Drops the pending appends of a writer up to an event number."""
        self._pending = [
            append for append in self._pending if append.writer_id != writer_id or append.event_number > number
        ]

    def _send(self, item: Command | Append) -> None:
        assert self._streams is not None
        self._streams[1].write(self._protocol.send(item, item))

    async def _sent(self, item: Command) -> None:
        self._send(item)

    async def _request(self, item: Command) -> Command:
        """Makes a request and returns its reply."""
        self._replies.clear()
        self._send(item)
        await self._until(lambda: bool(self._replies))
        return self._replies.pop()

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert self._streams is not None
            data = await self._streams[0].read(1 << 16)
            if not data:
                raise _Lost
            # Payloads are views until the next read; none is looked at after it.
            for reply, answered in self._protocol.receive(data):
                for item in answered:
                    self._take(item, reply)

    def _take(self, item: Command | Append, reply: Command) -> None:
        if isinstance(item, Append):
            if isinstance(reply, DataAppended | ConditionalCheckFailed):
                self._forget(item.writer_id, item.event_number)
            else:  # a refusal is final for all appends of the writer
                self._forget(item.writer_id)
        elif not isinstance(item, ReadSegment):
            self._replies.append(reply)
        elif item in self._reads:
            self._reads.remove(item)

    def _drop(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._streams = None

    async def close(self) -> None:
        """Closes the connection."""
        if self._streams is not None:
            writer = self._streams[1]
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                self._drop()


async def shortened(steps: Sequence[Step], breaks: Callable[[Sequence[Step]], Awaitable[bool]]) -> list[Step]:
    """A minimal subset of the steps that still breaks, found by delta debugging: removes halves, then smaller parts."""
    steps_left, size = list(steps), max(1, len(steps) // 2)
    while True:
        at, less = 0, False
        while at < len(steps_left):
            some = steps_left[:at] + steps_left[at + size :]
            if some and await breaks(some):
                steps_left, less = some, True
            else:
                at += size
        if size == 1 and not less:
            return steps_left
        size = max(1, size // 2) if not less or size > 1 else 1
