"""The latest requests: pairs the records of the kept traffic, newest first, and describes one in detail.

Requests are read from the traffic when they are asked for. A query examines the newest records first, four times as
many whenever these were too few, and at most `_MOST_RECORDS`. The number of a request is that of its record. An append
is one request, that of its AppendBlockEnd; the frame of its events comes along.

Invariants: the store continues to serve while a query runs, and queries run one at a time. What fault rules have done
is known as long as their log has it; when a request was applied, only where a mock observes requests.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from segstore.server.faults import Seen, counts
from segstore.wire import AppendBlock
from segstore.wire.trace import Direction, Exchange, Exchanges, RecordKind, check_possible, parse_filter

if TYPE_CHECKING:
    from uuid import UUID

    from segstore.server.faults import Faults
    from segstore.server.traffic import Traffic
    from segstore.wire import Command
    from segstore.wire.trace import Call, Filter, Record

_AT_ONCE: Final = 200
"""Records that are decoded in one loop iteration."""
_FIRST_LOOK: Final = 512
_MOST_RECORDS: Final = 30_000
_MOST_SEEN: Final = 1_000
_MOST_DECISIONS: Final = 2_000
_AROUND: Final = 2_000
"""Records on each side of a request among which its reply and its neighbours are looked for."""


class KeptRequest:
    """A request and its reply: a subject of filters, as `segstore.server.faults.Seen` is.

    Attributes:
        number: of the record.
        request: its frame.
        block: the frame before the end of an append, with its events; None for others, if the end has all events, or
            if it was discarded.
        reply: the first reply; None if there is none yet.
        time_ns: since the start of the traffic.
        faults: actions of the fault rules that fired.
        seen: what a mock has observed about it.
        given_up: whether the client closed the connection while it, a read, waited for data.
    """

    def __init__(self, number: int, request: Exchange, time_ns: int) -> None:
        self.number = number
        self.request = request
        self.block = request.block
        self.reply: Exchange | None = None
        self.time_ns = time_ns
        self.faults: tuple[str, ...] = ()
        self.seen: Seen | None = None
        self.given_up = False

    @property
    def command(self) -> Command | None:
        return self.request.command

    @property
    def kind(self) -> str:
        return self.request.kind

    @property
    def call(self) -> Call | None:
        return self.request.call

    @property
    def status(self) -> str | None:
        return self.request.status

    @property
    def type_name(self) -> str | None:
        return self.request.type_name

    @property
    def code(self) -> int | None:
        return self.request.code

    @property
    def segments(self) -> tuple[str, ...]:
        return self.request.segments

    @property
    def request_id(self) -> int | None:
        return self.request.request_id

    @property
    def writer_id(self) -> UUID | None:
        return self.request.writer_id

    @property
    def connection(self) -> int:
        return self.request.connection

    @property
    def direction(self) -> Direction:
        return self.request.direction

    @property
    def malformed(self) -> bool:
        return self.request.malformed

    @property
    def size(self) -> int:
        return self.request.size + (0 if self.block is None else self.block.size)

    @property
    def failure(self) -> bool:
        return self.request.failure

    @property
    def latency_ns(self) -> int | None:
        return self.request.latency_ns

    @property
    def payloads(self) -> tuple[bytes, ...]:
        return self.request.payloads

    def as_seen(self) -> Seen:
        """The same facts as an observer has them; the store is 0, whichever it was."""
        command, received_s = self.command, self.time_ns / 1e9
        return Seen(
            self.number,
            0,
            self.connection,
            self.type_name or "",
            self.code,
            self.segments,
            self.request_id,
            self.writer_id,
            self.size,
            received_s,
            0.0,
            event_number=getattr(command, "last_event_number", getattr(command, "event_number", -1)),
            event_count=getattr(command, "num_events", 1),
            replied_s=None if self.latency_ns is None else received_s + self.latency_ns / 1e9,
            reply=None if self.reply is None else self.reply.status or self.reply.type_name,
            faults=self.faults,
            call=self.call,
            payload=self.request.payload,
        )

    @property
    def stage(self) -> str:
        """The last stage that it is known to have reached."""
        if self.reply is not None:
            return "replied"
        if self.seen is not None and self.seen.refused_s is not None:
            return "refused"
        if self.seen is not None and self.seen.applied_s is not None:
            return "applied"
        return "given up" if self.given_up else "received"


class RequestPairing:
    """Makes requests of records, which it takes in order."""

    def __init__(self, traffic: Traffic) -> None:
        self.requests: deque[KeptRequest] = deque()
        self._started_ns = traffic.started_ns
        self._exchanges = Exchanges(writers=traffic.writers)
        self._waiting: dict[int, KeptRequest] = {}

    def see(self, number: int, record: Record) -> Exchange:
        seen = self._exchanges.see(record)
        for each in seen.given_up:
            if (request := self._waiting.pop(id(each), None)) is not None:
                request.given_up = True
        if record.kind not in (RecordKind.FRAME, RecordKind.BYTES, RecordKind.CALL):
            return seen
        if record.direction is Direction.REPLY:
            for each in seen.answers:
                request = self._waiting.pop(id(each), None)
                if request is not None:
                    request.reply = seen
        elif not isinstance(seen.command, AppendBlock):
            request = KeptRequest(number, seen, record.ts_ns - self._started_ns)
            self._waiting[id(seen)] = request
            self.requests.append(request)
        return seen


def latest_seen(traffic: Traffic) -> list[Seen]:
    """The latest requests, newest first, as an observer has them: those in the last 1,000 records."""
    last = traffic.flush()
    pairing = RequestPairing(traffic)
    for number, record in traffic.records(max(traffic.first, last + 1 - _MOST_SEEN), last):
        pairing.see(number, record)
    return [each.as_seen() for each in reversed(pairing.requests)]


class Latest:
    """The latest requests of the kept traffic. faults: of the same stores, if there are any."""

    def __init__(self, traffic: Traffic, faults: Faults | None) -> None:
        self.traffic = traffic
        self._faults = faults
        self._looking = asyncio.Lock()
        self._asked: tuple[Any, ...] = ()
        self._found: list[KeptRequest] = []

    async def find(self, match: str, *, limit: int, after: int = 0) -> list[KeptRequest]:
        """Returns the last `limit` requests that match, newest first. after: only those with a greater number.

        Raises FilterError; ValueError if nothing matches because no request can match.
        """
        holds = parse_filter(match, "request") if match.strip() else None
        async with self._looking:
            last = self.traffic.flush()
            decided = 0 if self._faults is None else sum(each.fired for each in self._faults.tallies())
            asked = (last, decided, match, limit, after)
            observed = self._faults is not None and self._faults.observer is not None
            if asked != self._asked or observed:
                self._found = await self._find(holds, limit, after, last)
                self._asked = asked
            if holds is not None and not self._found:  # clients may send what is no request
                check_possible(holds, "log")
            return self._found

    async def _find(self, holds: Filter | None, limit: int, after: int, last: int) -> list[KeptRequest]:
        lowest = max(self.traffic.first, after + 1, last + 1 - _MOST_RECORDS)
        size = max(_FIRST_LOOK, 8 * limit)
        while True:
            first = max(lowest, last + 1 - size)
            pairing = RequestPairing(self.traffic)
            for done, (number, record) in enumerate(self.traffic.records(first, last), 1):
                pairing.see(number, record)
                if done % _AT_ONCE == 0:
                    await asyncio.sleep(0)
            found = await _matching(pairing.requests, holds, limit)
            if len(found) == limit or first == lowest:
                await self._add_known(found)
                return found
            size *= 4

    async def about(self, number: int, around: int) -> tuple[KeptRequest | None, list[tuple[int, Exchange]]]:
        """Returns a request with its reply, and the records around it on its connection: at most `around` on each side.

        None if the record is discarded, or is not that of a request.
        """
        async with self._looking:
            last = self.traffic.flush()
            wanted = next((record for each, record in self.traffic.records(number, number) if each == number), None)
            if wanted is None:
                return None, []
            pairing, found = RequestPairing(self.traffic), None
            before, behind = deque[tuple[int, Exchange]](maxlen=around), list[tuple[int, Exchange]]()
            records = self.traffic.records(max(1, number - _AROUND), min(last, number + _AROUND))
            for done, (each, record) in enumerate(records, 1):
                if done % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                if record.connection != wanted.connection:
                    continue
                seen = pairing.see(each, record)
                if each == number:
                    found = pairing.requests[-1] if pairing.requests else None
                elif each < number:
                    before.append((each, seen))
                elif len(behind) < around:
                    behind.append((each, seen))
            if found is None or found.number != number:
                return None, []
            await self._add_known([found])
            return found, [*before, (number, found.request), *behind]

    async def _add_known(self, requests: list[KeptRequest]) -> None:
        """Adds what the fault rules have done to requests, and what a mock has observed about them."""
        faults = self._faults
        if faults is None:
            return
        decisions = faults.decisions[-_MOST_DECISIONS:]
        observed = [] if faults.observer is None else list(faults.observer.newest_first())
        known = {each.connection for each in decisions} | {each.connection for each in observed}
        by_place = await self._by_place([each for each in requests if each.connection in known], faults)
        for seen in observed:
            if kept := by_place.get((seen.connection, seen.place)):
                kept.seen = seen
        for each in decisions:
            if kept := by_place.get((each.connection, each.place)):
                kept.faults = (*kept.faults, f"{each.rule}: {each.action}")

    async def _by_place(self, requests: list[KeptRequest], faults: Faults) -> dict[tuple[int, int], KeptRequest]:
        """Returns requests by connection and place, as decisions have them. Those whose place is unknown are missing.

        The place of a frame is counted from the last request of its connection that had come when the connection was
        settled. Where a request came later, as behind one that a rule holds, the records between may be discarded.
        """
        found = {(each.connection, call.number): each for each in requests if (call := each.call) is not None}
        last = self.traffic.flush()
        settled = {
            each.connection: (there.settled, there.settled_ns)
            for each in requests
            if (there := faults.progress.get(each.connection)) is not None
        }
        frames = [each for each in requests if each.request.record.kind is RecordKind.FRAME]
        frames = [each for each in frames if each.connection in settled]
        if not frames:
            return found
        is_behind = any(each.request.record.ts_ns > settled[each.connection][1] for each in frames)
        first = self.traffic.first if is_behind else min(each.number for each in frames)
        start, following, discarded_ns = 0, 0, 0
        numbers: dict[int, list[int]] = {}
        before: dict[int, int] = {}
        """By connection, the numbers of its requests since `start`, and how many of these came before it settled."""
        for done, (number, record) in enumerate(self.traffic.records(first, last), 1):
            if number != following:  # the first one, or older ones were discarded meanwhile
                start, discarded_ns = number, self.traffic.discarded_ns
                numbers, before = {each: [] for each in settled}, dict.fromkeys(settled, 0)
            following = number + 1
            if record.connection in settled and _is_counted(record):
                numbers[record.connection].append(number)
                before[record.connection] += record.ts_ns <= settled[record.connection][1]
            if done % _AT_ONCE == 0:
                await asyncio.sleep(0)
        for each in frames:
            count, settled_ns = settled[each.connection]
            if each.number < start:
                continue
            behind = bisect_left(numbers[each.connection], each.number) - before[each.connection]
            if behind < 0 or discarded_ns <= settled_ns:
                found[each.connection, count + behind + 1] = each
        return found


def _is_counted(record: Record) -> bool:
    """Whether a record is one of the requests that are counted on a connection."""
    is_frame = record.kind is RecordKind.FRAME and record.direction is Direction.REQUEST
    return is_frame and counts(int.from_bytes(record.data[:4], signed=True))


async def _matching(requests: deque[KeptRequest], holds: Filter | None, limit: int) -> list[KeptRequest]:
    """Returns the last requests that match, newest first. Examines `_AT_ONCE` requests per loop iteration."""
    found: list[KeptRequest] = []
    for looked_at, each in enumerate(reversed(requests), 1):
        if holds is None or holds(each):
            found.append(each)
            if len(found) == limit:
                break
        if looked_at % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return found
