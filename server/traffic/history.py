"""The latest requests of the kept traffic, paired with their replies when they are asked for.

Requests have the numbers that the traffic gave them on arrival. A query examines the newest records first, four times
as many whenever these were too few, and at most `_MOST_RECORDS`. An append is one request, that of its AppendBlockEnd;
the frame of its events comes along. What the lanes know of a request, such as the fault rules that have fired, is found
in the log of requests (`segstore.server.faults.observe`) by its number, as long as that has it.

Invariants: the store continues to serve while a query runs, and queries run one at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec

from segstore.server.faults import Seen
from segstore.server.recording import WITH_ROLE
from segstore.wire import Unknown
from segstore.wire.trace import Direction, Exchange, Exchanges, check_possible, parse_filter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from segstore.server.faults import Faults
    from segstore.server.traffic.traffic import Traffic
    from segstore.wire.trace import Filter, Record

_AT_ONCE: Final = 200
"""Records that are decoded in one loop iteration."""
_FIRST_LOOK: Final = 512
_MOST_RECORDS: Final = 30_000
_MOST_SEEN: Final = 1_000
_AROUND: Final = 2_000
"""Records on each side of a request among which its reply and its neighbours are looked for."""


class RecordedRequest:
    """A request and its reply.

    Attributes:
        number: of the request.
        request: its frame or call; `block` of an append is the frame before it, with its events, unless discarded.
        reply: the first reply; None if there is none yet.
        known: what a lane knows about it; None for appends that passed the rules together, and old requests.
        given_up: whether the client closed the connection while it, a read, waited for data.
    """

    def __init__(self, number: int, request: Exchange, time_ns: int, known: Seen | None) -> None:
        """time_ns: since the start of the traffic."""
        self.number = number
        self.request = request
        self.reply: Exchange | None = None
        self.known = known
        self.given_up = False
        self._time_ns = time_ns

    @property
    def faults(self) -> tuple[str, ...]:
        """Actions of the fault rules that fired."""
        return () if self.known is None else self.known.faults

    @property
    def size(self) -> int:
        """In bytes, with headers; of an append also those of its block."""
        return self.request.size + (0 if self.request.block is None else self.request.block.size)

    @cached_property
    def seen(self) -> Seen:
        """The recorded facts, as of now: the subject of filters. The store is 0, whichever it was."""
        request, command, received_s = self.request, self.request.command, self._time_ns / 1e9
        latency_ns = request.latency_ns
        replied_s = None if latency_ns is None else received_s + latency_ns / 1e9
        return Seen(
            self.number,
            0,
            request.connection,
            request.name if request.call is not None else request.type_name or "",
            request.code,
            request.segments,
            request.request_id,
            request.writer_id,
            self.size,
            received_s,
            0.0,
            event_number=getattr(command, "last_event_number", getattr(command, "event_number", -1)),
            event_count=getattr(command, "num_events", 1),
            applied_s=None if request.failure else replied_s,
            refused_s=replied_s if request.failure else None,
            replied_s=replied_s,
            reply=None if self.reply is None else self.reply.status or self.reply.type_name,
            faults=self.faults,
            failure=request.failure,
            call=request.call,
            malformed=request.malformed,
            payload=request.payload,
        )

    @property
    def is_of_client(self) -> bool:
        """Whether it is a request of a client; those of the controller in this process, and what is no request, are
        only listed."""
        request = self.request
        return not (request.malformed or isinstance(request.command, Unknown) or request.connection > WITH_ROLE)

    @property
    def observed(self) -> Seen:
        """The facts as the log of requests has them: what its lane knows, with its payload; else those recorded."""
        known = self.known
        return self.seen if known is None else msgspec.structs.replace(known, payload=self.request.payload)

    @property
    def stage(self) -> str:
        """The last stage that it is known to have reached."""
        if self.reply is not None:
            return "replied"
        if self.known is not None and self.known.refused_s is not None:
            return "refused"
        if self.known is not None and self.known.applied_s is not None:
            return "applied"
        return "given up" if self.given_up else "received"


class _Pairs:
    """Makes requests of records, which it takes in order."""

    def __init__(self, traffic: Traffic, known: Mapping[int, Seen]) -> None:
        self.requests: list[RecordedRequest] = []
        self._started_ns = traffic.started_ns
        self._exchanges = Exchanges(writers=traffic.writers)
        self._known = known
        self._waiting: dict[int, RecordedRequest] = {}

    def see(self, number: int, record: Record) -> Exchange:
        """number: of the request; 0 for other records."""
        seen = self._exchanges.see(record)
        for read in seen.given_up:
            if (request := self._waiting.pop(id(read), None)) is not None:
                request.given_up = True
        for answer in seen.answers if record.direction is Direction.REPLY else ():
            if (request := self._waiting.pop(id(answer), None)) is not None:
                request.reply = seen
        if number:
            request = RecordedRequest(number, seen, record.ts_ns - self._started_ns, self._known.get(number))
            self._waiting[id(seen)] = request
            self.requests.append(request)
        return seen


class History:
    """The latest requests of the kept traffic. faults: of the same stores, if there are any."""

    def __init__(self, traffic: Traffic, faults: Faults | None) -> None:
        self.traffic = traffic
        self._faults = faults
        self._looking = asyncio.Lock()

    def _pairs(self) -> _Pairs:
        observer = None if self._faults is None else self._faults.observer
        return _Pairs(self.traffic, {} if observer is None else observer.by_number())

    async def _paired(self, first: int, last: int) -> list[RecordedRequest]:
        """Returns the requests among the records from `first` to `last`."""
        pairs = self._pairs()
        for done, (_, number, record) in enumerate(self.traffic.records(first, last), 1):
            pairs.see(number, record)
            if done % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return pairs.requests

    def newest(self) -> list[Seen]:
        """Returns the latest requests, newest first: those among the last 1,000 records."""
        last, pairs = self.traffic.flush(), self._pairs()
        for _, number, record in self.traffic.records(max(self.traffic.first, last + 1 - _MOST_SEEN), last):
            pairs.see(number, record)
        return [request.observed for request in reversed(pairs.requests) if request.is_of_client]

    async def since(self, number: int) -> tuple[list[Seen], bool]:
        """Returns all requests kept with a greater number, newest first, and whether one is pending that no lane knows:
        its answer will be found here alone.
        """
        async with self._looking:
            last = self.traffic.flush()
            if number >= self.traffic.last_request:
                return [], False
            requests = await self._paired(self.traffic.place_of(number + 1) - _AROUND, last)
            later = [request for request in reversed(requests) if request.number > number and request.is_of_client]
        return [request.observed for request in later], any(each.known is None and each.reply is None for each in later)

    async def find(self, match: str, *, limit: int, after: int = 0) -> list[RecordedRequest]:
        """Returns the last `limit` requests that match, newest first. after: only those with a greater number.

        Raises FilterError; ValueError if nothing matches because no request can match.
        """
        holds = parse_filter(match) if match.strip() else None
        async with self._looking:
            last, size = self.traffic.flush(), max(_FIRST_LOOK, 8 * limit)
            lowest = max(self.traffic.first, last + 1 - _MOST_RECORDS)
            while True:
                first = max(lowest, last + 1 - size)
                requests = await self._paired(first, last)
                matches = await _matching(requests, holds, limit, after)
                if len(matches) == limit or first == lowest or (requests and requests[0].number <= after):
                    break
                size *= 4
        if holds is not None and not matches:  # clients may send bytes that are no request
            check_possible(holds, "log")
        return matches

    async def about(self, number: int, around: int) -> tuple[RecordedRequest | None, list[tuple[int, Exchange]]]:
        """Returns a request with its reply, and the records around it on its connection, at most `around` on each side,
        with the numbers of requests, 0 for others.

        None if it is not kept.
        """
        async with self._looking:
            last = self.traffic.flush()
            place = self.traffic.place_of(number)
            connection = next((record.connection for _, _, record in self.traffic.records(place, place) if place), None)
            pairs, named = self._pairs(), None
            before, behind = deque[tuple[int, Exchange]](maxlen=around), list[tuple[int, Exchange]]()
            records = self.traffic.records(max(1, place - _AROUND), min(last, place + _AROUND))
            for done, (at, request, record) in enumerate(records if place else (), 1):
                if done % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                if record.connection != connection:
                    continue
                seen = pairs.see(request, record)
                if at == place:
                    named = pairs.requests[-1]
                elif at < place:
                    before.append((request, seen))
                elif len(behind) < around:
                    behind.append((request, seen))
        return (None, []) if named is None else (named, [*before, (number, named.request), *behind])


async def _matching(
    requests: Sequence[RecordedRequest], holds: Filter | None, limit: int, after: int
) -> list[RecordedRequest]:
    """Returns the last requests that match, newest first. Examines `_AT_ONCE` requests per loop iteration."""
    matches: list[RecordedRequest] = []
    for looked_at, request in enumerate(reversed(requests), 1):
        if request.number <= after or len(matches) == limit:
            break
        if holds is None or holds(request.seen):
            matches.append(request)
        if looked_at % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return matches
