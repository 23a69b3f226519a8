"""Requests that a trace does not answer, described in a sentence: the request, the expected one, differing fields.

Invariants: delegation tokens are never shown; neither are fields translated from run to run, such as request ids, which
are never compared.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from segstore.server.replay.script import Step, type_of
from segstore.wire import Command
from segstore.wire.blocks import Append
from segstore.wire.protocol import frames_of
from segstore.wire.trace import FieldDifference, compare_frames

_FIELDS_SHOWN: Final = 4
_BATCHED: Final = "--mode match (mode='match') takes requests in any order, and events that are batched differently"


class Problem(NamedTuple):
    """A request that the trace does not answer.

    connection: number of the client's connection, from 1. expected: type of the next request there, in the mode
    "strict". fields: the differing fields, translated ones left out. hint: a possible remedy.
    """

    connection: int
    request: str
    expected: str | None
    fields: tuple[FieldDifference, ...]
    frame: bytes
    expected_frame: bytes | None
    hint: str = ""

    def __str__(self) -> str:
        return self._sentence() + (f"; {self.hint}" if self.hint else "")

    def _sentence(self) -> str:
        if self.expected is None:
            return f"connection {self.connection}: {self.request} is not in the trace"
        if self.expected != self.request:
            return f"connection {self.connection}: {self.request} came where {self.expected} comes in the trace"
        shown = [each for each in self.fields if not each.secret]
        differences = ", ".join(
            f"{each.field} is {each.left!r} and not {each.right!r}" for each in shown[:_FIELDS_SHOWN]
        )
        if len(shown) > _FIELDS_SHOWN:  # each event of an append is a field
            differences += f", and {len(shown) - _FIELDS_SHOWN} more"
        return f"connection {self.connection}: {self.request} differs from the trace: {differences}"


def problem(
    connection: int,
    item: Command | Append,
    step: Step | None = None,
    names: dict[str, str] | None = None,
    *,
    strict: bool = False,
) -> Problem:
    """Describes a request that the trace does not answer. step: the expected request, if any. names: of transient
    segments, translated.
    """
    name, frame = type_of(item), frames_of(item)
    batched = strict and (isinstance(item, Append) or (step is not None and isinstance(step.item, Append)))
    hint = _BATCHED if batched else ""
    if step is None:
        return Problem(connection, name, None, (), frame, None, hint)
    fields = _differing(item, step.item, names or {}) if step.type_name == name else ()
    return Problem(connection, name, step.type_name, fields, frame, frames_of(step.item), hint)


def _differing(item: Any, wanted: Any, names: dict[str, str]) -> tuple[FieldDifference, ...]:
    """The fields in which a request differs from one of the trace. names: of transient segments, translated."""
    found = compare_frames(frames_of(item), frames_of(wanted))
    if isinstance(item, Append):  # fields outside the block
        known = {each.field for each in found}
        for name in ("event_count", "event_number"):
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
