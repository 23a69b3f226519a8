"""Numbers and acknowledgements of a writer, without a connection, against a plain list."""

import asyncio
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.client.connection import BadAck, InFlight, OtherWriter, Pending, add_behind, notify_stored


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def queue(most_events: int = 500, most_bytes: int = 1 << 20, most_held: int = 1000) -> InFlight:
    return InFlight(0, most_held, most_events, most_bytes)


def add(events: InFlight, item: Pending) -> bool:
    return events.add(item.data, item.done, item.events, item.tag)


def item(loop: asyncio.AbstractEventLoop, data: bytes = b"x", events: int = 1) -> Pending:
    return Pending(data, events, None, loop.create_future())


def test_an_append_is_bounded_but_one_item_always_goes(loop: asyncio.AbstractEventLoop) -> None:
    events = queue(2, 10)
    sizes = (50, 3, 3, 3, 3, 9, 3)
    assert [add(events, item(loop, b"x" * size)) for size in sizes] == [True, *[False] * 6]
    taken = [events.take() for _ in range(len(events.queued))]
    found = [(append.first, append.last, append.size) for append in taken]
    assert found == [(1, 1, 50), (2, 3, 6), (4, 5, 6), (6, 6, 9), (7, 7, 3)]
    assert (events.newest, events.held_bytes) == (None, 74)
    assert add(events, item(loop))


def test_an_item_of_several_events_is_an_append_of_its_own(loop: asyncio.AbstractEventLoop) -> None:
    events = queue()
    for count in (1, 1, 3, 2, 1):
        add(events, item(loop, b"abc", count))
    taken = [events.take() for _ in range(len(events.queued))]
    assert [(append.first, append.last, append.size) for append in taken] == [
        (1, 2, 6),
        (3, 5, 3),
        (6, 7, 3),
        (8, 8, 3),
    ]
    stored, size = events.set_up(6)
    assert (len(stored), size) == (3, 9), "the item of which only a part is covered stays whole"
    assert [(append.first, append.last) for append in events.sent] == [(6, 7), (8, 8)]


def test_an_event_is_added_behind_others_unless_there_is_anything_else_to_decide() -> None:
    events = queue(500, 100_000, 40_000)
    assert add_behind(events, b"event", 0.5, object) is None, "nothing is queued"  # type: ignore[arg-type]
    events.add(b"first", print)
    assert events.charge() == 5
    future = add_behind(events, b"event", 0.5, object)  # type: ignore[arg-type]
    assert type(future) is object
    assert [(item.data, item.tag, item.done) for item in events.queued[0].items][1:] == [(b"event", 0.5, future)]
    assert add_behind(events, bytes(16_380), 0.5, object) is None, "what was added is to be charged"  # type: ignore[arg-type]
    assert events.charge() == 5
    for _ in range(2):
        assert add_behind(events, bytes(16_000), 0.5, object)  # type: ignore[arg-type]
        events.charge()
    assert add_behind(events, bytes(40_000 - events.added_bytes), 0.5, object) is None, "the writer is full"  # type: ignore[arg-type]
    assert add_behind(events, bytes(40_000 - events.added_bytes - 1), 0.5, object)  # type: ignore[arg-type]
    assert events.has_room
    for most_events, count in ((2, 1), (500, 2)):
        events = queue(most_events)
        events.add(b"first", print, count)
        events.charge()
        assert bool(add_behind(events, b"second", 0.5, object)) is (count == 1)  # type: ignore[arg-type]
        assert add_behind(events, b"third", 0.5, object) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [7])
def test_many_items_are_taken_in_order(loop: asyncio.AbstractEventLoop, most: int) -> None:
    events, waiting = queue(most, 1 << 30), [item(loop, b"%d" % number) for number in range(40_000)]
    add(events, waiting[0])
    found = [*events.carried().items]
    for each in waiting[1:]:
        add(events, each)
    assert (events.unsettled, events.has_many) == (39_999, True)
    while events.queued:
        found += events.take().items
        if len(waiting) == 40_000:
            waiting.append(item(loop, b"late"))
            add(events, waiting[-1])
    assert found == waiting
    add(events, item(loop, b"more"))
    assert len(events.take_all()) == len(waiting)


