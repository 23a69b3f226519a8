"""Which appends of a read are stored together: those of one writer to one segment, in order and without a condition."""

from __future__ import annotations

from uuid import UUID

from segstore.server.connection.writers import Writer, run_of, runs_of
from segstore.server.store import SegmentStore
from segstore.wire import AppendBlock, AppendBlockEnd, FrameDecoder, KeepAlive, encode
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


def test_a_conditional_append_is_a_run_of_its_own() -> None:
    conditional = append(1, expected_offset=5)
    assert run_of([conditional, append(2)], 0) == [conditional]


def writers(*last: int) -> dict[bytes, Writer]:
    """One for each of the numbers that were stored last, with the ids 1, 2, …"""
    container = SegmentStore().containers[0]
    made = [Writer(SEGMENT, UUID(int=at)) for at in range(1, len(last) + 1)]
    for writer, number in zip(made, last, strict=True):
        writer.set_up(container, number, None)
    return {writer.id_bytes: writer for writer in made}


def whole(number: int, writer: UUID = WRITER, events: int = 1) -> bytes:
    return encode(AppendBlock(writer, b"data")) + encode(AppendBlockEnd(writer, 4, b"", events, number, number + 100))


def taken(known: dict[bytes, Writer], *frames: bytes) -> list[tuple[int, list[int], list[int]]]:
    """The runs: the writer's id, the numbers, the request ids."""
    rows = FrameDecoder(join_appends=True).append_rows(memoryview(b"".join(frames)))
    assert rows is not None
    runs = runs_of(rows, known)
    return [(writer.writer_id.int, [row[0] for row in run], [row[3] for row in run]) for writer, run in runs]


def test_whole_appends_of_one_writer_that_follow_each_other_are_one_run() -> None:
    known = writers(0, 0)
    found = taken(known, whole(1), whole(2), whole(2, OTHER), whole(3))
    assert found == [(1, [1, 2], [101, 102]), (2, [2], [102]), (1, [3], [103])]
    assert [each.last_event_number for each in known.values()] == [3, 2]


def test_runs_end_before_an_append_that_is_not_simply_the_next_one() -> None:
    for last in (whole(1), whole(3, events=0), whole(3, UUID(int=9)), whole(4, OTHER)):
        assert taken(writers(0, 5), whole(2), last, whole(7)) == [(1, [2], [102])]
    known = writers(0, 0)
    known[OTHER.bytes].is_set_up = False
    assert taken(known, whole(1), whole(1, OTHER)) == [(1, [1], [101])]
