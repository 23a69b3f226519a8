"""Which appends of a read are stored together: those of one writer to one segment, in order and without a condition."""

from __future__ import annotations

from uuid import UUID

from segstore.server.connection.writers import run_of
from segstore.wire import KeepAlive
from segstore.wire.blocks import Append

WRITER, OTHER = UUID(int=1), UUID(int=2)
SEGMENT = "scope/stream/0.#epoch.0"


def append(number: int, writer: UUID = WRITER, segment: str = SEGMENT, expected_offset: int | None = None) -> Append:
    return Append(segment, writer, number, 1, b"x", expected_offset, number)


def test_a_run_ends_before_what_is_not_like_its_first() -> None:
    first, second = append(1), append(2)
    for last in (KeepAlive(), append(3, OTHER), append(3, segment="a/b/1.#epoch.0"), append(3, expected_offset=5)):
        assert run_of([first, second, last, append(4)], 0) == [first, second]
    assert run_of([first, second, append(1)], 0) == [first, second], "numbers do not fall"
    assert run_of([first, second, append(2)], 1) == [second, append(2)]


def test_a_run_is_bounded() -> None:
    assert len(run_of([append(number) for number in range(2000)], 0)) == 512
