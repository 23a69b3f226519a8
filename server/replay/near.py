"""Near misses: the traced requests that resemble an unanswered request, and the differing fields.

Pure. Invariants: delegation tokens are never shown; an unanswered request is compared with at most `_MOST_COMPARED`
requests. Appends of one writer are compared event by event, by event number, so it does not matter how events are
batched.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from segstore.server.replay.script import Step, key_of, type_of
from segstore.wire import Command
from segstore.wire.blocks import Append
from segstore.wire.inspect import excerpts
from segstore.wire.printable import printable
from segstore.wire.protocol import frames_of
from segstore.wire.trace import CONTROLLER, FieldDifference, compare_frames

if TYPE_CHECKING:
    from segstore.server.replay.matching import Ids

_MOST_NEAR: Final = 3
_MOST_COMPARED: Final = 2_000
_MOST_ALIKE: Final = 256
"""Bytes or characters of a field that are compared at either end, to find the nearest request."""
_AS_NEAR: Final = 0.5
"""Maximum difference in likeness to the nearest request; requests within it are listed."""
_FIELDS_SHOWN: Final = 4
_LONGEST_VALUE: Final = 288
_EVENT_HEADER_BYTES: Final = 8


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


class _Used(Protocol):
    """number: place in the trace. used: how often it was matched."""

    number: int
    used: int


S = TypeVar("S", bound=_Used)


def nearest(steps: Iterable[S], score: Callable[[S], float]) -> list[S]:
    """Returns at most three steps, best first, without steps that are much worse than the best."""
    compared = islice(sorted(steps, key=lambda each: each.used > 0), _MOST_COMPARED)
    scored = [(score(each), each) for each in compared]
    best = heapq.nsmallest(_MOST_NEAR, scored, key=lambda each: (-each[0], each[1].used, each[1].number))
    return [each for found, each in best if found >= best[0][0] - _AS_NEAR]


def near_misses(item: Command | Append, steps: Sequence[Step], ids: Ids) -> tuple[NearMiss, ...]:
    """Returns the traced requests nearest to `item`: an equal request if there is one, else at most three.

    steps: the traced requests of its type.
    """
    live = getattr(item, "writer_id", None)
    kin = [each for each in steps if ids.fits(getattr(each.item, "writer_id", None), live)]
    key = key_of(item, ids.names)
    same = next((each for each in kin if each.key == key), None)
    if same is not None:
        return (_near(same, ()),)
    by_event = _near_appends(item, kin, ids.names) if isinstance(item, Append) else ()
    if by_event:
        return by_event
    found = nearest(kin or steps, lambda each: likeness(key, each.key))
    return tuple(_near(each, differing(item, each.item, ids.names)) for each in found)


def _near(step: Step, fields: tuple[FieldDifference, ...]) -> NearMiss:
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


def _common(mine: Any, its: Any, most: int = _MOST_ALIKE) -> int:
    """The length of the common start of two texts."""
    pairs = enumerate(zip(mine[:most], its[:most], strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(mine), len(its), most))


# --- appends --------------------------------------------------------------------------------------------------------


def _events(item: Append) -> dict[int, bytes]:
    """The events of an append by number; none if its data is not the declared number of events."""
    data, found, at = bytes(item.data), [], 0
    while at < len(data):
        kind, length = (int.from_bytes(data[at + add : at + add + 4], "big", signed=True) for add in (0, 4))
        start = at + _EVENT_HEADER_BYTES
        at = start + length
        if kind or length < 0 or at > len(data):
            return {}
        found.append(data[start:at])
    first = item.event_number - item.event_count + 1
    return dict(enumerate(found, first)) if len(found) == item.event_count else {}


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
        return (NearMiss(end.number, end.connection, end.type_name, end.used > 0, fields, text),)
    differences: dict[Step, list[FieldDifference]] = {}
    step = next(iter(its.values()))[1]
    for index, (number, event) in enumerate(mine.items()):
        there, step = its.get(number, (None, step))
        if there != event:
            its_event = None if there is None else there.hex()
            found = FieldDifference(f"data[{index}]", event.hex(), its_event, secret=False, is_data=True)
            differences.setdefault(step, []).append(found)
    if differences:
        return tuple(_near(each, tuple(found)) for each, found in islice(differences.items(), _MOST_NEAR))
    # The same events, in appends that were answered, or that a client has to make as they are.
    steps = dict.fromkeys(step for number, (_, step) in its.items() if number in mine)
    if all(each.used for each in steps):
        return (_near(step, ()),)
    return tuple(_near(each, differing(item, each.item, names)) for each in islice(steps, _MOST_NEAR))


def _range(numbers: Iterable[int]) -> str:
    first, *rest = numbers
    return f"{first} to {rest[-1]}" if rest else str(first)


# --- differences ----------------------------------------------------------------------------------------------------


def differing(item: Any, wanted: Any, names: dict[str, str]) -> tuple[FieldDifference, ...]:
    """Returns the fields in which a request differs from a traced request. names: of transient segments, translated."""
    found = compare_frames(frames_of(item), frames_of(wanted))
    if isinstance(item, Append):  # fields outside the block
        known = {each.field for each in found}
        for name in ("event_count", "event_number", "segment"):
            mine, its = getattr(item, name), getattr(wanted, name)
            if mine != its and name not in known:
                found = (FieldDifference(name, mine, its, secret=False), *found)
    differing = tuple(
        each
        for each in found
        if each.field not in ("request_id", "writer_id")
        and not (isinstance(each.left, str) and each.left in names and names[each.left] == each.right)
    )
    # If nothing else differs, the writer is already paired with another one of the trace.
    return differing or tuple(each for each in found if each.field == "writer_id")


def in_words(fields: Iterable[FieldDifference]) -> str:
    """Differing fields as text, the first ones only; payloads as JSON, text or hex, shortened around the difference."""
    said = [place.text("here", "in the trace") for each in fields if not each.secret for place in each.places()]
    text = "; ".join(said[:_FIELDS_SHOWN])
    return text if len(said) <= _FIELDS_SHOWN else f"{text}; and {len(said) - _FIELDS_SHOWN} more"


def described(item: Command | Append) -> str:
    """A request as one line: its type and the fields that are compared; payloads are shortened."""
    secrets = item.secrets if isinstance(item, Command) else frozenset()
    said = [type_of(item)]
    for name in item.__struct_fields__:
        value = getattr(item, name)
        if name in ("request_id", "writer_id") or name in secrets or value is None or value == "":
            continue
        if isinstance(value, memoryview | bytes | bytearray):
            events = list(_events(item).values()) if isinstance(item, Append) else []
            value = ", ".join(excerpts(each)[0] for each in (events or [bytes(value)])[:_FIELDS_SHOWN])
        said.append(f"{name}={printable(str(value), _LONGEST_VALUE)}")
    return " ".join(said)
