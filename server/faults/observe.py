"""Log of the requests a store has received, with their times; tests inspect it and wait on it.

    await mock.wait_for('type = APPEND_BLOCK_END and segment ~ "scope/*"', count=3, stage="applied")
    assert [each.type_name for each in mock.requests("failure")] == ["READ_SEGMENT"]

A request passes these stages: received; applied, or refused if its reply is a failure; replied, when its reply was
written to the socket. Controller calls are requests, too; a cancelled call is refused. `Seen` is the subject of the
filter language: `latency` is the time from receipt to reply, `failure` whether the reply is a failure, `time` the time
since the store's start.

Invariants: memory is bounded in bytes, and the oldest requests are discarded and counted; payloads have a separate
bound, above which the oldest payloads are dropped; tokens are not kept. Only `wait_for` waits; its deadline is the
loop's.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal, get_args
from uuid import UUID

import msgspec

from segstore.server.config import check_choice
from segstore.server.faults.near import MOST_LOOKED_AT, near_misses
from segstore.wire import AppendBlockEnd, Command, ConditionalAppend, Hello, KeepAlive, ReadSegment, encode
from segstore.wire.blocks import Append
from segstore.wire.inspect import NO_PAYLOAD, Payload
from segstore.wire.printable import SHOWN, printable
from segstore.wire.schema import COMMANDS
from segstore.wire.trace import Call, Filter, check_possible, parse_filter, segments_of

if TYPE_CHECKING:
    from segstore.server.traffic import History

_STEP: Final = 256
"""Requests that are examined in a loop iteration."""
_LOG_BYTES: Final = 16 * 1024 * 1024
_REQUEST_BYTES: Final = 700
_LOOK_S: Final = 0.05
_ENTRY_BYTES: Final = 200
"""Estimated overhead of an entry of a call's metadata, in addition to its texts."""
_APPEND_FRAMES_BYTES: Final = 24 + 52
"""Size of an AppendBlock and its end, without the events."""


StageName = Literal["received", "applied", "refused", "replied"]


class Seen(msgspec.Struct, weakref=True, eq=False):
    """Facts about a request or a reply. Times are seconds of the store's clock, None for stages not reached.

    number: from 1, in order of receipt. store: the store's number in the cluster, from 0. connection: from 1, counted
    over all stores. offset: of a read or a conditional append. event_number, event_count: of an append. size: in bytes,
    with headers. reply: the type name of the first reply. faults: actions of rules that fired. call: of a controller
    call, which is no frame; its type name is the method's, its reply the outcome. payload: empty where no filter can
    read it.
    """

    number: int
    store: int
    connection: int
    type_name: str
    code: int | None
    segments: tuple[str, ...]
    request_id: int | None
    writer_id: UUID | None
    size: int
    received_s: float
    started_s: float
    offset: int = -1
    event_number: int = -1
    event_count: int = 0
    applied_s: float | None = None
    refused_s: float | None = None
    replied_s: float | None = None
    reply: str | None = None
    faults: tuple[str, ...] = ()
    direction: int = 0
    failure: bool = False
    call: Call | None = None
    malformed: bool = False
    payload: Payload = NO_PAYLOAD

    @property
    def payloads(self) -> tuple[bytes, ...]:
        return self.payload.parts()

    @property
    def broken(self) -> tuple[str, ...]:
        """Only records of traces are judged."""
        return ()

    @property
    def kind(self) -> str:
        return "call" if self.call is not None else "bytes" if self.code is None else "frame"

    @property
    def status(self) -> str | None:
        return None if self.call is None else self.reply or self.call.outcome or None

    @property
    def latency_ns(self) -> int | None:
        return None if self.replied_s is None else round((self.replied_s - self.received_s) * 1e9)

    @property
    def time_ns(self) -> int:
        return round((self.received_s - self.started_s) * 1e9)


