"""The requests of a connection that may still change: they lack a reply, an ack or a failure.

A reply answers the oldest request with its id that waits: a queue. An ack covers the appends of its writer's epoch up
to its number: a heap. A failure concerns the appends with its id that have neither.

Invariant: memory is bounded by `held` requests, however many wait: if a store acknowledges only every tenth append,
nine of ten wait for a reply of their own until the connection ends. When there are more, the older half goes to a
temporary SQLite database, which keeps its pages in a file of its own and is deleted when closed. All requests of a
queue on disk are older than its requests in memory. A writer's heap has at most about twice `held` requests, however
many were refused. Results do not depend on `held`.
"""

from __future__ import annotations

import marshal
import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, Final

from segstore.pipeline.report.exchange import Request, Row, to_row

HELD: Final = 100_000
"""Requests of one connection in memory, some hundred bytes per request."""

_MANY: Final = 16

_SCHEMA: Final = """
PRAGMA journal_mode = OFF;
CREATE TABLE old (number INTEGER PRIMARY KEY, queue, epoch, event_number, request, reply, ack, failure);
CREATE INDEX waiting ON old (queue, number) WHERE reply IS NULL;
CREATE INDEX unacked ON old (epoch, event_number) WHERE ack IS NULL;
CREATE INDEX failing ON old (queue) WHERE ack IS NULL AND failure IS NULL;
"""
_SELECT: Final = "SELECT number, request, reply, ack, failure FROM old"


