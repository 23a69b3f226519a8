"""Numbers and acknowledgements of a writer, without a connection, against a plain list."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.client.connection import BadAck, InFlight, OtherWriter, Pending, acknowledged, add, take


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def item(loop: asyncio.AbstractEventLoop, data: bytes = b"x", events: int = 1) -> Pending:
    return Pending(data, events, None, loop.create_future())


def test_what_is_taken_is_bounded_but_one_item_always_goes(loop: asyncio.AbstractEventLoop) -> None:
    events = InFlight()
    for size in (50, 3, 3, 3, 3):
        add(events, item(loop, b"x" * size))
    (first, _), (second, _), (third, _) = take(events, 2, 10), take(events, 2, 10), take(events, 9, 10)
    assert [(each.first, each.last, each.size) for each in (first, second, third)] == [(1, 1, 50), (2, 3, 6), (4, 5, 6)]
    assert not events.queued
    assert events.held_bytes == 62


def test_only_an_item_that_is_added_to_an_empty_queue_is_first(loop: asyncio.AbstractEventLoop) -> None:
    events = InFlight()
    for _ in range(2):
        assert [add(events, item(loop)) for _ in range(20_000)] == [True, *[False] * 19_999]
        while events.queued:
            take(events, 500, 1 << 30)


@pytest.mark.parametrize("most", [1, 7, 5000])
def test_many_items_are_taken_in_order(loop: asyncio.AbstractEventLoop, most: int) -> None:
    events, waiting = InFlight(), [item(loop, b"%d" % number) for number in range(40_000)]
    for each in waiting:
        add(events, each)
    found = [events.carried(), *take(events, most, 1 << 30)[0].items]
    assert events.unsettled == 39_999
    while events.queued:
        found += take(events, most, 1 << 30)[0].items
        if len(found) == 20_000:
            waiting.append(item(loop, b"late"))
            add(events, waiting[-1])
    assert found == waiting
    add(events, item(loop, b"more"))
    assert len(events.take_all()) == len(waiting)


@pytest.mark.parametrize(
    ("number", "previous", "why"),
    [(2, 2, "after event 2"), (2, 3, "after event 3"), (3, 1, "is unacknowledged"), (4, 0, "last sent is 3")],
)
def test_an_ack_that_cannot_be_is_refused_and_changes_nothing(
    loop: asyncio.AbstractEventLoop, number: int, previous: int, why: str
) -> None:
    events = InFlight()
    for _ in range(3):
        add(events, item(loop))
        take(events, 1, 100)
    with pytest.raises(BadAck, match=why):
        acknowledged(events, number, previous)
    assert (events.held_bytes, events.settled, events.last_stored) == (3, 0, -1)
    assert len(acknowledged(events, 3, -(2**63))[0]) == 3


def test_a_set_up_that_knows_more_than_was_sent_is_refused(loop: asyncio.AbstractEventLoop) -> None:
    events = InFlight()
    add(events, item(loop))
    take(events, 1, 100)
    with pytest.raises(OtherWriter, match="last sent is 1"):
        events.set_up(2)


def test_what_was_in_flight_at_a_set_up_is_not_new(loop: asyncio.AbstractEventLoop) -> None:
    events = InFlight()
    assert not events.oldest_is_new
    events.set_up(-(2**63))
    add(events, item(loop))
    take(events, 1, 100)
    assert events.oldest_is_new
    events.set_up(-(2**63))
    assert not events.oldest_is_new, "the store may have it, though it did not when it was asked"
    add(events, item(loop))
    take(events, 1, 100)
    acknowledged(events, 1, 0)
    assert events.oldest_is_new


def test_an_ack_within_an_append_releases_its_first_events_only(loop: asyncio.AbstractEventLoop) -> None:
    events = InFlight()
    for count in (1, 2, 3):
        add(events, item(loop, b"abc", count))
    append, _ = take(events, 100, 100)
    stored, size = events.set_up(4)
    assert [each.events for each in stored] == [1, 2], "the event of which only part is covered stays whole"
    assert size == 6
    assert (append.first, append.last, append.size) == (4, 6, 3)


@given(st.integers())
def test_whatever_is_acknowledged_cut_and_sent_again_each_item_comes_out_once_and_in_order(seed: int) -> None:
    random = Random(seed)
    loop = asyncio.new_event_loop()
    try:
        events = InFlight()
        added: list[Pending] = []
        out: list[Pending] = []
        reached = 0
        for _ in range(60):
            action = random.random()
            if action < 0.5:
                made = item(loop, bytes(random.randrange(9)), random.randrange(1, 4))
                added.append(made)
                add(events, made)
            elif action < 0.75 and events.queued:
                take(events, random.randrange(1, 6), random.randrange(1, 20))
            else:
                sent = list(events.sent)
                if sent:
                    last = random.choice(sent).last
                    if random.random() < 0.5:
                        out += acknowledged(events, last, reached)[0]
                    else:
                        out += events.set_up(last)[0]
                    reached = last
            assert events.held_bytes == sum(len(each.data) for each in added[len(out) :])
            assert events.unsettled == len(added) - len(out) == len(added) - events.settled
        out += events.take_all()
        assert out == added
        assert (events.settled, events.unsettled) == (len(added), 0)
        assert events.held_bytes == 0
    finally:
        loop.close()