def request_seen(
    item: Command | Append,
    number: int,
    *,
    store: int,
    connection: int,
    now_s: float,
    started_s: float,
    with_payload: bool = False,
) -> Seen:
    """Returns the facts about a request at its receipt. Copies its payload if it is asked for."""
    kind: Command | type[Command]
    if not isinstance(item, Append):
        kind, size, segments = item, len(encode(item)), segments_of(item)
        offset, number_and_count = item.offset if isinstance(item, ReadSegment) else None, (-1, 0)
    else:
        kind = AppendBlockEnd if item.expected_offset is None else ConditionalAppend
        size, segments = len(item.data) + _APPEND_FRAMES_BYTES, (item.segment,)
        offset, number_and_count = item.expected_offset, (item.event_number, item.event_count)
    return Seen(
        number,
        store,
        connection,
        kind.type_name,
        kind.code,
        segments,
        None if isinstance(item, Hello | KeepAlive) else getattr(item, "request_id", None),
        getattr(item, "writer_id", None),
        size,
        now_s,
        started_s,
        -1 if offset is None else offset,
        *number_and_count,
        payload=Payload(item) if with_payload else NO_PAYLOAD,
    )


def reply_seen(
    reply: Command,
    size: int,
    request: Seen | None,
    *,
    store: int,
    connection: int,
    now_s: float,
    with_payload: bool = False,
) -> Seen:
    """Returns the facts about a reply. If it names no segments, its request's are used."""
    return Seen(
        request.number if request is not None else 0,
        store,
        connection,
        reply.type_name,
        reply.code,
        segments_of(reply) or (request.segments if request is not None else ()),
        None if isinstance(reply, Hello | KeepAlive) else getattr(reply, "request_id", None),
        getattr(reply, "writer_id", request.writer_id if request is not None else None),
        size,
        request.received_s if request is not None else now_s,
        request.started_s if request is not None else now_s,
        event_number=getattr(reply, "event_number", -1),
        replied_s=now_s,
        direction=1,
        failure=COMMANDS[reply.code].is_failure if reply.code in COMMANDS else False,
        payload=Payload(reply) if with_payload else NO_PAYLOAD,
    )


class NotSeen(TimeoutError):
    """`wait_for` timed out. Attributes: filter, stage, count, found, timeout_s, near (requests that come near)."""

    def __init__(
        self, text: str, stage: StageName, count: int, found: int, timeout_s: float, last: str, near: Sequence[str]
    ) -> None:
        what = f"requests with {text}" if text else "requests"
        said = f"{found} of {count} {what} were {stage} within {timeout_s:g} s; {last}"
        super().__init__("\n  ".join([said, *near]))
        self.filter = text
        self.stage = stage
        self.count = count
        self.found = found
        self.timeout_s = timeout_s
        self.near = tuple(near)


class NotObserved(RuntimeError):
    """The server does not record requests."""

    def __init__(self) -> None:
        super().__init__("requests are not kept here: the mock was made with watched=False")


class _Waiter:
    """Counts matching requests."""

    def __init__(self, holds: Callable[[Seen], bool], wanted: int, done: asyncio.Future[Seen]) -> None:
        self.holds = holds
        self.wanted = wanted
        self.done = done
        self.found = 0
        self._numbers: set[int] = set()

    def take(self, seen: Seen) -> None:
        if not self.done.done() and seen.number not in self._numbers and self.holds(seen):
            self._numbers.add(seen.number)
            self.found += 1
            if self.found == self.wanted:
                self.done.set_result(seen)


class Observed:
    """Queries about requests. observer: keeps the requests; None if they are not recorded.

    All raise NotObserved if they are not recorded.
    """

    observer: Observer | None

    @property
    def _log(self) -> Observer:
        if self.observer is None:
            raise NotObserved
        return self.observer

    def requests(self, match: str | Filter = "", stage: StageName = "received") -> list[Seen]:
        """Returns the matching requests that have reached a stage, oldest first.

        Raises FilterError; ValueError for a filter that no request can match.
        """
        holds = _of_requests(match, stage)
        return [seen for seen in self._log._seen if holds(seen)]

    def mark(self) -> int:
        """Returns the number of the last request, for `wait_for(since=…)`."""
        return self._log.last

    async def wait_for(
        self,
        match: str | Filter = "",
        *,
        count: int = 1,
        stage: StageName = "applied",
        timeout_s: float = 5.0,
        since: int = 0,
    ) -> Seen:
        """Waits until `count` matching requests have reached a stage, and returns the last of these.

        Requests that reached it before the call count too, unless discarded. since: only requests with a greater number
        count. Raises NotSeen with the nearest requests, FilterError, and ValueError for a filter that no request can
        match, and an invalid count, time-out or `since`.
        """
        check_wait(count, timeout_s, since)
        log, holds = self._log, _of_requests(match, stage, since)
        waiter = _Waiter(holds, count, asyncio.get_running_loop().create_future())
        log._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                is_pending = True
                while is_pending and not waiter.done.done():
                    earlier, is_pending = await log.since(since)
                    for request in sorted(filter(holds, earlier), key=attrgetter(f"{stage}_s")):
                        waiter.take(request)
                    if is_pending:
                        await asyncio.wait((waiter.done,), timeout=_LOOK_S)
                return await waiter.done
        except TimeoutError as error:
            text, near = match if isinstance(match, str) else match.text, log.near(match, stage, since)
            raise NotSeen(text, stage, count, waiter.found, timeout_s, log.last_request(), near) from error
        finally:
            log._waiters.remove(waiter)