class UnfinishedRequests:
    """Unfinished requests. held: how many are in memory at most."""

    def __init__(self, held: int = HELD) -> None:
        self._held = held
        self._requests: dict[int, Request] = {}
        self._queues: dict[Any, deque[Request]] = {}
        self._may_fail: dict[Any, list[Request]] = {}
        self._unacked: dict[int, list[tuple[int, int, Request]]] = {}
        self._disk: sqlite3.Connection | None = None

    def __len__(self) -> int:
        """How many requests are in memory."""
        return len(self._requests)

    def add(self, request: Request, *, append: bool) -> None:
        """Adds a request to its queue."""
        queue = request.row.queue
        waiting = self._queues.get(queue)
        if waiting is None:
            self._queues[queue] = deque((request,))
        else:
            waiting.append(request)
        if append and not request.repeated:
            self._add_append(request, queue)
        self._requests[request.number] = request
        if len(self._requests) > self._held:
            self._move()

    def _add_append(self, request: Request, queue: Any) -> None:
        failing = self._may_fail.setdefault(queue, [])
        failing.append(request)
        if len(failing) >= _MANY and not len(failing) & (len(failing) - 1):  # at powers of 2: cheap if all have one id
            failing[:] = [append for append in failing if append.ack is None]
        assert request.epoch is not None
        unacked = self._unacked.setdefault(request.epoch, [])
        if len(unacked) > 2 * len(self._requests) + _MANY:  # more than half were refused
            self._drop_gone(unacked)
        heappush(unacked, (request.row.event_number, request.number, request))

    def _drop_gone(self, unacked: list[tuple[int, int, Request]]) -> None:
        """Drops the requests that are not in memory any more from a heap."""
        unacked[:] = [entry for entry in unacked if entry[1] in self._requests]
        heapify(unacked)

    def answer(self, reply: Row) -> Request | None:
        """Gives a reply to the oldest request that waits for it; returns the request, or None."""
        queue = reply.queue
        request = self._oldest(queue)
        if request is not None:
            assert self._disk is not None
            self._disk.execute("UPDATE old SET reply = ? WHERE number = ?", (_packed(reply), request.number))
        else:
            waiting = self._queues.get(queue)
            if waiting is None:
                return None
            request = waiting.popleft()
            if not waiting:
                del self._queues[queue]
        request.reply = reply
        return request

    def fail(self, failure: Row) -> None:
        """Gives a failure to the appends with its id that have neither an ack nor a failure."""
        for append in self._may_fail.pop(failure.queue, ()):
            append.failure = failure
        if self._disk is not None:
            self._disk.execute(
                "UPDATE old SET failure = ? WHERE queue IS ? AND ack IS NULL AND failure IS NULL",
                (_packed(failure), failure.queue),
            )

    def acknowledge(self, epoch: int, ack: Row) -> list[Request]:
        """Gives an ack to the appends of an epoch up to its number; returns the appends in memory."""
        unacked, held = self._unacked.get(epoch, []), []
        while unacked and unacked[0][0] <= ack.event_number:
            request = heappop(unacked)[2]
            request.ack = ack
            if request.number in self._requests:
                held.append(request)
            failing = self._may_fail.get(request.row.queue)
            if failing is not None and len(failing) < _MANY:
                failing[:] = [append for append in failing if append.ack is None]
                if not failing:
                    del self._may_fail[request.row.queue]
        if self._disk is not None:
            self._disk.execute(
                "UPDATE old SET ack = ? WHERE epoch = ? AND event_number <= ? AND ack IS NULL",
                (_packed(ack), epoch, ack.event_number),
            )
        return held

    def close(self, epoch: int) -> None:
        """Forgets which appends of an epoch are not acknowledged: no ack covers them after the writer's set-up."""
        self._unacked.pop(epoch, None)

    def finish(self, request: Request) -> bool:
        """Removes a request that does not change any more; returns whether it was here."""
        if self._requests.pop(request.number, None) is not None:
            return True
        if self._disk is None:
            return False
        return self._disk.execute("DELETE FROM old WHERE number = ?", (request.number,)).rowcount > 0

    def rest(self) -> Iterator[Request]:
        """Yields the remaining requests, in order, and ends the use of this object."""
        if self._disk is not None:
            with closing(self._disk):
                yield from map(_unpacked, self._disk.execute(f"{_SELECT} ORDER BY number"))
        yield from self._requests.values()

    def _oldest(self, queue: Any) -> Request | None:
        """Returns the oldest waiting request on disk."""
        if self._disk is None:
            return None
        columns = self._disk.execute(
            f"{_SELECT} WHERE queue IS ? AND reply IS NULL ORDER BY number LIMIT 1", (queue,)
        ).fetchone()
        return None if columns is None else _unpacked(columns)

    def _move(self) -> None:
        """Moves the older half to disk."""
        if self._disk is None:
            self._disk = sqlite3.connect("")
            self._disk.executescript(_SCHEMA)
        old = list(islice(self._requests.values(), (len(self._requests) + 1) // 2))
        self._disk.executemany("INSERT INTO old VALUES (?, ?, ?, ?, ?, ?, ?, ?)", map(_columns, old))
        for request in old:
            del self._requests[request.number]
        for queue in {request.row.queue for request in old}:
            waiting = self._queues.pop(queue, ())
            if left := deque(request for request in waiting if request.number in self._requests):
                self._queues[queue] = left
            failing = self._may_fail.pop(queue, ())
            if stay := [request for request in failing if request.number in self._requests]:
                self._may_fail[queue] = stay
        for unacked in [self._unacked[epoch] for epoch in self._unacked.keys() & {request.epoch for request in old}]:
            self._drop_gone(unacked)


def _columns(request: Request) -> tuple[Any, ...]:
    row = request.row
    fixed = tuple(row), request.repeated, request.epoch, request.writer_segment, request.block_bytes
    later = (request.reply, request.ack, request.failure)
    ackable = request.epoch is not None and not request.repeated
    return (
        request.number, row.queue, request.epoch if ackable else None, row.event_number, marshal.dumps(fixed),
        *(None if each is None else _packed(each) for each in later),
    )  # fmt: skip


def _packed(row: Row) -> bytes:
    return marshal.dumps(tuple(row))


def _unpacked(columns: tuple[Any, ...]) -> Request:
    number, fixed, *later = columns
    row, *values = marshal.loads(fixed)
    request = Request(to_row(row), number)
    request.repeated, request.epoch, request.writer_segment, request.block_bytes = values
    request.reply, request.ack, request.failure = (
        None if data is None else to_row(marshal.loads(data)) for data in later
    )
    return request
