"""Applies fault rules to one connection: requests and replies in, effects out.

The host performs the effects. A store's connection executes requests with its session; a tap's link executes them by
forwarding them to a store. Observation (`Observer`) happens here, too, so both hosts record the same.

    for effect in lane.request(item):
        match effect:
            case Execute(): ...  # then lane.reply(frames, effect), or lane.await_reply(effect)
            case Send(data, seen): ...  # then lane.sent(seen)
            case Forget(segment, writer_id): ...
            case Finish(why): ...
            case End(why, reset): ...

Delays and holds end outside of such a call; `on_effects` is called with the resulting effects.

Invariants: a waiting request blocks the requests behind it (`is_blocked`: the host passes no more requests), unless
they may overtake it; replies leave in the order of `OutgoingReplies`; a rule's reply leaves behind the replies to all
requests executed before; after `End` only queued replies are sent, and no request is executed.

If a rule refuses an append, the writer's later appends are refused the same way until the writer is set up again. A
store's host ends this with `nothing_in_flight`, like the session: the reference answers each append in flight, drops
the writer, and ends the connection at the next append without a new set-up. A failed condition does not fail the
writer, and a wrong event number ends the connection. Source: `AppendProcessor`, `WriterState`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from segstore.server.faults.decisions import NO_PLAN, Plan, Wait
from segstore.server.faults.faults import FaultWaits
from segstore.server.faults.functions import FaultRequest
from segstore.server.faults.observe import Seen, reply_seen, request_seen
from segstore.server.faults.outgoing import WAITING_BYTES, OutgoingReplies
from segstore.server.faults.pending import PendingRequests, PlannedReply
from segstore.server.faults.rules import Call, Close, Corrupt, Drop, Duplicate, Error, Truncate
from segstore.wire import COMMANDS, WireError, decode
from segstore.wire import commands as c
from segstore.wire.blocks import Append, owned
from segstore.wire.inspect import NO_PAYLOAD

if TYPE_CHECKING:
    from segstore.server.faults.faults import Faults
    from segstore.server.faults.rules import Action
    from segstore.server.recording import RecordedConnection
    from segstore.wire import Command

_NO_WAIT: Final = Wait()
_code = struct.Struct(">i").unpack_from
_OF_WRITERS: Final = frozenset({"APPEND_BLOCK_END", "CONDITIONAL_APPEND", "SETUP_APPEND"})
_WriterKey = tuple[str, bytes]


class Execute(PlannedReply):
    """Execute a request. raw: its frames as they came, if the host gave them."""

    item: Command | Append
    raw: bytes


class Send(msgspec.Struct):
    """Write frames, or parts of frames, to the client; then report the requests that they answer to `Lane.sent`."""

    data: bytes
    seen: Sequence[Seen] = ()


class Forget(msgspec.Struct):
    """A rule refused the writer: a store drops it, so that it has to be set up again. A tap cannot."""

    segment: str
    writer_id: UUID


class Finish(msgspec.Struct):
    """Execute no more requests, and call `Lane.end` once all that were executed are answered."""

    why: str


class End(msgspec.Struct):
    """Close the connection once the queued replies have left (`Lane.is_drained`); reset it at once if `reset`."""

    why: str
    reset: bool


Effect = Execute | Send | Forget | Finish | End


class Lane:
    """The rules' view of one connection.

    Attributes:
        number: of the connection, over all stores, as rules and requests name it.
        is_blocked: whether a request waits that no other may overtake.
        is_deaf: whether no more requests are executed.
        requests_bytes: size of the requests that wait, with overhead.
    """

    def __init__(
        self,
        faults: Faults,
        *,
        store: int,
        encode: Callable[[Command], bytes],
        on_effects: Callable[[list[Effect]], object],
        remote: bool = False,
        recorded: RecordedConnection | None = None,
    ) -> None:
        """store: its number in the cluster. encode: of the replies that rules send. on_effects: called with effects,
        maybe none, when a wait has ended. remote: the store knows nothing of refused writers, so the lane ends the
        connection if one whose set-up was refused appends. recorded: numbers the connection and its requests; if None,
        `faults` numbers them."""
        self.number = faults.next_connection() if recorded is None else recorded.number
        if recorded is not None:
            recorded.is_numbering = True
        self._recorded = recorded
        self.is_blocked = False
        self.is_deaf = False
        self.requests_bytes = 0
        self._faults = faults
        self._store = store
        self._encode = encode
        self._on_effects = on_effects
        self._remote = remote
        self._waits = FaultWaits(faults)
        self._outgoing = OutgoingReplies(faults, store, self._waits, lambda: self._on_effects(self._leave([])))
        self._pending = PendingRequests()
        self._has_ended = False
        self._numbers_are_wrong = False
        self._refused: dict[_WriterKey, Error | None] = {}
        """Writers with an append refused by a rule, with the error; None for a refused set-up."""
        self._hidden: dict[_WriterKey, tuple[int, Error]] = {}
        """First event number of the refused appends that the store may still have executed."""
        self._instead: deque[tuple[int, bytes, Seen, Plan, bool]] = deque()
        """Replies that replace the store's replies, behind the replies to the requests before their marks."""

    @property
    def replies_bytes(self) -> int:
        """Size of the replies that wait, with overhead."""
        return self._outgoing.held_bytes

    @property
    def is_drained(self) -> bool:
        """Whether no reply is queued."""
        return self._outgoing.is_empty

    @property
    def is_full(self) -> bool:
        """Whether the limit of pending requests is reached: some should be answered before more are executed."""
        return self._pending.is_full

    @property
    def passes_appends(self) -> bool:
        """True if the host may execute unconditional appends without calling `request` for each append.

        A host that learns the replies as it executes calls `appends_passed`; other hosts call `pass_appends` and
        `pass_acknowledgement`.
        """
        faults = self._faults
        looks = faults.looks_at_appends or faults.looks_at_replies
        looks = looks or (faults.observer is not None and faults.observer.looks_at_appends)
        replaces = self._refused or self._hidden or self._instead or self._pending.planned
        return not (looks or replaces or self.is_deaf) and self._outgoing.is_open

    # --- requests ---------------------------------------------------------------------------------------------------

    def _take_numbers(self, most: int = 1) -> tuple[int, int]:
        """Returns the number of the next request, and how many requests, at most `most`, are numbered from it on."""
        first, count = (0, 0) if self._recorded is None else self._recorded.take_numbers(most)
        if not count:
            return self._faults.next_request(most), most
        self._faults.requests = max(self._faults.requests, first + count - 1)
        return first, count

    def appends_passed(self, count: int) -> None:
        """Counts appends as executed and answered; only while `passes_appends`."""
        while count:
            count -= self._take_numbers(count)[1]

    def pass_appends(self, segment: str, writer_id: UUID, appends: list[tuple[int, int]]) -> None:
        """Appends of one writer, by event number and request id, are executed; only while `passes_appends`."""
        while appends:
            event_number, request_id = appends[0]
            number, count = self._take_numbers(len(appends))
            first = self._seen(Append(segment, writer_id, event_number, 1, b"", None, request_id), number)
            self._pending.add_appends(writer_id.bytes, appends[:count], first)
            appends = appends[count:]

    def pass_undecoded(self) -> None:
        """A frame that counts as a request is forwarded without being decoded."""
        self._take_numbers()

    def pass_acknowledgement(self, writer: bytes, number: int) -> None:
        """A writer's appends are acknowledged up to an event number; only while `passes_appends`."""
        self._pending.acknowledged(writer, number)

    def request(self, item: Command | Append, raw: bytes = b"") -> list[Effect]:
        """A request has come. Its payload is copied if it has to wait. Raises WireError for a command that cannot be
        encoded as it was decoded.
        """
        if self.is_deaf:
            return []
        faults, seen = self._faults, self._seen(item, self._take_numbers()[0])
        plan = faults.decide(seen) or NO_PLAN
        if faults.observer is None or not faults.observer.keeps_payloads:
            seen.payload = NO_PAYLOAD  # only the rules have read it
        if faults.observer is not None:
            faults.observer.add(seen)
        if plan is NO_PLAN and not self._refused:  # nearly all requests
            return [Execute(seen, plan, item, raw)]
        wait = plan.before
        if not wait:
            return self._act(Execute(seen, plan, item, raw))
        kept, size = owned(item)
        cost = WAITING_BYTES + (len(raw) or size)
        self.requests_bytes += cost
        self.is_blocked = self.is_blocked or not wait.overtake
        self._waits.add(wait, partial(self._go_on, Execute(seen, plan, kept, raw), cost))
        return []

    def _seen(self, item: Command | Append, number: int) -> Seen:
        """Returns the facts about a request, which has come now."""
        faults = self._faults
        return request_seen(
            item,
            number,
            store=self._store,
            connection=self.number,
            now_s=faults.clock.now_s(),
            started_s=faults.started_s,
            with_payload=faults.looks_at_payloads or (faults.observer is not None and faults.observer.keeps_payloads),
        )

    def _call(self, request: Execute, action: Call) -> list[Effect]:
        """Gives a request to a function. It waits while a coroutine runs, and while the function holds it."""
        kept, size = owned(request.item)
        handle = FaultRequest(request.plan.rule, request.seen, kept)
        cost = WAITING_BYTES + (len(request.raw) or size)
        task = self._faults.functions.start(action.call, handle)
        if not self._faults.is_enabled(handle.rule):  # no longer, since the request waited or the function has begun
            if task is not None:
                task.cancel()
        elif task is not None or handle.is_held:
            self.requests_bytes += cost
            self.is_blocked = True
            hold = Wait(holds=(handle.rule,))
            handle.waits(self._waits.add(hold, lambda: self._go_on(_decided(request, handle), cost), task), task)
            return []
        return self._act(_decided(request, handle))

    def _go_on(self, request: Execute, cost: int) -> None:
        """The wait of a request has ended."""
        self.requests_bytes -= cost
        if not request.plan.before.overtake:
            self.is_blocked = False
        self._on_effects([] if self.is_deaf else self._act(request))

    def _act(self, request: Execute) -> list[Effect]:
        """Executes a request, or applies its plan's action instead."""
        item, seen, plan = request.item, request.seen, request.plan
        action = plan.action
        # There are four cases: 1. the action replaces the execution; 2. the writer was refused; 3. a function decides;
        # 4. the request is executed.
        match action:
            case Error(at="before"):
                return self._refuse(request, action, ask_rules=False)
            case Drop(drop="request"):
                return []
            case Close(close="before", reset=reset):
                return self.end(_reason(plan, action), reset=True) if reset else self._finish(_reason(plan, action))
        if type(item) is Append and (key := (item.segment, item.writer_id.bytes)) in self._refused:
            error = self._refused[key]
            if error is None:
                return self._finish(f"an append of writer {item.writer_id}, whose set-up was refused")
            return self._refuse(request, error, ask_rules=True)
        match action:
            case Call():
                return self._call(request, action)
            case Close() if seen.type_name in _OF_WRITERS:
                self.is_deaf = True  # what is behind it would be stored, too
        if isinstance(item, c.SetupAppend):
            self._refused.pop((item.segment, item.writer_id.bytes), None)
        twice = isinstance(action, Duplicate) and action.duplicate == "request"
        return [request] * (2 if twice else 1)

    def _refuse(self, asked: PlannedReply, error: Error, *, ask_rules: bool) -> list[Effect]:
        """Answers a request instead of the store, behind all pending replies of the store."""
        effects: list[Effect] = []
        frame = self._error(asked.seen, error, effects)
        self._note(asked.seen, [frame])
        self._instead.append((self._pending.mark, frame, asked.seen, asked.plan, ask_rules))
        self.is_deaf = self.is_deaf or self._numbers_are_wrong
        self._answer_instead(effects)
        return self._leave(effects)

    def _answer_instead(self, effects: list[Effect], *, all_of_them: bool = False) -> None:
        """Queues the rules' own replies, once all earlier requests are answered."""
        instead = self._instead
        while instead and (all_of_them or self._pending.all_answered(instead[0][0])):
            _, frame, seen, plan, ask_rules = instead.popleft()
            self._deliver([frame], (seen,), plan, effects, ask_rules=ask_rules)
        if self._numbers_are_wrong and not instead:
            effects += self._finish("a fault rule refused a writer's event number")

    def _error(self, seen: Seen, action: Error, effects: list[Effect]) -> bytes:
        """Returns the frame of an error that replaces the store's reply; the writer must be set up again."""
        segment, writer = next(iter(seen.segments), ""), seen.writer_id
        reply = action.reply(
            request_id=seen.request_id or 0,
            segment=segment,
            writer_id=writer,
            number=seen.event_number if seen.event_number >= 0 else seen.offset,
            message=seen.type_name,
        )
        refuses_writer = reply.is_failure and type(reply) is not c.ConditionalCheckFailed
        if seen.type_name in _OF_WRITERS and writer is not None and refuses_writer:
            key, is_append = (segment, writer.bytes), seen.type_name != "SETUP_APPEND"
            effects.append(Forget(segment, writer))
            if is_append or self._remote:
                self._refused.setdefault(key, action if is_append else None)
            if is_append:
                self._hidden.setdefault(key, (seen.event_number, action))
                self._numbers_are_wrong = self._numbers_are_wrong or isinstance(reply, c.InvalidEventNumber)
        return self._encode(reply)

    def await_reply(self, request: Execute) -> bool:
        """A request was executed and its reply comes later. Returns False if earlier requests were forgotten for it."""
        return self._pending.add(request.item, PlannedReply(request.seen, request.plan))

    def nothing_in_flight(self) -> None:
        """Reports that all received requests are executed: later appends were not in flight with a refused append."""
        self._refused.clear()
        self._hidden.clear()

    # --- replies ----------------------------------------------------------------------------------------------------

    def sent(self, seen: Sequence[Seen]) -> None:
        """The replies to these requests were written."""
        observer = self._faults.observer
        if observer is not None and seen:
            now_s = self._faults.clock.now_s()
            for request in seen:
                observer.replied(request, now_s)

    def reply(
        self, frames: list[bytes], asked: PlannedReply | None = None, command: Command | None = None
    ) -> list[Effect]:
        """Takes a reply of the store.

        frames: complete frames; empty if the request was executed and has no reply. asked: the answered request, if the
        host knows it; else it is found among the requests of `await_reply`. command: the decoded first frame, if the
        host has it.
        """
        answered: Sequence[PlannedReply] = ()
        if asked is not None:
            answered = (asked,)
        elif len(self._pending):
            if self._pending.has_runs and not self.passes_appends:  # rules were added meanwhile
                self._pending.separate()
            answered = self._pending.answered_by(command or decode(frames[0]))
        seen: list[Seen] = []
        is_planned = False  # of nearly all replies
        for request in answered:
            seen.append(request.seen)
            self._note(request.seen, frames)
            is_planned = is_planned or request.plan is not NO_PLAN
        if self._has_ended:
            return []
        is_planned = is_planned or self._faults.looks_at_replies or self._numbers_are_wrong
        if frames and not (is_planned or self._hidden or self._instead) and self._outgoing.is_open:
            return [Send(b"".join(frames), seen)]
        effects: list[Effect] = []
        if frames and self._hidden and _code(frames[0])[0] == c.AppendSetup.code:
            set_up: Any = command or decode(frames[0])
            self._hidden.pop((set_up.segment, set_up.writer_id.bytes), None)
        plan = answered[0].plan if len(answered) == 1 else _together([request.plan for request in answered])
        if frames and not isinstance(plan.action, Close) and any(map(self._instead_of, answered)):
            frames = self._replaced(frames[0], answered, effects)
        self._deliver(frames, seen, plan, effects, ask_rules=True)
        if self._instead or self._numbers_are_wrong:
            self._answer_instead(effects)
        return self._leave(effects)

    def forward(self, data: bytes) -> list[Effect]:
        """Bytes of the store that are no known reply: they leave in their turn."""
        if self._has_ended:
            return []
        self._outgoing.add([data], (), _NO_WAIT)
        return self._leave([])

    def replies_ended(self) -> list[Effect]:
        """Reports that the store sends no more replies: replacement replies no longer wait for its replies."""
        effects: list[Effect] = []
        if not self._has_ended:
            self._answer_instead(effects, all_of_them=True)
        return self._leave(effects)

    def _instead_of(self, asked: PlannedReply) -> Error | None:
        """Returns the error that the client receives instead of the store's reply to a request."""
        seen, action = asked.seen, asked.plan.action
        if isinstance(action, Error):
            return action
        if not self._hidden or seen.writer_id is None or seen.type_name == "SETUP_APPEND":
            return None
        number, error = self._hidden.get(_writer_of(seen), (0, None))
        return error if error is not None and seen.event_number >= number else None

    def _replaced(self, frame: bytes, answered: Sequence[PlannedReply], effects: list[Effect]) -> list[bytes]:
        """Replaces a reply to several requests if a rule refuses any of them. Later appends of a refused writer are
        refused, too, unless only their condition failed.
        """
        frames: list[bytes] = []
        start = 0
        for index, request in enumerate(answered):
            error = self._instead_of(request)  # which may follow from the one before
            if error is not None:
                frames += self._acknowledged(frame, answered, start, index)
                if self._numbers_are_wrong:
                    return frames  # the connection ends, and nothing is sent behind the refusal
                frames.append(self._error(request.seen, error, effects))
                start = index + 1
        return frames + self._acknowledged(frame, answered, start, len(answered))

    def _acknowledged(self, frame: bytes, answered: Sequence[PlannedReply], start: int, end: int) -> list[bytes]:
        """Restricts a reply to several appends to the appends from `start` to `end`."""
        if start == end:
            return []
        reply: Any = decode(frame)
        numbers = {"event_number": answered[end - 1].seen.event_number}
        if start and isinstance(reply, c.DataAppended):
            numbers["previous_event_number"] = answered[start - 1].seen.event_number
        return [self._encode(msgspec.structs.replace(reply, **numbers))]

    def _deliver(
        self, frames: list[bytes], seen: Sequence[Seen], plan: Plan, effects: list[Effect], *, ask_rules: bool
    ) -> None:
        """Queues the reply to requests as planned for them, after applying the rules on replies."""
        action = plan.action
        if isinstance(action, Close):
            self._close(frames, plan, action, plan.after, effects)
            return
        if action is not None:
            frames = _changed(frames, action)
        if not ask_rules or not self._faults.looks_at_replies:
            self._outgoing.add(frames, seen, plan.after)
            return
        for frame in frames:
            self._ask_rules(frame, seen, plan.after, effects)

    def _ask_rules(self, frame: bytes, seen: Sequence[Seen], after: Wait, effects: list[Effect]) -> None:
        """Applies the rules on replies to a frame, and queues the result."""
        if self._has_ended:
            return
        try:
            reply = decode(frame)
        except WireError:
            self._outgoing.add([frame], seen, after)  # a rule on the request has corrupted it
            return
        now_s = self._faults.clock.now_s()
        about = reply_seen(
            reply,
            len(frame),
            seen[0] if seen else None,
            store=self._store,
            connection=self.number,
            now_s=now_s,
            with_payload=self._faults.looks_at_payloads,
        )
        plan = self._faults.decide(about)
        if plan is None:
            self._outgoing.add([frame], seen, after)
            return
        for request in seen:
            request.faults = (*request.faults, *about.faults)
        action, wait = plan.action, _added(after, plan.after)
        if isinstance(action, Close):
            self._close([frame], plan, action, wait, effects)
        elif isinstance(action, Error):
            self._outgoing.add([self._error(about, action, effects)], seen, wait)
        else:
            self._outgoing.add(_changed([frame], action, on_reply=True), seen, wait)

    def _note(self, seen: Seen, frames: list[bytes]) -> None:
        """Reports the reply to a request to the observer."""
        observer = self._faults.observer
        if observer is None:
            return
        cls = COMMANDS.get(_code(frames[0])[0]) if frames else None
        failure = cls is not None and cls.is_failure
        observer.executed(seen, self._faults.clock.now_s(), None if cls is None else cls.type_name, failure=failure)

    def _leave(self, effects: list[Effect]) -> list[Effect]:
        """Adds the replies that may leave now."""
        data, seen = self._outgoing.take()
        if data:
            effects.append(Send(data, seen))
        return effects

    # --- the end ----------------------------------------------------------------------------------------------------

    def end(self, why: str, *, reset: bool = False) -> list[Effect]:
        """Ends the connection. The host calls it once all requests executed before `Finish` are answered."""
        if self._has_ended:
            return []
        self.is_deaf = self._has_ended = True
        return [*self._leave([]), End(why, reset)]

    def drop_waiting(self) -> None:
        """The peer is gone: cancels all waits, and drops the requests and replies that wait, now or later."""
        self._waits.clear()
        self._outgoing.clear()
        self._on_effects = lambda _: None  # the host refers to this: without a cycle both are freed at once
        self.is_blocked = False
        self.requests_bytes = 0

    def _finish(self, why: str) -> list[Effect]:
        if self._has_ended:
            return []
        self.is_deaf = True
        return [Finish(why)]

    def _close(self, frames: list[bytes], plan: Plan, action: Close, wait: Wait, effects: list[Effect]) -> None:
        """Ends the connection instead of sending a reply, or within the reply."""
        if action.reply_bytes:
            self._outgoing.add([b"".join(frames)[: action.reply_bytes]], (), wait)
        effects += self.end(_reason(plan, action), reset=action.reset)


