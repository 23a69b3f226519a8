"""A reply that differs from the trace's, as text: the fields that differ, then both replies.

Invariant: delegation tokens are not shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from segstore.wire.inspect import describe, lines
from segstore.wire.trace import CONTROLLER, Call, FieldDifference, redacted_call

_MOST_PLACES: Final = 8
"""Maximum number of listed differences in a payload."""
_THERE: Final = "_EXISTS"
"""The end of names of replies that refuse to create what exists, such as SEGMENT_ALREADY_EXISTS and STREAM_EXISTS."""


class ReplyDifference(NamedTuple):
    """A reply that differs from the expected reply.

    connection: as in the trace; `CONTROLLER` for a controller call. number: of the record in the trace, from 1.
    request: the frame of the request, if any. expected, actual: frames; None if no reply was expected, or no reply
    came. Of a call, all three are the data of CALL records. why: why no reply came.
    """

    connection: int
    number: int
    request: bytes | None
    expected: bytes | None
    actual: bytes | None
    fields: tuple[FieldDifference, ...]
    why: str = ""

    def __str__(self) -> str:
        asked = f" to {self._name(self.request)}" if self.request is not None else ""
        connection = "the controller" if self.connection == CONTROLLER else f"connection {self.connection}"
        where = f"record {self.number}, {connection}, the reply{asked}"
        expected, actual = self._name(self.expected), self._name(self.actual)
        if self.actual is None:
            return f"{where}: {expected} was expected, but {self.why or 'none came'}"
        if self.expected is None:
            return f"{where}: {actual} came, and nothing was expected"
        if expected != actual:
            text = f"{where}: {actual} came instead of {expected}"
            there = expected.endswith(_THERE) or actual.endswith(_THERE)
            return f"{text}; a store is to be empty at the start, or it answers so" if there else text
        return f"{where}, {actual}: {', '.join(map(_in_words, self.fields))}"

    def _name(self, data: bytes | None) -> str:
        """The type of a frame; the method of a call's request, and the outcome of its answer."""
        if data is None:
            return "nothing"
        if self.connection == CONTROLLER:
            call = Call.unpack(data)
            return "no call" if call is None else call.outcome or call.rpc
        command = describe(data, unknown="keep").command
        return command.type_name if command is not None else "a malformed frame"

    def _lines(self, data: bytes) -> Iterator[str]:
        call = Call.unpack(data) if self.connection == CONTROLLER else None
        if call is not None:
            yield f"  {redacted_call(call)}"
        else:
            yield from lines(describe(data, unknown="keep"))


def _in_words(each: FieldDifference) -> str:
    if each.secret:
        return f"{each.field} is another"
    places = islice(each.places(), _MOST_PLACES)
    return ", ".join(f"{path} is {right or 'missing'} instead of {left or 'missing'}" for path, left, right in places)


def report(difference: ReplyDifference, *, left: str = "expected", right: str = "actual") -> Iterator[str]:
    """A difference as text: a summary line, then both replies, frames as annotated bytes."""
    yield str(difference)
    for name, data in ((left, difference.expected), (right, difference.actual)):
        if data is not None:
            yield f"{name}:"
            yield from difference._lines(data)
