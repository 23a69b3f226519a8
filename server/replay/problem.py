"""Requests that a trace does not answer: the expected or nearest requests of the trace, and the differing fields.

Pure. Invariants: delegation tokens are never shown, nor fields that differ from run to run, such as request ids; an
unanswered request is compared with at most `_MOST_COMPARED` requests. Appends of one writer are compared event by
event, by event number, so it does not matter how events are batched.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segstore.server.replay.script import AnyStep, Step, compared_fields, key_of, type_of
from segstore.wire import Command, WireError
from segstore.wire.blocks import Append, split_events
from segstore.wire.inspect import excerpts
from segstore.wire.printable import printable
from segstore.wire.protocol import frames_of
from segstore.wire.trace import CONTROLLER, FieldDifference, compare_frames

if TYPE_CHECKING:
    from segstore.server.replay.calls import CallReplay
    from segstore.server.replay.matching import Ids
    from segstore.wire.trace import Call

_BATCHED: Final = "--mode match (mode='match') takes requests in any order, and events that are batched differently"
_ORDERED: Final = "--mode match (mode='match') takes calls in any order"
_MOST_NEAR: Final = 3
_MOST_COMPARED: Final = 2_000
_MOST_ALIKE: Final = 256
"""Bytes or characters of a field that are compared at either end, to find the nearest request."""
_AS_NEAR: Final = 0.5
"""Maximum difference in likeness to the nearest request; requests within it are listed."""
_FIELDS_SHOWN: Final = 4
_LONGEST_VALUE: Final = 288


class NearMiss(NamedTuple):
    """A traced request that resembles an unanswered request.

    number: its place in the trace, from 1; of a controller call, its place among the calls. connection: from 1, in the
    order of their first requests; `CONTROLLER` for a call. used: whether it was answered. fields: the differing fields,
    empty if the requests are equal. text: the differences in words.
    """

    number: int
    connection: int
    request: str
    used: bool
    fields: tuple[FieldDifference, ...]
    text: str

    def __str__(self) -> str:
        place = f"request {self.number} of the trace (connection {self.connection})"
        place = f"call {self.number} of the trace" if self.connection == CONTROLLER else place
        answered = ", answered before" if self.used else ""
        return f"near: {place}{answered}: {self.text}" if self.fields else f"same: {place}{answered}"


class Problem(NamedTuple):
    """A request that the trace does not answer.

    connection: number of the client's connection, from 1; `CONTROLLER` for a controller call. request: its type, or the
    method of a call. expected: in the mode "strict", the type of the next traced request. fields: the differing fields,
    without translated fields. frame, expected_frame: the frames of both requests, or the messages of both calls. hint:
    a possible remedy. near: traced requests that resemble it, nearest first; an equal request is here if it was
    answered before or has another place. refusal: the refusal by the store to which requests are forwarded. violation:
    the client's violation of the protocol, after which its connection is closed.
    """

    connection: int
    request: str
    expected: str | None
    fields: tuple[FieldDifference, ...]
    frame: bytes
    expected_frame: bytes | None
    hint: str = ""
    near: tuple[NearMiss, ...] = ()
    refusal: str = ""
    violation: str = ""

    def __str__(self) -> str:
        return "\n  ".join([self.sentence + (f"; {self.hint}" if self.hint else ""), *map(str, self.near)])

    @property
    def sentence(self) -> str:
        """The first line, without the hint."""
        is_call = self.connection == CONTROLLER
        if self.violation:
            return f"connection {self.connection}: the client broke the protocol: {self.violation}"
        start = f"{'controller' if is_call else f'connection {self.connection}'}: {self.request}"
        if self.refusal:
            return f"{start} was forwarded: {self.refusal}"
        if self.expected is None:
            same = next((miss for miss in self.near if not miss.fields), None)
            if same is None:
                return f"{start} is not in the trace"
            return f"{start} was answered before" if same.used else f"{start} comes elsewhere in the trace"
        if self.expected != self.request:
            return f"{start} came where {self.expected} comes in the trace"
        return f"{start} differs from the trace: {in_words(self.fields)}"


def problem(
    connection: int,
    item: Command | Append,
    step: Step | None = None,
    names: dict[str, str] | None = None,
    *,
    strict: bool = False,
    near: tuple[NearMiss, ...] = (),
) -> Problem:
    """Describes a request that the trace does not answer. step: the expected request, if any. names: of transient
    segments, translated.
    """
    name, frame = type_of(item), frames_of(item)
    batched = strict and (isinstance(item, Append) or (step is not None and isinstance(step.item, Append)))
    hint = _BATCHED if batched else ""
    if step is None:
        return Problem(connection, name, None, (), frame, None, hint, near)
    fields = differing(item, step.item, names or {}) if step.type_name == name else ()
    return Problem(connection, name, step.type_name, fields, frame, frames_of(step.item), hint, near)


def broken(connection: int, error: WireError) -> Problem:
    """Describes bytes of a client that break the protocol."""
    return Problem(connection, error.type_name or "bytes", None, (), b"", None, violation=str(error))


def call_problem(call: Call, calls: CallReplay, *, compare: bool) -> Problem:
    """Describes a controller call that the trace does not answer. compare: whether to look for similar calls."""
    near = calls.near(call) if compare else ()
    step = calls.expected
    if step is None:
        return Problem(CONTROLLER, call.rpc, None, (), call.message, None, "", near)
    fields: tuple[FieldDifference, ...] = ()
    if step.request.rpc == call.rpc:
        fields = calls.differing(call, step)
        near = tuple(miss for miss in near if not miss.fields)
    return Problem(CONTROLLER, call.rpc, step.request.rpc, fields, call.message, step.request.message, _ORDERED, near)


# --- near misses ----------------------------------------------------------------------------------------------------


def nearest(steps: Iterable[AnyStep], score: Callable[[AnyStep], float]) -> list[AnyStep]:
    """Returns at most three steps, best first, without steps that are much worse than the best."""
    compared = islice(sorted(steps, key=lambda each: each.used > 0), _MOST_COMPARED)
    scored = [(score(step), step) for step in compared]
    best = heapq.nsmallest(_MOST_NEAR, scored, key=lambda each: (-each[0], each[1].used, each[1].number))
    return [each for found, each in best if found >= best[0][0] - _AS_NEAR]


def near_misses(item: Command | Append, steps: Sequence[Step], ids: Ids) -> tuple[NearMiss, ...]:
    """Returns the traced requests nearest to `item`: an equal request if the trace has it, else at most three.

    steps: the traced requests of its type.
    """
    live = getattr(item, "writer_id", None)
    kin = [step for step in steps if ids.fits(getattr(step.item, "writer_id", None), live)]
    key = key_of(item, ids.names)
    same = next((step for step in kin if step.key == key), None)
    if same is not None:
        return (near_miss(same, ()),)
    by_event = _near_appends(item, kin, ids.names) if isinstance(item, Append) else ()
    if by_event:
        return by_event
    found = nearest(kin or steps, lambda each: likeness(key, each.key))
    return tuple(near_miss(step, differing(item, step.item, ids.names)) for step in found)


def near_miss(step: AnyStep, fields: tuple[FieldDifference, ...]) -> NearMiss:
    """Describes a traced request or call, which differs in these fields."""
    return NearMiss(step.number, step.connection, step.type_name, step.used > 0, fields, in_words(fields))


def likeness(mine: Iterable[Any], its: Iterable[Any]) -> float:
    """Returns the likeness of two requests of one type: the sum over their fields, 0 to 1 per field."""
    return sum(map(_alike, mine, its))


def _alike(mine: Any, its: Any) -> float:
    if mine == its:
        return 1.0
    if type(mine) is type(its) and isinstance(mine, str | bytes) and mine and its:
        ends = _common(mine, its), _common(mine[::-1], its[::-1])
        return min(sum(ends), len(mine), len(its)) / max(len(mine), len(its), 1)
    if isinstance(mine, int) and isinstance(its, int):
        return 0.5 / (1 + abs(mine - its))
    return 0.0


def _common(mine: Any, its: Any) -> int:
    """The length of the common start of two texts."""
    pairs = zip(mine[:_MOST_ALIKE], its[:_MOST_ALIKE], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


# --- appends --------------------------------------------------------------------------------------------------------


def _events(item: Append) -> dict[int, bytes]:
    """The events of an append by number; none if its data is not the declared number of events."""
    events: list[bytes] = []
    end = split_events(item.data, 0, len(item.data), 0, lambda event, *_: event, None, events)
    first = item.event_number - item.event_count + 1
    return dict(enumerate(events, first)) if end == len(item.data) and len(events) == item.event_count else {}


def _near_appends(item: Append, steps: Iterable[Step], names: dict[str, str]) -> tuple[NearMiss, ...]:
    """Returns the traced appends with the same event numbers of the same writer."""
    mine, segment = _events(item), names.get(item.segment, item.segment)
    its: dict[int, tuple[bytes, Step]] = {}
    last: tuple[Step, int] | None = None
    for step in steps:
        wanted = step.item
        if not isinstance(wanted, Append) or wanted.segment != segment or wanted.expected_offset is not None:
            continue
        last = step, wanted.event_number
        if wanted.event_number - wanted.event_count < item.event_number and wanted.event_number >= min(mine, default=0):
            its.update({number: (event, step) for number, event in _events(wanted).items()})
    if not mine or item.expected_offset is not None or last is None:
        return ()
    if not its:
        end, number = last
        text = f"the trace has events of this writer up to number {number}, and not {_range(mine)}"
        fields = (FieldDifference("event_number", item.event_number, number, secret=False),)
        return (near_miss(end, fields)._replace(text=text),)
    differences: dict[Step, list[FieldDifference]] = {}
    step = next(iter(its.values()))[1]
    for index, (number, event) in enumerate(mine.items()):
        there, step = its.get(number, (None, step))
        if there != event:
            its_event = None if there is None else there.hex()
            found = FieldDifference(f"data[{index}]", event.hex(), its_event, secret=False, is_data=True)
            differences.setdefault(step, []).append(found)
    if differences:
        return tuple(near_miss(each, tuple(found)) for each, found in islice(differences.items(), _MOST_NEAR))
    # The same events, in appends that were answered, or that a client has to make as they are.
    steps = dict.fromkeys(step for number, (_, step) in its.items() if number in mine)
    if all(step.used for step in steps):
        return (near_miss(step, ()),)
    return tuple(near_miss(step, differing(item, step.item, names)) for step in islice(steps, _MOST_NEAR))


def _range(numbers: Iterable[int]) -> str:
    first, *rest = numbers
    return f"{first} to {rest[-1]}" if rest else str(first)


# --- differences ----------------------------------------------------------------------------------------------------


def differing(item: Any, wanted: Any, names: dict[str, str]) -> tuple[FieldDifference, ...]:
    """Returns the fields in which a request differs from a traced request. names: of transient segments, translated."""
    found = compare_frames(frames_of(item), frames_of(wanted))
    if isinstance(item, Append):  # fields outside the block
        known = {difference.field for difference in found}
        for name in ("event_count", "event_number", "segment"):
            mine, its = getattr(item, name), getattr(wanted, name)
            if mine != its and name not in known:
                found = (FieldDifference(name, mine, its, secret=False), *found)
    differing = tuple(
        difference
        for difference in found
        if difference.field not in ("request_id", "writer_id")
        and not (
            isinstance(difference.left, str) and difference.left in names and names[difference.left] == difference.right
        )
    )
    # If nothing else differs, the writer is already paired with another one of the trace.
    return differing or tuple(difference for difference in found if difference.field == "writer_id")


def in_words(fields: Iterable[FieldDifference]) -> str:
    """Differing fields as text, the first ones only; payloads as JSON, text or hex, shortened around the difference."""
    said = [place.text("here", "in the trace") for field in fields if not field.secret for place in field.places()]
    text = "; ".join(said[:_FIELDS_SHOWN])
    return text if len(said) <= _FIELDS_SHOWN else f"{text}; and {len(said) - _FIELDS_SHOWN} more"


def described(item: Command | Append) -> str:
    """A request as one line: its type and the fields that are compared; payloads are shortened."""
    said = [type_of(item)]
    for name, value in compared_fields(item):
        if value is None or value == "":
            continue
        if isinstance(value, memoryview | bytes | bytearray):
            events = list(_events(item).values()) if isinstance(item, Append) else []
            value = ", ".join(excerpts(event)[0] for event in (events or [bytes(value)])[:_FIELDS_SHOWN])
        said.append(f"{name}={printable(str(value), _LONGEST_VALUE)}")
    return " ".join(said)