def _changed(frames: list[bytes], action: Action | None, *, on_reply: bool = False) -> list[bytes]:
    """Returns the frames of a reply after an action; unchanged by an action that is not about replies.

    on_reply: the rule matched the reply itself, so that `duplicate` is about the reply.
    """
    match action:
        case Drop():
            return []
        case Duplicate(duplicate=what) if on_reply or what == "reply":
            return [frame for frame in frames for _ in range(2)]
        case Corrupt(corrupt=at, xor=xor):
            return [_corrupted(frame, at, xor) for frame in frames]
        case Truncate(truncate=length):
            return [frame[:length] for frame in frames if length]
    return frames


def _corrupted(frame: bytes, at: int, xor: int) -> bytes:
    """Returns the frame with one byte changed; unchanged if it is too short."""
    if not -len(frame) <= at < len(frame):
        return frame
    corrupted = bytearray(frame)
    corrupted[at] ^= xor
    return bytes(corrupted)


def _reason(plan: Plan, action: Close) -> str:
    return f"fault {plan.rule!r}: {action.word}"


def _writer_of(seen: Seen) -> _WriterKey:
    assert seen.writer_id is not None
    return seen.segments[0] if seen.segments else "", seen.writer_id.bytes


def _decided(request: Execute, handle: FaultRequest) -> Execute:
    """A request with the decision of a function applied."""
    plan = Plan(request.plan.rule, handle.decided, _NO_WAIT, request.plan.after)
    return Execute(request.seen, plan, handle.command, handle.frames(request.raw))


def _together(plans: list[Plan]) -> Plan:
    """The plan for a reply to several requests: the longest delay, all holds, the first of other actions."""
    if not plans:
        return NO_PLAN
    acting = next((plan for plan in plans if plan.action is not None), NO_PLAN)
    after = [plan.after for plan in plans]
    holds = tuple(name for wait in after for name in wait.holds)
    longest = Wait(max(wait.seconds for wait in after), holds, any(wait.overtake for wait in after))
    return Plan(acting.rule, acting.action, _NO_WAIT, longest)


def _added(first: Wait, second: Wait) -> Wait:
    return Wait(first.seconds + second.seconds, first.holds + second.holds, first.overtake or second.overtake)
