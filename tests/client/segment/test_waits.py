"""Futures awaiting a segment writer: each ends when its condition holds or the writer fails, and none is lost."""

import asyncio

import pytest

from segstore.client.errors import ClientError, Closed
from segstore.client.segment.waits import AppendWaits
from tests.looped import looped


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def error() -> ClientError:
    return Closed("the writer is closed")


async def test_a_flush_ends_when_as_many_items_as_it_names_are_settled() -> None:
    waits = AppendWaits()
    assert not waits.some
    first, second = asyncio.create_task(waits.until_settled(2)), asyncio.create_task(waits.until_settled(3))
    await turn()
    assert waits.some
    waits.settled(1, has_room=True)
    await turn()
    assert not first.done()
    waits.settled(2, has_room=True)
    await turn()
    assert first.done()
    assert not second.done()
    assert waits.some
    waits.settled(9, has_room=True)
    await second
    assert not waits.some


async def test_all_that_wait_for_room_go_on_together_when_there_is_some() -> None:
    waits = AppendWaits()
    tasks = [asyncio.create_task(waits.for_room()) for _ in range(2)]
    await turn()
    waits.settled(5, has_room=False)
    await turn()
    assert not any(task.done() for task in tasks)
    assert waits.some
    waits.settled(5, has_room=True)
    await asyncio.gather(*tasks)
    assert not waits.some


async def test_all_that_wait_for_the_start_go_on_together_and_a_start_without_a_waiter_is_a_no_op() -> None:
    waits = AppendWaits()
    waits.started()
    tasks = [asyncio.create_task(waits.for_start()) for _ in range(2)]
    await turn()
    waits.settled(1, has_room=True)
    assert waits.some, "the start is still awaited"
    waits.started()
    await asyncio.gather(*tasks)
    waits.settled(1, has_room=True)
    assert not waits.some


async def test_each_flush_gets_an_error_of_its_own() -> None:
    waits = AppendWaits()
    tasks = [asyncio.create_task(waits.until_settled(count)) for count in (1, 2)]
    await turn()
    waits.fail(error)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in found] == [Closed, Closed]
    assert found[0] is not found[1]
    waits.fail(error)


@looped("how", ["settled", "failed"])
async def test_a_flush_that_was_cancelled_disturbs_no_other(how: str) -> None:
    waits = AppendWaits()
    cancelled, other = asyncio.create_task(waits.until_settled(1)), asyncio.create_task(waits.until_settled(1))
    await turn()
    cancelled.cancel()
    await turn()
    if how == "settled":
        waits.settled(1, has_room=True)
        await other
    else:
        waits.fail(error)
        with pytest.raises(Closed):
            await other


async def test_cancelling_one_that_waits_for_room_or_for_the_start_leaves_the_other_waiting() -> None:
    waits = AppendWaits()
    for wait in (waits.for_room, waits.for_start):
        cancelled, other = asyncio.create_task(wait()), asyncio.create_task(wait())
        await turn()
        cancelled.cancel()
        await turn()
        assert not other.done()
        waits.started()
        waits.settled(0, has_room=True)
        await other
