"""Describes requests that a trace does not answer: the request, the expected or nearest requests, the differing fields.

Invariant: delegation tokens are never shown, nor fields that differ from run to run, such as request ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from segstore.server.replay.near import NearMiss, differing, in_words
from segstore.server.replay.script import Step, type_of
from segstore.wire import Command, WireError
from segstore.wire.blocks import Append
from segstore.wire.protocol import frames_of
from segstore.wire.trace import CONTROLLER, FieldDifference

if TYPE_CHECKING:
    from segstore.server.replay.calls import CallReplay
    from segstore.wire.trace import Call

_BATCHED: Final = "--mode match (mode='match') takes requests in any order, and events that are batched differently"
_ORDERED: Final = "--mode match (mode='match') takes calls in any order"


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
            same = next((each for each in self.near if not each.fields), None)
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
        near = tuple(each for each in near if not each.fields)
    return Problem(CONTROLLER, call.rpc, step.request.rpc, fields, call.message, step.request.message, _ORDERED, near)
