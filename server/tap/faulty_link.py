"""A link of a tap that has rules: what carries out, on another store's traffic, what `segstore.server.faults.faults`
decides.

Rules are the same as at a store of our own, and asked about the same: requests as they come, an append as one whatever
frames brought it, and replies. A request is passed, kept back, answered in place of the store, passed twice or not at
all; its reply is spoilt when it comes. Requests are also noted for `wait_for`: applied or refused is what the store's
reply says.

Invariants: what waits keeps back what is behind it in its direction, unless it may be overtaken; while a request is
kept back the client is not read, and above `_MOST_BYTES` of what waits neither is the side that it comes from; a
connection that a rule ends is ended in order towards the store, so that what was passed is carried out; when the client
is gone, nothing waits any more. What is no frame of a known type, and all that follows an append that breaks the rules
of append blocks, passes without being asked about.

Deliberate differences from a store's own faults: a connection that ends before a request does so when the store has
answered what it had, or after `_LINGER_S`; nothing is passed behind an append that a connection is to end after; behind
an append that a rule refuses those of its writer are refused the same way until it is set up again, also where they did
not come with it; that a request overtakes another of its writer is for the store to judge. A command between an append
block and its end passes before the two.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from segstore.server.faults import (
    Close,
    Drop,
    Duplicate,
    Error,
    FaultWaits,
    Plan,
    Seen,
    Wait,
    refusal,
    reply_seen,
    request_seen,
    spoilt,
)
from segstore.server.tap.frames import Asked, Frames, Passed
from segstore.server.tap.line import WAITING_BYTES, Line
from segstore.server.tap.link import Door, Link, Side
from segstore.wire import (
    COMMANDS,
    AppendSetup,
    ConditionalCheckFailed,
    DataAppended,
    InvalidEventNumber,
    SetupAppend,
    WireError,
    decode,
    encode,
)
from segstore.wire.blocks import Append, AppendBlockDecoder
from segstore.wire.trace import Direction

if TYPE_CHECKING:
    from segstore.server.faults import Action, Faults
    from segstore.wire import Command

log = logging.getLogger(__name__)

_NO_PLAN: Final = Plan()
_NO_WAIT: Final = Wait()
_MOST_BYTES: Final = 8 * 1024 * 1024
_STEP: Final = 64
"""Number of pieces processed at a time."""
_LINGER_S: Final = 2.0
"""How long a store may take to answer what it has, when a rule has ended the connection before a request."""
_OF_WRITERS: Final = frozenset({"APPEND_BLOCK_END", "CONDITIONAL_APPEND", "SETUP_APPEND"})


class WatchedLink(Link):
    """A link whose requests are noted, and on which faults happen."""

    def __init__(self, door: Door, faults: Faults) -> None:
        super().__init__(door)
        self._faults = faults
        self._fault_number = faults.next_connection()
        self._requests, self._replies = Frames(), Frames()
        self._blocks: AppendBlockDecoder | None = AppendBlockDecoder()
        self._block: list[bytes] = []
        self._backlog: deque[tuple[bytes, Command | Append | None]] = deque()
        self._blocked = False
        self._out: list[bytes] = []
        self._overtaken = 0
        self._kept_bytes = 0
        self._asked = Asked()
        self._refused: dict[bytes, Error | None] = {}
        """Writers of which a rule refused an append, and how, or the set-up (None), until they are set up again."""
        self._hidden: dict[bytes, tuple[int, Error]] = {}
        """From which number on appends were refused that the store has, until it has answered that they are."""
        self._instead: deque[tuple[int, bytes, Seen, Wait]] = deque()
        """Answers in place of the store, each behind those to what was passed before."""
        self._numbers_are_wrong = False
        self._waits = FaultWaits(faults)
        self._line = Line(faults, door.number, self._waits, self._write)
        self._deaf = False
        self._stopping = False
        self._linger: asyncio.TimerHandle | None = None
        self._finished = False
        self._noted: set[Direction] = set()

    # --- as a link --------------------------------------------------------------------------------------------------

    def forward(self, side: Side, data: bytes) -> None:
        if side is self.client and side.note is not None:
            side.note(data)
        queue = self.door.queue
        queue.begin()
        self._take_from(side, data)
        left = self.advance()
        queue.end()
        if left:
            queue.add(self, heavy=True)

    def advance(self) -> bool:
        """Processes what was read from both sides, for a slice; returns whether there is more."""
        is_over = self.door.queue.is_over
        while self._requests.has_more or self._replies.has_more:
            if is_over():
                return True
            for side, frames in ((self.client, self._requests), (self.store, self._replies)):
                if frames.has_more:
                    self._take_from(side, b"")
        return False

    def _take_from(self, side: Side, data: bytes) -> None:
        """Takes bytes of a side, and processes one step of its pending bytes."""
        if self._finished or self._stopping or (self._deaf and side is self.client):
            (self._requests if side is self.client else self._replies).has_more = False
            return
        if side is self.client:
            for piece in self._requests.feed(data, _STEP):
                self._queue(piece.data, piece.command)
            self._tell(side, self._requests.problem)
            self._go_through()
        else:
            for raw, command in self._replies.feed(data, _STEP):
                if not self._stopping:
                    self._reply(raw, command)
            self._tell(side, self._replies.problem)
            self._line.leave()
            if self._backlog:
                self._go_through()
            self._look_at_line()
        if not self._finished:
            self.door.hold(self, self._requests.held + self._replies.held + sum(map(len, self._block)))

    def ended(self, side: Side) -> None:
        self._ends(side.direction)
        if side is self.client:
            self._end_if_all_passed()
        else:
            self._take_all_replies()
            self._answer_instead(all_of_them=True)
            self._line.put(self._replies.rest(), lambda: Link.ended(self, side))
            self._line.leave()

    def lost(self, side: Side, exc: Exception | None) -> None:
        if side is self.client:
            self._finish()
        else:
            self._take_all_replies()
        if side is self.store and exc is None and self._line:
            self._ends(side.direction)
            self._line.put(b"", lambda: Link.lost(self, side, None))
            return
        super().lost(side, exc)

    def _take_all_replies(self) -> None:
        """The store has sent EOF: processes everything pending from it before the end is forwarded."""
        while self._replies.has_more and not (self._finished or self._stopping):
            self._take_from(self.store, b"")

    def end(self, why: str) -> None:
        self._finish()
        super().end(why)

    def abort(self, why: str = "") -> None:
        self._finish()
        super().abort(why)

    def _finish(self) -> None:
        """Nothing more is carried out, and nothing waits."""
        self._finished = self._deaf = True
        if self._linger is not None:
            self._linger.cancel()
        self._waits.clear()
        self._backlog.clear()
        self._line.clear()
        self.door.hold(self, 0)
        self._requests.has_more = self._replies.has_more = False
        self.door.queue.discard(self)

    def _tell(self, side: Side, problem: str) -> None:
        if problem and side.direction not in self._noted:
            self._noted.add(side.direction)
            self.noted(side, f"{problem}; it passes as it is")

    # --- requests ---------------------------------------------------------------------------------------------------

    def _queue(self, raw: bytes, command: Command | None) -> None:
        """A piece has come: it waits for its turn, an append until it is whole."""
        if command is None or self._blocks is None:
            self._backlog.append((raw, None))
            return
        try:
            item = self._blocks.feed(command)
        except WireError as error:
            self._tell(self.client, str(error))
            self._blocks = None  # the store ends this connection, or knows better
            self._backlog.append((b"".join([*self._block, raw]), None))
            self._block.clear()
            return
        if item is None:
            self._block.append(raw)
            return
        if isinstance(item, Append) and self._block:
            raw = b"".join([*self._block, raw])
            self._block.clear()
        self._backlog.append((raw, item))

    def _go_through(self) -> None:
        """Decides about what has come, one after the other, as far as nothing keeps it back."""
        while self._backlog and not self._blocked and not self._asked.full:
            raw, item = self._backlog.popleft()
            if item is None:
                self._out.append(raw)
            else:
                self._take(raw, item)
        self._flush()
        if self._backlog or self._blocked or self._kept_bytes > _MOST_BYTES or self._requests.has_more:
            self.client.hold("of faults")
        else:
            self.client.go_on("of faults")
        if self.client.ended:
            self._end_if_all_passed()

    def _flush(self) -> None:
        """Writes to the store what has passed."""
        if self._out:
            out, self._out = self._out, []
            self.store.write(b"".join(out))

    def _end_if_all_passed(self) -> None:
        """The client sends no more: what it has sent leaves first."""
        if self._backlog or self._blocked or self._overtaken or self._finished or self._stopping:
            return
        if self._requests.has_more:
            return
        if self.client.end_passed:
            return
        if not self._deaf:
            self._out += [*self._block, self._requests.rest()]
        self._block.clear()
        self._flush()
        super().ended(self.client)

    def _take(self, raw: bytes, item: Command | Append) -> None:
        faults = self._faults
        try:
            seen = request_seen(
                item,
                faults.next_request(),
                store=self.door.number,
                connection=self._fault_number,
                now_s=faults.clock.now_s(),
                started_s=faults.started_s,
            )
        except WireError as error:  # it cannot be written as it was read
            self._tell(self.client, str(error))
            self._out.append(raw)
            return
        if faults.observer is not None:
            faults.observer.add(seen)
        plan = faults.decide(seen) or _NO_PLAN
        wait = plan.before
        if not wait:
            self._carry_out(raw, item, seen, plan)
            return
        cost = len(raw) + WAITING_BYTES
        self._kept_bytes += cost
        if wait.overtake:
            self._overtaken += 1
        else:
            self._blocked = True

        def go_on() -> None:
            self._kept_bytes -= cost
            if wait.overtake:
                self._overtaken -= 1
            else:
                self._blocked = False
            if not self._deaf:
                self._carry_out(raw, item, seen, plan)
            self._go_through()

        self._waits.add(wait, go_on)

    def _carry_out(self, raw: bytes, item: Command | Append, seen: Seen, plan: Plan) -> None:
        action = plan.action
        if isinstance(item, Append) and item.writer_id.bytes in self._refused and not _is_of_request(action):
            action = self._refused[item.writer_id.bytes]
            if action is None:
                self._stop_before(f"an append of writer {item.writer_id}, whose set-up was refused")
            else:
                self._refuse(seen, action, plan)
            return
        match action:
            case Error(at="before"):
                self._refuse(seen, action, plan)
            case Drop(drop="request"):
                return
            case Close(close="before", reset=False):
                self._stop_before(f"fault {plan.rule!r}: {action.word}")
            case Close(close="before"):
                self._stop_by(plan, action)
            case Close() if seen.type_name in _OF_WRITERS:
                self._pass(raw, item, seen, plan)
                self._be_deaf()  # what is behind it would be stored, too
            case Duplicate(duplicate="request"):
                self._pass(raw, item, seen, plan)
                self._pass(raw, item, seen, plan)
            case _:
                self._pass(raw, item, seen, plan)

    def _pass(self, raw: bytes, item: Command | Append, seen: Seen, plan: Plan) -> None:
        if isinstance(item, SetupAppend):
            self._refused.pop(item.writer_id.bytes, None)
        if not self._asked.add(item, Passed(seen, plan)):
            log.warning("connection from %s: the store answers too little; what it was asked is forgotten", self.peer)
        self._out.append(raw)

    def _refuse(self, seen: Seen, action: Error, plan: Plan) -> None:
        """Answers a request in place of the store."""
        frame = self._error(seen, action)
        self._note(seen, decode(frame))
        self._instead.append((self._asked.mark(), frame, seen, plan.after))
        if self._numbers_are_wrong:
            self._be_deaf()
        self._answer_instead()
        self._line.leave()

    def _answer_instead(self, *, all_of_them: bool = False) -> None:
        """Sends the answers in place of the store whose turn has come."""
        instead = self._instead
        while instead and (all_of_them or self._asked.is_over(instead[0][0])):
            _, frame, seen, after = instead.popleft()
            self._line.send([frame], (seen,), after)
        if self._numbers_are_wrong and not instead:
            self._stop_before("a fault told a writer that its number is wrong")

    def _error(self, seen: Seen, action: Error) -> bytes:
        """The frame of an error that takes the place of the store's reply."""
        reply = refusal(action, seen)
        if seen.type_name in _OF_WRITERS and seen.writer_id is not None and type(reply) is not ConditionalCheckFailed:
            # As a store does when an append or its set-up fails: the writer is to be set up again.
            is_append = seen.type_name != "SETUP_APPEND"
            self._refused.setdefault(seen.writer_id.bytes, action if is_append else None)
            if is_append:
                self._hidden.setdefault(seen.writer_id.bytes, (seen.event_number, action))
                self._numbers_are_wrong = self._numbers_are_wrong or isinstance(reply, InvalidEventNumber)
        return encode(reply)

    def _note(self, seen: Seen, reply: Command) -> None:
        """Tells the observer how a request came out."""
        if self._faults.observer is not None:
            failure = reply.code in COMMANDS and COMMANDS[reply.code].is_failure
            self._faults.observer.carried_out(seen, self._faults.clock.now_s(), reply.type_name, failure=failure)

    # --- replies ----------------------------------------------------------------------------------------------------

    def _reply(self, raw: bytes, reply: Command | None) -> None:
        """Something has come from the store: what is planned for it, then what the rules on replies say."""
        if reply is None:
            self._line.put(raw)
            return
        passed = self._asked.answered(reply)
        seen = tuple(each.seen for each in passed)
        for each in seen:
            self._note(each, reply)
        if isinstance(reply, AppendSetup):
            self._hidden.pop(reply.writer_id.bytes, None)
        plan = _together([each.plan for each in passed])
        if any(map(self._instead_of, passed)) and not isinstance(plan.action, Close):
            frames = self._partly_refused(reply, passed)
        else:
            frames = self._changed([raw], seen, plan, plan.after, late=False)
        if not self._faults.looks_at_replies:
            self._line.send(frames, seen, plan.after)
        else:
            for frame in frames:
                self._send_watched(frame, seen, plan.after)
        self._answer_instead()

    def _instead_of(self, passed: Passed) -> Error | None:
        """The error that the client hears in place of what the store says of a request."""
        if isinstance(passed.plan.action, Error):
            return passed.plan.action
        seen = passed.seen
        if seen.writer_id is None or seen.writer_id.bytes not in self._hidden or seen.type_name == "SETUP_APPEND":
            return None
        number, action = self._hidden[seen.writer_id.bytes]
        return action if seen.event_number >= number else None

    def _partly_refused(self, reply: Any, passed: list[Passed]) -> list[bytes]:
        """What the client hears of a reply to requests some of which a rule refuses: of appends, those behind too, but
        not where only a condition was not met.
        """
        frames: list[bytes] = []
        told = 0
        for index, each in enumerate(passed):
            error = self._instead_of(each)  # which may be because of the one before
            if error is not None:
                frames += self._acknowledged(reply, passed, told, index)
                frames.append(self._error(each.seen, error))
                told = index + 1
        return frames + self._acknowledged(reply, passed, told, len(passed))

    def _acknowledged(self, reply: Any, passed: list[Passed], start: int, end: int) -> list[bytes]:
        """One reply to several appends as one to those from `start` to `end`."""
        if start == end:
            return []
        numbers = {"event_number": passed[end - 1].seen.event_number}
        if start and isinstance(reply, DataAppended):
            numbers["previous_event_number"] = passed[start - 1].seen.event_number
        return [encode(msgspec.structs.replace(reply, **numbers))]

    def _send_watched(self, frame: bytes, seen: tuple[Seen, ...], after: Wait) -> None:
        """Asks the rules on replies about a frame, and sends what they leave of it."""
        if self._stopping:
            return
        try:
            reply = decode(frame)
        except WireError:
            self._line.send([frame], seen, after)  # a rule on the request has spoilt it
            return
        about = reply_seen(
            reply,
            len(frame),
            seen[0] if seen else None,
            store=self.door.number,
            connection=self._fault_number,
            now_s=self._faults.clock.now_s(),
        )
        plan = self._faults.decide(about) or _NO_PLAN
        for each in seen:
            each.faults = (*each.faults, *about.faults)
        wait = _added(after, plan.after)
        action = plan.action
        if isinstance(action, Error):
            self._line.send([self._error(about, action)], seen, wait)
        else:
            self._line.send(self._changed([frame], seen, plan, wait, late=True), seen, wait)

    def _changed(
        self, frames: list[bytes], seen: tuple[Seen, ...], plan: Plan, wait: Wait, *, late: bool
    ) -> list[bytes]:
        """What an action leaves of a reply. late: the rule is one on replies, so every action is on this frame."""
        action = plan.action
        if isinstance(action, Close):
            if action.reply_bytes:
                self._line.send([b"".join(frames)[: action.reply_bytes]], (), wait)
            self._stop_by(plan, action)
            return []
        return spoilt(frames, action, late=late)

    def _write(self, data: bytes) -> None:
        """Something leaves towards the client."""
        if data:
            self.client.write(data)
            if self.store.note is not None:
                self.store.note(data)
        self._look_at_line()

    def _look_at_line(self) -> None:
        """The store is not read while too much of what it said waits."""
        if self._line.bytes > _MOST_BYTES or self._replies.has_more:
            self.store.hold("of faults")
        else:
            self.store.go_on("of faults")

    # --- the end that a rule makes ----------------------------------------------------------------------------------

    def _be_deaf(self) -> None:
        """Nothing more that the client says is passed."""
        self._deaf = True
        self._backlog.clear()

    def _stop_before(self, why: str) -> None:
        """Ends the connection once the store, which is told that nothing more comes, has ended it, too."""
        if self.client.end_passed or self._stopping or self._finished:
            return
        self._be_deaf()
        self._say(why)
        self.client.end_passed = True
        self._flush()
        self.store.end_writing()
        self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self._stop, why)

    def _stop_by(self, plan: Plan, action: Close) -> None:
        why = f"fault {plan.rule!r}: {action.word}"
        self._say(why)
        self._stop(why, reset=action.reset)

    def _stop(self, why: str, *, reset: bool = False) -> None:
        """Ends the connection: towards the store when it has all that was passed, towards the client in its turn."""
        if self._stopping or self._finished:
            return
        self._be_deaf()
        self._stopping = True
        self._ends(Direction.REPLY, why)
        self._flush()
        self.store.close()
        if reset:
            self._line.leave()
            self.client.reset()
        else:
            self._line.put(b"", self.client.close)
            self._line.leave()

    def _say(self, why: str) -> None:
        self._ends(Direction.REPLY, why)
        log.warning("connection from %s closed: %s", self.peer, why)


def _is_of_request(action: Action | None) -> bool:
    """Whether an action says what happens in place of carrying a request out."""
    match action:
        case Error(at="before") | Close(close="before") | Drop(drop="request"):
            return True
    return False


def _together(plans: list[Plan]) -> Plan:
    """What is to become of a reply to several requests: the longest delay, all holds, the first of other actions."""
    if len(plans) < 2:
        return plans[0] if plans else _NO_PLAN
    acting = next((each for each in plans if each.action is not None), _NO_PLAN)
    after = [each.after for each in plans]
    holds = tuple(name for each in after for name in each.holds)
    wait = Wait(max(each.seconds for each in after), holds, any(each.overtake for each in after))
    return Plan(acting.rule, acting.action, _NO_WAIT, wait)


def _added(first: Wait, second: Wait) -> Wait:
    return Wait(first.seconds + second.seconds, first.holds + second.holds, first.overtake or second.overtake)