class Observer(Observed):
    """Keeps the most recent requests that pass lanes one by one, and notifies waiters.

    Discards the oldest requests when all take more than about `_LOG_BYTES`. Their payloads, which are dropped before,
    have a limit of the same size.

    Attributes:
        history: the requests of the kept traffic, from which all are read when they are asked for; None if the log has
            only its own. Then appends and payloads pass lanes for it.
        kept_from: only requests with a greater number are waited for and verified over HTTP; None: none.
    """

    def __init__(self, *, history: History | None = None, kept_from: int | None = 0) -> None:
        self.observer = self
        self.history = history
        self.kept_from = kept_from
        self._last = self._forgotten = 0
        self._seen: deque[Seen] = deque()
        self._bytes = 0
        self._with_payload: deque[Seen] = deque()
        self._payload_bytes = 0
        self._waiters: list[_Waiter] = []
        self._looking = asyncio.Lock()

    @property
    def looks_at_appends(self) -> bool:
        """Whether appends must pass the lanes one by one."""
        return self.history is None or self.is_waited_for

    @property
    def is_waited_for(self) -> bool:
        """Whether calls of `wait_for` are pending."""
        return bool(self._waiters)

    @property
    def keeps_payloads(self) -> bool:
        """Whether payloads are kept with the requests."""
        return self.history is None

    @property
    def last(self) -> int:
        """The number of the last request."""
        return self._last if self.history is None else self.history.traffic.requests

    @property
    def forgotten(self) -> int:
        """Number of discarded requests."""
        if self.history is None:
            return self._forgotten
        return max(0, self.history.traffic.first_request - 1 - (self.kept_from or 0))

    def by_number(self) -> dict[int, Seen]:
        """Returns the requests that have passed lanes one by one, by number."""
        return {seen.number: seen for seen in self._seen}

    def add(self, seen: Seen) -> None:
        self._last = max(self._last, seen.number)
        self._seen.append(seen)
        self._bytes += _cost(seen)
        if seen.payload.size:
            self._with_payload.append(seen)
            self._payload_bytes += seen.payload.size
        while self._bytes > _LOG_BYTES and len(self._seen) > 1:
            oldest = self._seen.popleft()
            self._bytes -= _cost(oldest)
            self._forgotten += 1
            if self._with_payload and self._with_payload[0] is oldest:
                self._drop_payload()
        while self._payload_bytes > _LOG_BYTES:
            self._drop_payload()
        self._notify(seen)

    def _drop_payload(self) -> None:
        oldest = self._with_payload.popleft()
        self._payload_bytes -= oldest.payload.size
        oldest.payload = NO_PAYLOAD

    def clear(self) -> None:
        """Discards all requests; the numbers of later requests continue."""
        self._seen.clear()
        self._with_payload.clear()
        self._bytes = self._payload_bytes = self._forgotten = 0
        if self.kept_from is not None:
            self.kept_from = self.last

    def executed(self, seen: Seen, now_s: float, reply: str | None, *, failure: bool) -> None:
        """Records that a request was executed; `reply` is the type name of its reply."""
        seen.reply = seen.reply or reply
        seen.failure = failure
        if failure:
            seen.refused_s = now_s
        else:
            seen.applied_s = now_s
        self._notify(seen)

    def replied(self, seen: Seen, now_s: float) -> None:
        """Records that a reply to a request was written to the socket."""
        if seen.replied_s is None:
            seen.replied_s = now_s
            self._notify(seen)

    def newest_first(self) -> Iterator[Seen]:
        """Iterates over the latest requests; to be used up before another comes."""
        return reversed(self._seen) if self.history is None else iter(self.history.newest())

    async def since(self, number: int) -> tuple[list[Seen], bool]:
        """Returns all requests with a greater number, newest first, and whether answers to some come by `history`."""
        if self.history is not None:
            return await self.history.since(number)
        return [seen for seen in reversed(self._seen) if seen.number > number], False

    def last_request(self) -> str:
        """Describes the last request, for error messages."""
        last = next(self.newest_first(), None)
        if last is None:
            return "no request came"
        place = "to the controller" if last.call is not None else f"on connection {last.connection}"
        return f"the last request was {last.type_name} {place}"

    def near(self, match: str | Filter, stage: StageName, since: int = 0) -> tuple[str, ...]:
        """Returns the requests that nearly match, have reached a stage and have a number greater than `since`.

        A request is one line, with the parts of the filter that do not hold. Raises the errors of `find`.
        """
        holds = _of_requests(match, stage, since)
        others = (seen for seen in islice(self.newest_first(), MOST_LOOKED_AT) if not holds(seen))
        missing = f"not {stage}" if since == 0 else f"not {stage} since request {since}"
        return tuple(near_misses(others, _parsed(match), missing=missing))

    def _notify(self, seen: Seen) -> None:
        """Notifies waiters that a request has reached another stage."""
        for waiter in self._waiters:
            waiter.take(seen)

    async def find(self, match: str | Filter, stage: StageName = "received", since: int = 0) -> list[Seen]:
        """Returns the matching requests with a number above `since` that have reached a stage, newest first.

        Raises FilterError; ValueError for a filter that no request can match.
        """
        holds = _of_requests(match, stage, since)
        matching: list[Seen] = []
        async with self._looking:  # one step per loop iteration, however many callers there are
            requests, _ = await self.since(since)
            for looked_at, request in enumerate(requests, 1):
                if holds(request):
                    matching.append(request)
                if looked_at % _STEP == 0:
                    await asyncio.sleep(0)
        return matching


