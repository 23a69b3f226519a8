"""Polling for the acknowledgement of a single append: how long it lasts, and when it is given up."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from segstore.client import SegmentWriter
from segstore.client.connection import ConnectionPool, FixedStore
from segstore.client.connection.polling import AckPolling
from segstore.client.errors import Closed
from segstore.server import MockSegmentStore
from tests.client.segments import SEGMENT, make
from tests.client.support import Recorder, endpoint, settings, until

MOST = 5


class Loop:
    """An outbox and the callbacks that its polling schedules, run by hand."""

    def __init__(self, most: int = MOST) -> None:
        self.bytes_in_flight = 0
        self.scheduled: deque[Callable[[], None]] = deque()
        self.polling = AckPolling(most, self.scheduled.append)

    def send(self) -> None:
        self.bytes_in_flight = 100
        self.polling.start(self)

    def iterations(self) -> int:
        """Runs until nothing is scheduled; returns how often the loop did not sleep."""
        count = 0
        while self.scheduled:
            assert len(self.scheduled) == 1
            self.scheduled.popleft()()
            count += 1
        return count


def test_polling_ends_with_the_acknowledgement() -> None:
    loop = Loop()
    loop.send()
    loop.scheduled.popleft()()
    assert loop.polling.active
    loop.bytes_in_flight = 0
    assert loop.iterations() == 1
    assert not loop.polling.active
    loop.send()  # and the next append is polled for as well
    assert loop.scheduled


def test_an_acknowledgement_that_does_not_come_is_polled_for_a_bounded_number_of_iterations() -> None:
    loop = Loop()
    loop.send()
    assert loop.iterations() == MOST
    assert not loop.polling.active


def test_each_failure_in_a_row_doubles_the_appends_that_are_not_polled_for() -> None:
    loop, sent = Loop(), []
    for _ in range(12):
        count = 1
        loop.send()
        while not loop.scheduled:
            loop.send()
            count += 1
        loop.iterations()
        sent.append(count)
    assert sent == [1, 3, 5, 9, 17, 33, 65, 129, 257, 513, 1025, 1025]


def test_a_success_ends_the_failures() -> None:
    loop = Loop()
    for _ in range(3):
        loop.polling.skip = 0
        loop.send()
        loop.iterations()
    assert loop.polling.skip == 8
    loop.polling.skip = 0
    loop.send()
    loop.bytes_in_flight = 0
    loop.iterations()
    loop.send()
    loop.iterations()
    assert loop.polling.skip == 2


def test_an_append_that_is_sent_meanwhile_schedules_no_second_callback() -> None:
    loop = Loop()
    loop.send()
    loop.iterations()
    loop.polling.skip = 0
    loop.send()
    loop.send()
    assert len(loop.scheduled) == 1


def test_without_iterations_the_loop_always_sleeps() -> None:
    loop = Loop(0)
    loop.send()
    assert not loop.scheduled


@pytest.mark.parametrize("most", [0, 64])
async def test_an_append_that_its_caller_waits_for_is_polled_for_where_it_is_allowed(
    store: MockSegmentStore, most: int
) -> None:
    async with one_connection(store, max_ack_polls=most) as (writer, polling):
        appended = write_now(writer)
        assert polling.active is bool(most)
        await appended
        await asyncio.sleep(0)
        assert not polling.active


@pytest.mark.watched
async def test_an_append_that_a_store_does_not_answer_is_given_up_and_stored_later(store: MockSegmentStore) -> None:
    async with one_connection(store) as (writer, polling):
        store.faults.add("type = APPEND_BLOCK_END", times=1, do="hold", name="late")
        appended = write_now(writer)
        await store.faults.wait_held("late")
        await until(lambda: not polling.active)
        assert polling.skip == 2
        store.faults.release("late")
        await appended
        assert store.store.segment_info(SEGMENT).length == len(b"event")


@pytest.mark.watched
async def test_a_writer_that_is_ended_is_not_polled_for_any_longer(store: MockSegmentStore) -> None:
    async with one_connection(store) as (writer, polling):
        store.faults.add("type = APPEND_BLOCK_END", times=1, do="hold", name="late")
        appended = write_now(writer)
        assert polling.active
        await writer.abort()
        await asyncio.sleep(0)
        assert not polling.active
        with pytest.raises(Closed):
            await appended


def write_now(writer: SegmentWriter) -> asyncio.Future[None]:
    """Writes as a caller does that waits for each append."""
    appended = asyncio.get_running_loop().create_future()
    writer.append(b"event", appended, now=True)
    return appended


@asynccontextmanager
async def one_connection(store: MockSegmentStore, **given: Any) -> AsyncIterator[tuple[SegmentWriter, AckPolling]]:
    """A segment writer, and the polling of its connection."""
    await make(store, SEGMENT)
    async with ConnectionPool(settings(max_connections_per_store=1, **given)) as pool:
        writer = SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT)
        await writer.started()
        flow = await pool.flow(endpoint(store), Recorder())
        polling = flow.connection.outbox.polling
        flow.close()
        yield writer, polling
        await writer.aclose()