async def test_futures_and_functions_are_notified_and_none_affects_another() -> None:
    futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
    heard: list[object] = []
    futures[1].cancel()

    def broken(_: object) -> None:
        raise ZeroDivisionError

    notify_stored([futures[0], broken, futures[1], heard.append, futures[2]], heard.append)
    assert [future.done() and not future.cancelled() for future in futures] == [True, False, True]
    assert type(heard[0]) is ZeroDivisionError
    assert heard[1:] == [None]


@pytest.mark.parametrize(
    ("number", "previous", "why"),
    [(2, 2, "after event 2"), (2, 3, "after event 3"), (3, 1, "is unacknowledged"), (4, 0, "last sent is 3")],
)
def test_an_ack_that_cannot_be_is_refused_and_changes_nothing(
    loop: asyncio.AbstractEventLoop, number: int, previous: int, why: str
) -> None:
    events = queue(1)
    for _ in range(3):
        add(events, item(loop))
        events.take()
    with pytest.raises(BadAck, match=why):
        events.acknowledged(number, previous)
    assert (events.held_bytes, events.settled, events.last_stored) == (3, 0, -1)
    assert len(events.acknowledged(3, -(2**63))[0]) == 3


def test_a_set_up_that_knows_more_than_was_sent_is_refused(loop: asyncio.AbstractEventLoop) -> None:
    events = queue(1)
    add(events, item(loop))
    events.take()
    with pytest.raises(OtherWriter, match="last sent is 1"):
        events.set_up(2)


def test_what_was_in_flight_at_a_set_up_is_not_new(loop: asyncio.AbstractEventLoop) -> None:
    events = queue(1)
    assert not events.oldest_is_new
    events.set_up(-(2**63))
    add(events, item(loop))
    events.take()
    assert events.oldest_is_new
    events.set_up(-(2**63))
    assert not events.oldest_is_new, "the store may have it, though it did not when it was asked"
    add(events, item(loop))
    events.take()
    events.acknowledged(1, 0)
    assert events.oldest_is_new


def test_an_ack_of_several_appends_gives_back_their_sizes_and_no_more(loop: asyncio.AbstractEventLoop) -> None:
    events = InFlight(8, 1000, 10, 1 << 20)
    for _ in range(25):
        add(events, item(loop))
    for _ in range(len(events.queued)):
        events.take()
    assert events.held_bytes == 25 * 9
    stored, size = events.acknowledged(20, -1)
    assert (len(stored), size, events.held_bytes) == (20, 20 * 9, 5 * 9)


def test_an_ack_within_an_append_releases_its_first_events_only(loop: asyncio.AbstractEventLoop) -> None:
    events = queue()
    for _ in range(3):
        add(events, item(loop, b"abc"))
    append = events.take()
    waiters = list(append.done)
    assert events.set_up(2) == (waiters[:2], 6)
    assert (append.first, append.last, append.size, len(append.done)) == (3, 3, 3, 1)


@given(st.integers())
def test_whatever_is_acknowledged_cut_and_sent_again_each_item_comes_out_once_and_in_order(seed: int) -> None:
    random = Random(seed)
    loop = asyncio.new_event_loop()
    try:
        events = queue(random.randrange(1, 6), random.randrange(1, 20))
        added: list[Pending] = []
        out: list[object] = []
        reached = 0
        for _ in range(60):
            action = random.random()
            if action < 0.5:
                made = item(loop, bytes(random.randrange(9)), random.randrange(1, 4))
                added.append(made)
                add(events, made)
            elif action < 0.75 and events.queued:
                events.take()
            else:
                sent = list(events.sent)
                if sent:
                    last = random.choice(sent).last
                    if random.random() < 0.5:
                        out += events.acknowledged(last, reached)[0]
                    else:
                        out += events.set_up(last)[0]
                    reached = last
            assert events.held_bytes == sum(len(each.data) for each in added[len(out) :])
            assert events.unsettled == len(added) - len(out) == len(added) - events.settled
        out += [each.done for each in events.take_all()]
        assert out == [each.done for each in added]
        assert (events.settled, events.unsettled) == (len(added), 0)
        assert events.held_bytes == 0
    finally:
        loop.close()
