"""What a reader keeps for its user: order, marks, bytes, places, and what is dropped."""

import asyncio
from collections.abc import Callable

from segstore.client.stream import FramedEvent, ReadAhead

Ahead = ReadAhead[str, FramedEvent]


def event(offset: int, segment: str = "s") -> FramedEvent:
    return FramedEvent(b"xx", offset, segment)


def filled(limit_bytes: int = 100, passed: Callable[[str], object] = len) -> Ahead:
    """Two reads of "a", one of "b" between, and a mark behind the first and the last."""
    ahead = Ahead(limit_bytes)
    ahead.add("a", [event(0), event(10)], 0, 20)
    ahead.mark("b", lambda: passed("first"))
    ahead.add("b", [event(0, "b")], 0, 10)
    ahead.add("a", [event(20)], 20, 30)
    ahead.mark("a", lambda: passed("second"))
    return ahead


async def test_events_and_marks_come_out_as_they_went_in() -> None:
    out: list[object] = []
    ahead = filled(passed=out.append)
    while ahead.advance():
        out += [event.offset for event in ahead.take()]
    assert out == [0, 10, "first", 0, 20, "second"]


async def test_what_is_left_of_a_read_is_taken_together_and_in_order() -> None:
    ahead = Ahead(100)
    ahead.add("a", [event(0), event(10), event(20)], 0, 30)
    ahead.advance()
    assert ahead.current.pop().offset == 0
    assert [each.offset for each in ahead.take()] == [10, 20]
    assert ahead.place == ("a", 30)
    assert ahead.held_bytes == 30, "until the next is asked for"
    assert not ahead.advance()
    assert (ahead.take(), ahead.held_bytes) == ([], 0)


async def test_the_place_is_behind_what_was_handed_out() -> None:
    ahead = filled()
    assert ahead.place is None
    ahead.advance()
    assert ahead.place == ("a", 0), "nothing was handed out yet"
    ahead.current.pop()
    assert ahead.place == ("a", 10)
    ahead.current.pop()
    assert ahead.place == ("a", 20)
    assert ahead.advance()
    assert ahead.place == ("b", 0)


async def test_bytes_count_until_their_read_was_returned_and_producers_wait() -> None:
    ahead = filled(limit_bytes=40)
    adds = asyncio.create_task(ahead.room())
    await asyncio.sleep(0)
    assert not adds.done()
    assert ahead.held_bytes == 40
    ahead.advance()
    ahead.current.clear()
    assert ahead.held_bytes == 40
    ahead.advance()
    assert ahead.held_bytes == 20
    await asyncio.wait_for(adds, 60)


async def test_what_is_dropped_does_not_come_out_and_is_not_held() -> None:
    marks: list[str] = []
    ahead = filled(passed=marks.append)
    ahead.advance()
    ahead.drop(lambda key: key == "a")
    assert (ahead.current, ahead.held_bytes, ahead.place) == ([], 10, None)
    assert ahead.advance()
    assert [each.segment for each in ahead.current] == ["b"]
    ahead.add("a", [event(30)], 30, 40)
    ahead.mark("a", lambda: marks.append("third"))
    ahead.clear()
    assert (ahead.held_bytes, ahead.advance(), ahead.current, marks) == (0, False, [], ["first"])
