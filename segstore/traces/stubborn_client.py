"""A client that makes the requests of a trace and does not give up: for the explorer, and as a model of a careful one.

Appends are sent without waiting for each other, and so are reads, which may wait at the tail for what is written later;
all else waits for its reply. When the connection is lost it connects again, says Hello, sets its writers up again,
forgets the appends that the store says it has, and sends the others and the requests that were not answered once more.
A read that the trace does not answer is not waited for in the end.

Invariants: an append that the store has, by its answer to the set-up, is not sent again; it ends when all requests are
answered, or raises ConnectionError after `attempts` connections that brought nothing new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from segstore.server.replay import Step, request_frame
from segstore.wire import (
    AppendSetup,
    Command,
    ConditionalCheckFailed,
    DataAppended,
    FrameDecoder,
    Hello,
    KeepAlive,
    ReadSegment,
    SegmentRead,
    SetupAppend,
    WireError,
    encode,
)
from segstore.wire.blocks import Append


class TraceClient:
    """Makes requests, those of each connection of the trace on one of its own, in the order of the trace."""

    def __init__(self, steps: Sequence[Step], *, attempts: int = 5) -> None:
        self.steps = steps
        self.attempts = attempts

    async def run(self, host: str, port: int) -> None:
        """Makes all requests. Raises ConnectionError."""
        lines: dict[int, _Line] = {}
        try:
            for step in self.steps:
                line = lines.get(step.connection)
                if line is None:
                    line = lines[step.connection] = self.line(host, port)
                if not isinstance(step.item, Append | ReadSegment):
                    for each in lines.values():
                        await each.stored()  # what is asked may rest on what another connection has written
                await line.ask(step.item, answered=bool(step.replies))
            for line in lines.values():
                await line.stored()  # of all first: a read may wait for what another connection writes
            for line in lines.values():
                await line.settle()
        finally:
            for line in lines.values():
                await line.close()

    def line(self, host: str, port: int) -> _Line:
        """A connection, with what it takes to open it again."""
        return _Line(host, port, self.attempts)


class _Lost(Exception):
    """The connection is gone; it never leaves this module."""


class _Line:
    """One connection of the trace, over as many of its own as it takes."""

    def __init__(self, host: str, port: int, attempts: int) -> None:
        self._where = host, port
        self._attempts = attempts
        self._set_ups: dict[bytes, SetupAppend] = {}
        self._pending: list[Append] = []
        self._reads: list[ReadSegment] = []
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._decoder = FrameDecoder(unknown="keep")
        self._came: list[Command] = []

    async def ask(self, item: Command | Append, *, answered: bool = True) -> None:
        """Sends an append or a read, or makes a request and waits for its answer.

        answered: False of a read that nobody answered; `settle` does not wait for it.
        """
        if isinstance(item, Append):
            self._pending.append(item)
            try:
                if self._writer is not None:
                    self._writer.write(request_frame(item))
                    return
            except OSError:
                self._drop()
            return
        await self.stored()
        if isinstance(item, ReadSegment):
            await self._insist(lambda: self._send(item))
            if answered:
                self._reads.append(item)
            return
        await self._insist(lambda: self._request(item))
        if isinstance(item, SetupAppend):
            self._set_ups[item.writer_id.bytes] = item

    async def settle(self) -> None:
        """Waits until all appends are acknowledged and all reads are answered."""
        await self.stored()
        if self._reads:
            await self._insist(self._answered)

    async def stored(self) -> None:
        """Waits until all appends are acknowledged."""
        if self._pending:
            await self._insist(self._acknowledged)

    async def _answered(self) -> None:
        while self._reads:
            await self._more()

    async def _send(self, item: Command) -> None:
        assert self._writer is not None
        self._writer.write(encode(item))

    async def _insist(self, what: Callable[[], Awaitable[None]]) -> None:
        for _ in range(self._attempts):
            try:
                if self._writer is None:
                    await self._connect()
                await what()
            except (_Lost, OSError, WireError):
                self._drop()
            else:
                return
        raise ConnectionError(f"the store ended {self._attempts} connections in a row")

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(*self._where)
        self._decoder, self._came = FrameDecoder(unknown="keep"), []
        self._writer.write(encode(Hello(17, 5)))
        await self._until(lambda each: isinstance(each, Hello))
        for set_up in self._set_ups.values():
            self._writer.write(encode(set_up))
            answer = await self._until(_answers(set_up.request_id))
            if isinstance(answer, AppendSetup):
                self.resume(answer)
            else:  # its segment is gone, or sealed: what was on its way to there cannot arrive
                self._pending = [each for each in self._pending if each.writer_id != set_up.writer_id]
        for each in self._pending:
            self._writer.write(request_frame(each))
        for read in self._reads:
            self._writer.write(encode(read))

    def resume(self, answer: AppendSetup) -> None:
        """The store says how far it has a writer's events: what it has is not sent again."""
        self._pending = [
            each
            for each in self._pending
            if each.writer_id != answer.writer_id or each.event_number > answer.last_event_number
        ]

    async def _request(self, item: Command) -> None:
        assert self._writer is not None
        if isinstance(item, Hello):
            return  # a connection begins with it
        self._writer.write(encode(item))
        wanted = getattr(item, "request_id", None)
        if isinstance(item, KeepAlive):
            await self._until(lambda each: isinstance(each, KeepAlive))
        else:
            await self._until(_answers(wanted))

    async def _acknowledged(self) -> None:
        while self._pending:
            answer = await self._until(lambda _: True)
            if isinstance(answer, DataAppended | ConditionalCheckFailed):
                number, writer = answer.event_number, answer.writer_id
                self._pending = [
                    each for each in self._pending if each.writer_id != writer or each.event_number > number
                ]
            elif answer.is_failure:
                # Refused appends stay refused: their writer's others would be, too.
                refused = next((each.writer_id for each in self._pending if each.request_id == answer.request_id), None)
                self._pending = [each for each in self._pending if each.writer_id != refused]

    async def _until(self, wanted: Callable[[Any], bool]) -> Any:
        while True:
            for index, each in enumerate(self._came):
                if wanted(each):
                    del self._came[index]
                    return each
                if isinstance(each, DataAppended):
                    self._pending = [
                        it
                        for it in self._pending
                        if it.writer_id != each.writer_id or it.event_number > each.event_number
                    ]
            await self._more()

    async def _more(self) -> None:
        """Takes what comes next; the answer of a read is wanted by nobody else."""
        assert self._reader is not None
        data = await self._reader.read(1 << 16)
        if not data:
            raise _Lost
        # Payloads are views until the next feed; none is looked at behind it.
        for each in self._decoder.feed(data):
            read = next((read for read in self._reads if _answers_read(each, read)), None)
            if read is None:
                self._came.append(each)
            else:
                self._reads.remove(read)

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def close(self) -> None:
        """Ends the connection."""
        writer = self._writer
        if writer is not None:
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                self._drop()


def _answers(request_id: int | None) -> Callable[[Any], bool]:
    return lambda reply: getattr(reply, "request_id", None) == request_id


def _answers_read(reply: Any, read: ReadSegment) -> bool:
    """A refused read carries its offset in the place of its request id."""
    if isinstance(reply, SegmentRead):
        return reply.request_id == read.request_id
    return reply.is_failure and getattr(reply, "request_id", None) in (read.request_id, read.offset)


async def shortened(steps: Sequence[Step], breaks: Callable[[Sequence[Step]], Awaitable[bool]]) -> list[Step]:
    """The fewest steps, by leaving some out, with which it still breaks; first halves, then less (delta debugging)."""
    kept, size = list(steps), max(1, len(steps) // 2)
    while True:
        at, less = 0, False
        while at < len(kept):
            some = kept[:at] + kept[at + size :]
            if some and await breaks(some):
                kept, less = some, True
            else:
                at += size
        if size == 1 and not less:
            return kept
        size = max(1, size // 2) if not less or size > 1 else 1
