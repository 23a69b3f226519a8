"""Decodes traffic passing through the tap and applies fault rules to it.

Rules work as in the mock store: they see every request (an append is one request, regardless of its frames) and every
reply. A request is executed by forwarding the bytes in which it arrived. While no rule can match an unconditional
append, whole appends and acknowledgements that follow each other are forwarded together (`Lane.passes_appends`).

Invariants: bytes that are not a frame of a known type, and all bytes after a malformed append block, are forwarded in
order without being decoded; the client is not read while requests wait; a side is not read while more than
`_MOST_BYTES` of its data wait; when the client has disconnected, nothing waits.

Deliberate differences from faults in a store: a connection that a rule closes before a request is closed when the store
has replied to earlier requests, or after `_LINGER_S`; a refused append refuses all appends of its writer until the
writer is set up again; whether a request may overtake another of its writer is the store's decision. A command between
an append block and its end is forwarded before the two.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from segstore.server.faults import End, Execute, Finish, Lane, Send
from segstore.server.tap.frames import FindRuns, FrameSplitter
from segstore.server.tap.states import LinkState
from segstore.wire import AppendBlock, AppendBlockEnd, WireError, encode
from segstore.wire.blocks import WHOLE_APPENDS, Append, AppendBlockDecoder, BlockWriter
from segstore.wire.codec import runs_at
from segstore.wire.trace import Direction

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.server.faults import Effect, Faults, Seen
    from segstore.server.recording import RecordedConnection
    from segstore.server.tap.link import Link
    from segstore.server.tap.side import Side
    from segstore.wire import Command

log = logging.getLogger(__name__)

_PASSED: Final = WHOLE_APPENDS._replace(row=("last_event_number", "request_id"))
"""Whole appends, reduced to their numbers."""
_Run = tuple[BlockWriter, list[tuple[int, int]]]

_MOST_BYTES: Final = 8 * 1024 * 1024
_STEP: Final = 1024
"""Pieces of a side that are processed before other links have their turn."""
_LINGER_S: Final = 2.0
"""Time for the store to answer earlier requests when a rule closes the connection before a request."""
_HELD: Final = "held by fault rules"
_ENDING: Final = (LinkState.DRAINING, LinkState.CLOSING, LinkState.CLOSED)


class Inspection:
    """The lane of a link, with the decoders that feed it.

    store: number of the store. recorded: as for `Lane`.
    """

    def __init__(self, link: Link, faults: Faults, *, store: int, recorded: RecordedConnection | None = None) -> None:
        self._link = link
        self._scheduled: asyncio.Handle | None = None
        self._lane = Lane(
            faults, store=store, encode=encode, on_effects=self._wait_ended, remote=True, recorded=recorded
        )
        self._requests, self._replies = FrameSplitter(), FrameSplitter()
        self._blocks: AppendBlockDecoder | None = AppendBlockDecoder()
        self._block: list[bytes] = []
        self._backlog: deque[tuple[bytes, Command | Append | list[_Run] | bool]] = deque()
        """Data to forward, with its decoded form; for undecoded data, a bool: whether it counts as a request."""
        self._to_store: list[bytes] = []
        self._to_client: list[bytes] = []
        self._answered: list[Seen] = []
        self._when_drained: list[Callable[[], object]] = []
        self._linger: asyncio.TimerHandle | None = None
        self._reported: set[Direction] = set()

    @property
    def _is_ending(self) -> bool:
        return self._link.state in _ENDING

    @property
    def number(self) -> int:
        """The link's number, as rules and requests name it."""
        return self._lane.number

    # --- input ------------------------------------------------------------------------------------------------------

    def take(self, side: Side, data: bytes) -> None:
        """Processes one step of the data received from a side; the rest follows in the next loop iterations."""
        self._take_some(side, data)
        self._take_rest_soon()

    def _take_rest_soon(self) -> None:
        if self._scheduled is None and (self._requests.has_more or self._replies.has_more):
            self._scheduled = asyncio.get_running_loop().call_soon(self._take_rest)

    def _take_rest(self) -> None:
        """Processes one step of the data of each side."""
        self._scheduled = None
        for side, frames in ((self._link.client, self._requests), (self._link.store, self._replies)):
            if frames.has_more:
                self._take_some(side, b"")
        self._take_rest_soon()

    def _take_some(self, side: Side, data: bytes) -> None:
        """Adds bytes of a side, and processes one step of its pending bytes."""
        link = self._link
        from_client = side is link.client
        frames = self._requests if from_client else self._replies
        if self._is_ending or (from_client and self._lane.is_deaf):
            frames.has_more = False
            return
        left = _STEP
        while left > 0:
            pieces = frames.feed(data, left, self._run_finder(side) if self._lane.passes_appends else None)
            for piece in pieces:
                if from_client:
                    self._add(*piece)
                elif not self._is_ending:
                    self._reply(piece.data, piece.command)
            left, data = left - len(pieces) if frames.has_more else 0, b""
        self._report(side, frames.problem)
        self._drain_backlog()
        if link.state not in (LinkState.CLOSING, LinkState.CLOSED):
            link.hold(self._requests.held + self._replies.held + sum(map(len, self._block)))

    def _run_finder(self, side: Side) -> FindRuns | None:
        """Returns a function that finds appends or acknowledgements to be forwarded together."""
        if side is self._link.store:
            return partial(runs_at, joined=None, records=None)
        if self._blocks is None:
            return None
        records = {} if self._blocks.block_open else self._blocks.writers
        return partial(runs_at, joined=_PASSED, records=records)

    def _report(self, side: Side, problem: str) -> None:
        if problem and side.direction not in self._reported:
            self._reported.add(side.direction)
            side.warn(f"{problem}; it is forwarded unchanged")

    def _reply(self, raw: bytes, command: Command | list[Any] | None) -> None:
        """Passes a piece from the store to the lane."""
        lane = self._lane
        if isinstance(command, list):
            last: dict[bytes, int] = {}
            for writer, number, _, _, _ in chain.from_iterable(rows.fields for rows in command):
                if number < last.get(writer, number):  # it was set up again
                    lane.pass_acknowledgement(writer, last[writer])
                last[writer] = number
            for writer, number in last.items():
                lane.pass_acknowledgement(writer, number)
            self._to_client.append(raw)
        else:
            self._apply(lane.forward(raw) if command is None else lane.reply([raw], command=command))

    # --- requests ---------------------------------------------------------------------------------------------------

    def _add(self, raw: bytes, command: Command | list[Any] | None, is_request: bool) -> None:
        """Queues a piece; an append once it is complete."""
        if isinstance(command, list):
            self._backlog.append((raw, command[0]))
            return
        if command is None or self._blocks is None:
            self._backlog.append((raw, is_request))
            return
        try:
            item = self._blocks.feed(command)
        except WireError as error:
            self._report(self._link.client, str(error))
            self._blocks = None  # whether to close the connection is the store's decision
            self._backlog.append((b"".join([*self._block, raw]), is_request))
            self._block.clear()
            return
        if self._blocks.block_open and item is None:
            self._block.append(raw)
            return
        if isinstance(item, Append) and self._block:
            raw = b"".join([*self._block, raw])
            self._block.clear()
        self._backlog.append((raw, is_request if item is None else item))

    def _drain_backlog(self) -> None:
        """Passes queued requests to the lane, in order, until it holds a request; then pauses or resumes reading."""
        lane, link = self._lane, self._link
        while self._backlog and not lane.is_blocked and not lane.is_full and not lane.is_deaf:
            # There are three cases: 1. undecoded bytes; 2. runs of appends; 3. a request.
            raw, item = self._backlog.popleft()
            if isinstance(item, bool):
                if item:
                    lane.pass_undecoded()
                self._to_store.append(raw)
                continue
            if isinstance(item, list):
                if not lane.passes_appends:  # a request in front of them has changed that
                    self._backlog.extendleft(reversed(_one_by_one(raw, item)))
                    continue
                for writer, rows in item:
                    lane.pass_appends(writer.segment, writer.writer_id, rows)
                self._to_store.append(raw)
                continue
            try:
                effects = lane.request(item, raw)
            except WireError as error:  # it was decoded, but cannot be encoded
                self._report(link.client, str(error))
                self._to_store.append(raw)
            else:
                self._apply(effects)
        if lane.is_deaf:
            self._backlog.clear()
        self._flush()
        requests_wait = bool(self._backlog) or lane.is_blocked or lane.requests_bytes > _MOST_BYTES
        self._hold(link.client, requests_wait or self._requests.has_more)
        self._hold(link.store, lane.replies_bytes > _MOST_BYTES or self._replies.has_more)
        if link.client.ended:
            self._forward_end()
        if lane.is_drained:
            deferred, self._when_drained = self._when_drained, []
            for close in deferred:
                close()

    @staticmethod
    def _hold(side: Side, is_held: bool) -> None:
        if is_held:
            side.hold(_HELD)
        else:
            side.go_on(_HELD)

    def _flush(self) -> None:
        """Writes collected requests to the store and collected replies to the client."""
        link = self._link
        if self._to_store:
            out, self._to_store = self._to_store, []
            link.store.write(b"".join(out))
        if self._to_client:
            out, self._to_client = self._to_client, []
            link.store.forward(b"".join(out))
            self._lane.sent(self._answered)
            self._answered.clear()

    def _wait_ended(self, effects: list[Effect]) -> None:
        self._apply(effects)
        self._drain_backlog()

    # --- effects ----------------------------------------------------------------------------------------------------

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(data, seen):
                    self._to_client.append(data)
                    self._answered += seen
                case Execute():
                    if not self._lane.await_reply(effect):
                        log.warning(
                            "connection from %s: too many requests await a reply; all of them are forgotten",
                            self._link.peer,
                        )
                    self._to_store.append(effect.raw)
                case Finish(why):
                    self._finish(why)
                case End(why, reset):
                    self._close(why, reset=reset)

    def _finish(self, why: str) -> None:
        """Sends EOF to the store, which answers the received requests and closes."""
        link = self._link
        if self._is_ending or link.state is LinkState.CLIENT_ENDED:
            return
        self._backlog.clear()
        link.log_end(why)
        self._flush()
        self._linger = asyncio.get_running_loop().call_later(_LINGER_S, lambda: self._wait_ended(self._lane.end(why)))
        link.pass_end(link.client)  # after the store's EOF, this closes both: all its replies were sent before that

    def _close(self, why: str, *, reset: bool) -> None:
        """Closes the store's side after the forwarded requests, the client's side after the queued replies."""
        link = self._link
        if self._is_ending:
            return
        link.cut(why)
        self._backlog.clear()
        self._flush()
        link.store.close()
        if reset:
            link.client.reset()
        else:
            self._when_drained.append(link.client.close)

    # --- end of the link --------------------------------------------------------------------------------------------

    def _forward_end(self) -> None:
        """Forwards the client's EOF, once everything before it was forwarded."""
        link, lane = self._link, self._lane
        if self._backlog or lane.requests_bytes or self._requests.has_more:
            return
        if self._is_ending or link.state is LinkState.CLIENT_ENDED:
            return
        if not lane.is_deaf:
            self._to_store += [*self._block, self._requests.rest()]
        self._block.clear()
        self._flush()
        link.pass_end(link.client)

    def ended(self, side: Side) -> None:
        """Handles EOF from a side."""
        link = self._link
        if side is link.client:
            self._forward_end()
            return
        self._take_all_replies()
        self._apply(self._lane.replies_ended())
        rest = self._replies.rest()
        if rest:
            self._apply(self._lane.forward(rest))
        self._when_drained.append(lambda: link.pass_end(side))
        self._drain_backlog()

    def store_lost(self, exc: Exception | None) -> bool:
        """Handles the loss of the store's socket. Returns whether the link ends now, else after the queued replies."""
        link = self._link
        self._take_all_replies()
        if exc is not None or self._lane.is_drained:
            return True
        self._when_drained.append(lambda: link.end_by(link.store, None))
        return False

    def _take_all_replies(self) -> None:
        """Processes everything pending from the store, before its end is forwarded."""
        while self._replies.has_more and not self._is_ending:
            self._take_some(self._link.store, b"")

    def close(self) -> None:
        """Drops everything that waits or is buffered; nothing is executed afterwards."""
        if self._linger is not None:
            self._linger.cancel()
        self._lane.drop_waiting()
        self._backlog.clear()
        self._when_drained.clear()
        self._block.clear()
        self._requests.clear()
        self._replies.clear()
        self._link.hold(0)
        if self._scheduled is not None:
            self._scheduled.cancel()


def _one_by_one(raw: bytes, runs: list[_Run]) -> list[tuple[bytes, Append]]:
    """The appends of runs by themselves, each with its frames."""
    segments = (writer.segment for writer, rows in runs for _ in rows)
    pieces = iter(FrameSplitter().feed(raw))
    appends = []
    for segment, (head, block, _), (tail, end, _) in zip(segments, pieces, pieces, strict=True):
        assert isinstance(block, AppendBlock)
        assert isinstance(end, AppendBlockEnd)
        append = Append(segment, end.writer_id, end.last_event_number, end.num_events, block.data, None, end.request_id)
        appends.append((head + tail, append))
    return appends