def check_wait(count: object, timeout_s: object, since: object = 0) -> None:
    """Raises ValueError unless `count` is a number of requests, `timeout_s` a time in seconds, and `since` a mark."""
    if type(count) is not int or count < 1:
        raise ValueError(f"count must be a whole number of at least 1, not {_shown(count)}")
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 <= timeout_s < math.inf:
        raise ValueError(f"timeout_s must be a finite number of at least 0, not {_shown(timeout_s)}")
    if type(since) is not int:
        raise ValueError(f"since is a number, as from mark(), not {_shown(since)}")


def _shown(value: object) -> str:
    return printable(repr(value), SHOWN)


def _cost(seen: Seen) -> int:
    """Approximate memory of a request, in bytes."""
    texts = 4 * sum(map(len, seen.segments))
    if (call := seen.call) is not None:
        texts += 4 * (len(call.message) + len(call.details))
        texts += sum(_ENTRY_BYTES + len(key) + len(value) for key, value in call.metadata.items())
    return _REQUEST_BYTES + texts


def _parsed(match: str | Filter) -> Filter | None:
    """Returns the filter; None for a blank text. Raises FilterError."""
    if isinstance(match, Filter):
        return match
    if not isinstance(match, str):
        raise ValueError(f"a filter is a text, not {_shown(match)}")
    return parse_filter(match) if match.strip() else None


def _of_requests(match: str | Filter, stage: StageName, since: int = 0) -> Callable[[Seen], bool]:
    """Returns whether a request matches a filter, has reached a stage, and has a number greater than `since`.

    Raises FilterError; ValueError for a filter that no request can match, and an unknown stage.
    """
    check_choice("stage", stage, get_args(StageName))
    parsed = _parsed(match)
    if parsed is not None:
        check_possible(parsed, "log")
    reached_s = attrgetter(f"{stage}_s")
    return lambda seen: seen.number > since and reached_s(seen) is not None and (parsed is None or parsed(seen))
