"""A decoder that is fed in C and one that is fed in Python: the same commands, state and errors, whatever comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import AppendBlock, AppendBlockEnd, FrameDecoder, KeepAlive, SetupAppend, WireError, encode
from segstore.wire.blocks import WHOLE_APPENDS, BlockWriter
from tests.wire.codec.speed.pairs import pairs

if TYPE_CHECKING:
    from collections.abc import Callable

WRITER = UUID(int=1 << 90)
STATE = ("_failed", "has_part", "position", "taken", "buffered_bytes")


def append(number: int, size: int) -> bytes:
    return encode(AppendBlock(WRITER, bytes(size))) + encode(AppendBlockEnd(WRITER, size, b"", 1, number, number))


pieces = st.one_of(
    st.builds(append, st.integers(-2, 9), st.sampled_from((0, 1, 100, 5000))),
    st.sampled_from((encode(KeepAlive()), encode(SetupAppend(1, WRITER, "s", "")), encode(KeepAlive())[:5])),
    st.sampled_from((b"\0\0\0\x63\0\0\0\0", b"\0\0\0\x05\x7f\0\0\0", b"\0\0\0\x03\0\0\0\x02ab")),
)
kinds: st.SearchStrategy[Callable[[bytes], Any]] = st.sampled_from((bytes, bytearray, memoryview))
rests: st.SearchStrategy[tuple[Any, ...]] = st.sampled_from((
    *((), (None,), (None, 0), (None, 0, None), (None, 0, 2), (None, 0, 300, "records", False), (None, 0, 1, "records")),
    *((None, 0, None, "records", True), (None, 0, None, None, True), (7,), (30, 8), (9, 3, 1), (1, 2)),
))  # fmt: skip


class Side:
    """A decoder, and the records of its appends."""

    def __init__(self, feed: Callable[..., Any]) -> None:
        self.feed = feed
        self.decoder = FrameDecoder(codec="c", joined=WHOLE_APPENDS, max_frame_bytes=10_000)
        self.records = {WRITER.bytes: BlockWriter("s", WRITER)}

    def take(self, data: Any, rest: tuple[Any, ...]) -> Any:
        """What comes of some bytes: commands or an error, and the decoder's state."""
        given = [self.records if each == "records" else each for each in rest]
        try:
            found = shown(self.feed(self.decoder, data, *given))
        except WireError as error:
            found = type(error), str(error), error.facts(), shown(error.decoded)
        except (ValueError, IndexError) as error:
            found = type(error), str(error)
        state = [repr(getattr(self.decoder, name)) for name in STATE]
        return found, state, [each.last_event_number for each in self.records.values()]


def shown(items: list[Any]) -> list[str]:
    return [
        repr([[(*row[:2], bytes(row[2]), row[3]) for row in rows] for _, rows in each])
        if isinstance(each, list)
        else repr(each)
        for each in items
    ]


@pytest.mark.needs("the extension segstore._speed")
@given(st.lists(st.tuples(st.lists(pieces, max_size=4), kinds, rests, st.integers(0, 12)), max_size=8))
def test_what_is_fed_in_c_and_in_python_comes_out_alike(steps: list[tuple[list[bytes], Any, Any, int]]) -> None:
    sides = [Side(call) for call in pairs()["feed"]]
    left = b""
    for given_pieces, kind, rest, kept in steps:
        data = left + b"".join(given_pieces)
        data, left = data[: len(data) - kept], data[max(0, len(data) - kept) :]
        first, second = (side.take(kind(data), rest) for side in sides)
        assert first == second
