"""The share of the loop that calls take: steps alternate by caller, and an iteration has a bound."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

from hypothesis import given
from hypothesis import strategies as st

from segstore.server.controller.pace import CALLER, PER_TICK, Pace, units_of


class Ticks:
    """Counts the iterations of the loop."""

    def __init__(self) -> None:
        self.count = 0
        asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self.count += 1
        asyncio.get_running_loop().call_soon(self._tick)


def of(caller: str, work: object) -> asyncio.Task[None]:
    """Starts a coroutine as the work of a caller."""
    context = copy_context()
    context.run(CALLER.set, caller)
    return asyncio.create_task(work, context=context)  # type: ignore[arg-type]


async def test_small_pieces_need_not_wait() -> None:
    pace, ticks = Pace(), Ticks()
    for _ in range(PER_TICK):
        await pace.take(1)
    assert ticks.count == 0
    await pace.take(1)
    assert ticks.count > 0


async def test_items_come_in_pieces_between_which_others_run() -> None:
    pace, ticks = Pace(), Ticks()
    assert [each async for each in pace.over(range(10 * PER_TICK))] == list(range(10 * PER_TICK))
    assert ticks.count >= 9
    assert [each async for each in pace.over(())] == []


async def test_a_step_that_takes_too_much_is_paid_for_before_the_next_starts() -> None:
    pace, ticks = Pace(), Ticks()
    await pace.take(10 * PER_TICK)
    await pace.take(1)
    assert 9 <= ticks.count <= 12


async def test_work_that_was_not_asked_for_counts_too() -> None:
    pace, ticks = Pace(), Ticks()
    pace.charge(5 * PER_TICK)
    await pace.take(1)
    assert ticks.count >= 4


async def test_a_caller_with_much_to_do_does_not_keep_another_waiting() -> None:
    pace, done = Pace(), list[str]()

    async def work(name: str) -> None:
        await pace.take(PER_TICK)
        done.append(name)

    greedy = [of("greedy", work("greedy")) for _ in range(50)]
    await asyncio.sleep(0)
    await of("other", work("other"))
    assert len(done) < 5
    await asyncio.gather(*greedy)


async def test_steps_of_one_caller_run_in_order() -> None:
    pace, done = Pace(), list[int]()

    async def work(number: int) -> None:
        await pace.take(PER_TICK)
        done.append(number)

    await asyncio.gather(*(work(number) for number in range(20)))
    assert done == list(range(20))


async def test_a_caller_that_goes_away_takes_nothing() -> None:
    pace = Pace()
    pace.charge(4 * PER_TICK)
    gone = [asyncio.create_task(pace.take(1_000_000)) for _ in range(10)]
    stays = asyncio.create_task(pace.take(1))
    await asyncio.sleep(0)
    for each in gone:
        each.cancel()
    ticks = Ticks()
    await stays
    assert ticks.count < 10
    await asyncio.gather(*gone, return_exceptions=True)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3 * PER_TICK)), max_size=30))
def test_all_waiting_steps_run_and_no_iteration_starts_more_than_it_has(works: list[tuple[str, int]]) -> None:
    async def run() -> None:
        pace, ticks, begun = Pace(), Ticks(), list[tuple[int, int]]()

        async def work(units: int) -> None:
            await pace.take(units)
            begun.append((ticks.count, units))

        await asyncio.gather(*(of(caller, work(units)) for caller, units in works))
        assert len(begun) == len(works)
        for tick in {at for at, _ in begun}:
            together = [units for at, units in begun if at == tick]
            assert sum(together) - max(together) <= 2 * PER_TICK

    asyncio.run(run())


def test_messages_count_by_their_bytes() -> None:
    assert units_of(0) == 1
    assert units_of(1 << 20) > 1_000
