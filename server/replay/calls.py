"""Maps each controller call of a client to its answer in a trace.

A call matches a call of the trace if method and fields are equal. Fields that differ from run to run are not compared:
times, and ids that the client chose, which are paired (`segstore.wire.trace.call_fields`); neither is metadata. In the
mode "strict", a call must follow all calls that the trace answers before this call starts; calls in flight together may
come in any order, because callers share gRPC connections. In the mode "match", a call is answered wherever it is in the
trace; calls that clients repeat match any number of times.

Clients ping transactions by the clock. So in both modes a ping may come at any time, any number of times. A ping that
the trace lacks is answered with OK, unless missing calls are forwarded.

In answers, the client's ids and this replay's addresses replace the ids and addresses of the trace. Delegation tokens
are empty, because recorded tokens are absent or expired.

Pure. Invariants: a call of the trace is used once, except pings, and repeatable calls in the mode "match"; records that
are not calls, or cannot be answered, are in `left_out`, with the reason.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import grpc

from segstore.server.replay.problem import NearMiss, likeness, near_miss, nearest
from segstore.server.replay.script import first_unused
from segstore.wire.controller_api import METHODS
from segstore.wire.printable import printable
from segstore.wire.trace import (
    CONTROLLER,
    Call,
    CallKey,
    Direction,
    FieldDifference,
    Pairing,
    Record,
    RecordKind,
    differing_fields,
    fields_of,
    key_of_call,
    translated_call,
)

if TYPE_CHECKING:
    from segstore.wire.endpoint import Endpoint

_PING: Final = "pingTransaction"
_BEGIN: Final = "createTransaction"
_NOT_FOUND: Final = "_NOT_FOUND"
_REPEATABLE: Final = frozenset({"getControllerServerList", "getDelegationToken", "getURI"})
_STATUSES: Final = frozenset(grpc.StatusCode.__members__)
_NEVER: Final = 1 << 62
_SHOWN: Final = 400
_METADATA_KEY: Final = re.compile(r"(?!grpc-)[0-9a-z_.-]+")
_HEX: Final = re.compile(r"(?:[0-9a-f]{2})*")


class LeftOut(NamedTuple):
    """A record that is no call which can be answered. number: its place in the trace, from 1."""

    number: int
    why: str

    def __str__(self) -> str:
        return f"record {self.number}: {self.why}"


class CallStep:
    """A call of the trace.

    number: from 1, among the calls; 0 for a call answered without the trace. type_name: its method. made, answered:
    places of its records in the trace. answer: None if the trace has no answer. delay_ns: time to the answer. used:
    number of matches.
    """

    connection = CONTROLLER

    def __init__(self, number: int, made: int, ts_ns: int, request: Call) -> None:
        self.number = number
        self.type_name = request.rpc
        self.made = made
        self.ts_ns = ts_ns
        self.request = request
        self.key, self.ids = key_of_call(request.rpc, fields_of(request))
        self.answer: Call | None = None
        self.answered = _NEVER
        self.delay_ns = 0
        self.used = 0

    @property
    def is_answered(self) -> bool:
        """Whether the trace has an answer. It has none for a call that its client gave up."""
        answer = self.answer
        return answer is not None and (answer.status != "CANCELLED" or bool(answer.details))


def read_calls(records: Iterable[Record], left_out: list[LeftOut]) -> list[CallStep]:
    """Returns the calls of a trace in order. left_out: receives records that are neither a call nor its answer."""
    steps: dict[int, CallStep] = {}  # by the place of the request
    pending: dict[int, CallStep] = {}
    count = 0
    for place, record in enumerate(records, 1):
        if record.kind is not RecordKind.CALL:
            continue
        call = Call.unpack(record.data)
        if call is None:
            left_out.append(LeftOut(place, f"{len(record.data)} bytes that are not a call"))
        elif record.direction is Direction.REQUEST:
            why = _flaw_of_request(call)
            if why:
                left_out.append(LeftOut(place, why))
                continue
            count += 1
            steps[place] = pending[call.number] = CallStep(count, place, record.ts_ns, call)
        else:
            step = pending.pop(call.number, None)
            why = _flaw_of_answer(call, step)
            if why:
                left_out.append(LeftOut(place, why))
                if step is not None:
                    del steps[step.made]
            elif step is not None:
                step.answer, step.answered, step.delay_ns = call, place, record.ts_ns - step.ts_ns
    return list(steps.values())


def _flaw_of_request(call: Call) -> str:
    if call.rpc not in METHODS:
        return f"the controller has no method {printable(call.rpc, _SHOWN)!r}"
    if call.omitted:
        return f"the request of {call.rpc} was not recorded"
    if call.status or call.content is None:
        return f"the request of {call.rpc} is not a {METHODS[call.rpc].request.DESCRIPTOR.name}"
    return ""


def _flaw_of_answer(call: Call, step: CallStep | None) -> str:
    name = printable(call.rpc, _SHOWN)
    if step is None:
        return f"an answer to {name}, call {call.number}, which was not made before"
    if call.rpc != step.request.rpc:
        return f"call {call.number} is {step.request.rpc}, and its answer is one to {name}"
    if call.status not in _STATUSES:
        return f"the answer to {name} has the status {printable(call.status, _SHOWN)!r}, which gRPC does not have"
    if call.status == "OK" and call.omitted:
        return f"the answer to {name} was not recorded"
    if call.status == "OK" and call.content is None:
        return f"the answer to {name} is not a {METHODS[name].response.DESCRIPTOR.name}"
    return ""


class CallReplay:
    """A replay of the calls of a trace: which were used, and which ids are paired.

    forwards: whether calls that the trace lacks are forwarded, among them pings of transactions that it lacks.
    """

    def __init__(
        self, records: Iterable[Record], mode: Literal["strict", "match"] = "strict", *, forwards: bool = False
    ) -> None:
        self.mode = mode
        self.left_out: list[LeftOut] = []
        self.steps = read_calls(records, self.left_out)
        self._ids: Pairing[str] = Pairing()
        self._by_key: dict[CallKey, list[CallStep]] = {}
        self._by_rpc: dict[str, list[CallStep]] = {}
        for step in self.steps:
            self._by_key.setdefault(step.key, []).append(step)
            self._by_rpc.setdefault(step.request.rpc, []).append(step)
        begun = [step.answer for step in self._by_rpc.get(_BEGIN, ()) if step.answer is not None]
        self._transactions = {name for answer in begun for name in key_of_call(_BEGIN, fields_of(answer))[1]}
        self._forwards = forwards
        self._next = 0
        self._ordered = [step for step in self.steps if step.request.rpc != _PING]
        self._answers = [(step.answered, step.number, step) for step in self._ordered]
        heapq.heapify(self._answers)

    @property
    def expected(self) -> CallStep | None:
        """The first call that has not come, in the mode "strict"."""
        while self._next < len(self._ordered) and self._ordered[self._next].used:
            self._next += 1
        return self._ordered[self._next] if self.mode == "strict" and self._next < len(self._ordered) else None

    def answer(self, call: Call) -> CallStep | None:
        """Returns the traced call whose answer is due for `call`; None if there is none at this point."""
        key, ids = key_of_call(call.rpc, fields_of(call))
        step = first_unused(step for step in self._by_key.get(key, ()) if self._fits(step, ids))
        if step is None:
            return self._pinged(call, ids)
        if self.mode == "strict" and call.rpc != _PING and step.made > self._earliest():
            return None
        step.used += 1
        if step.used == 1 and not self._repeats(step, ids):
            self._by_key[key].remove(step)
        for pair in zip(step.ids, ids, strict=True):
            self._ids.pair(*pair)
        return step

    def _repeats(self, step: CallStep, ids: tuple[str, ...]) -> bool:
        """Whether a call of the trace may come again: it is the last that matches one which clients repeat."""
        rpc = step.request.rpc
        if rpc != _PING and (self.mode == "strict" or rpc not in _REPEATABLE):
            return False
        return not any(other is not step and self._fits(other, ids) for other in self._by_key[step.key])

    def _pinged(self, call: Call, ids: tuple[str, ...]) -> CallStep | None:
        """A ping that the trace lacks, answered with OK, whose number is 0."""
        if call.rpc != _PING or call.content is None or (self._forwards and self._transactions.isdisjoint(ids)):
            return None
        step = CallStep(0, 0, 0, call)
        step.answer = Call(call.number, call.rpc, status="OK")
        return step

    def _fits(self, step: CallStep, ids: Iterable[str]) -> bool:
        return all(self._ids.fits(*pair) for pair in zip(step.ids, ids, strict=True))

    def _earliest(self) -> int:
        """The place of the first answer to a call that has not come."""
        while self._answers and self._answers[0][2].used:
            heapq.heappop(self._answers)
        return self._answers[0][0] if self._answers else _NEVER

    def message(self, step: CallStep, store: Endpoint, controller: Endpoint) -> bytes:
        """The answer to a call for the client. store, controller: the addresses of this replay."""
        assert step.answer is not None
        return translated_call(step.answer, self._ids.right, store, controller)

    def refusal(self, call: Call, answer: Call) -> str:
        """Returns how a forwarded call was refused; "" if it was not.

        It is refused with any status but OK, and where a scope or a stream is not found about which the trace has
        answered calls.
        """
        if answer.status != "OK":
            return f"{answer.status}: {printable(answer.details, _SHOWN)}" if answer.details else answer.status
        return answer.outcome if answer.outcome.endswith(_NOT_FOUND) and self._has_answered(call) else ""

    def _has_answered(self, call: Call) -> bool:
        """Whether the trace has answered a call about this call's scope."""
        scopes = {scope for scope, _ in call.streams}
        used = (step.request.streams for step in self.steps if step.used)
        return any(scope in scopes for streams in used for scope, _ in streams)

    def differing(self, call: Call, step: CallStep) -> tuple[FieldDifference, ...]:
        """Returns the fields in which a call differs from a traced call, without paired ids."""
        fields = differing_fields(fields_of(step.request), fields_of(call), self._ids.fits)
        return tuple(field._replace(left=field.right, right=field.left) for field in fields)

    def near(self, call: Call) -> tuple[NearMiss, ...]:
        """Returns the traced calls nearest to an unanswered call: an identical call, else at most three."""
        fields = fields_of(call)
        key, ids = key_of_call(call.rpc, fields)
        steps = self._by_rpc.get(call.rpc, ())
        same = next((step for step in steps if step.key == key and self._fits(step, ids)), None)
        mine = dict(key.fields)

        def alike(step: CallStep) -> float:
            its = dict(step.key.fields)
            paths = dict.fromkeys(chain(mine, its))
            return likeness(map(mine.get, paths), map(its.get, paths))

        near = [same] if same is not None else nearest(steps, alike)
        return tuple(near_miss(step, self.differing(call, step)) for step in near)

    def unused(self) -> Counter[str]:
        """The calls of the trace that no client has made, counted by method."""
        return Counter(step.request.rpc for step in self._ordered if not step.used)

    def missed(self) -> Iterable[str]:
        """Yields a line per unused call, with its place in the trace and its fields."""
        return (
            f"call {step.number}: {printable(str(step.request), _SHOWN)}" for step in self._ordered if not step.used
        )


def trailing_of_answer(answer: Call) -> tuple[tuple[str, str | bytes], ...]:
    """Returns the trailing metadata of an answer, without entries that gRPC refuses."""
    trailing: list[tuple[str, str | bytes]] = []
    for key, value in answer.metadata.items():
        if not _METADATA_KEY.fullmatch(key):
            continue
        if not key.endswith("-bin"):
            trailing += [(key, value)] if value.isascii() and value.isprintable() else []
        elif _HEX.fullmatch(value):
            trailing.append((key, bytes.fromhex(value)))
    return tuple(trailing)
