"""Peers share a limit: room for newcomers, turns for waiters, and nothing left of a wait that is given up."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from segstore.server.controller.shares import Shares

LIMIT = 90


def taken_by(shares: Shares, peer: str) -> int:
    """How much a peer can take now."""
    count = 0
    while shares.try_take(peer, 1):
        count += 1
    return count


def test_a_lone_peer_gets_a_ninth_and_several_leave_room_for_a_newcomer() -> None:
    shares = Shares(LIMIT)
    assert taken_by(shares, "lone") == LIMIT // 9
    for number in range(15):
        assert taken_by(shares, str(number)) >= 1
    assert taken_by(shares, "newcomer") >= 1
    assert taken_by(shares, "lone") == 0


def test_what_was_given_back_can_be_taken_again() -> None:
    shares = Shares(LIMIT)
    for _ in range(3):
        assert shares.try_take("a", LIMIT)
        assert not shares.try_take("b", 0)
        shares.give_back("a", LIMIT)


async def test_waiters_resume_in_order_and_peers_round_robin() -> None:
    shares, done = Shares(1), list[str]()

    async def work(peer: str, number: int) -> None:
        await shares.take(peer)
        done.append(f"{peer}{number}")
        await asyncio.sleep(0)
        shares.give_back(peer)

    await asyncio.gather(*(work(peer, number) for peer in "ab" for number in range(3)))
    assert done == ["a0", "a1", "b0", "a2", "b1", "b2"]


async def test_a_wait_that_is_given_up_leaves_nothing() -> None:
    shares = Shares(1)
    await shares.take("a")
    waiting = [asyncio.create_task(shares.take(peer)) for peer in "abc" for _ in range(5)]
    await asyncio.sleep(0)
    for each in waiting[:-1]:
        each.cancel()
    shares.give_back("a")
    await asyncio.gather(*waiting[:-1], return_exceptions=True)
    await waiting[-1]
    shares.give_back("c")
    assert shares.try_take("d", 1)


async def test_a_wait_that_is_given_up_when_it_has_just_ended_gives_back() -> None:
    shares = Shares(1)
    await shares.take("a")
    waiting = asyncio.create_task(shares.take("b"))
    await asyncio.sleep(0)
    shares.give_back("a")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert shares.try_take("c", 1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "give", "cancel"])), max_size=60))
def test_all_waiters_resume_and_the_limit_holds(steps: list[tuple[str, str]]) -> None:
    async def run() -> None:
        limit, held = 4, Counter[str]()
        shares, waiting = Shares(limit), list[asyncio.Task[None]]()

        async def work(peer: str) -> None:
            await shares.take(peer)
            held[peer] += 1

        for peer, step in steps:
            match step:
                case "take":
                    waiting.append(asyncio.create_task(work(peer)))
                case "give" if held[peer]:
                    held[peer] -= 1
                    shares.give_back(peer)
                case "cancel" if waiting:
                    waiting.pop(0).cancel()
            await asyncio.sleep(0)
            assert held.total() <= limit
        while held.total():
            for peer in tuple(held.elements()):
                held[peer] -= 1
                shares.give_back(peer)
            await asyncio.sleep(0)
        await asyncio.gather(*waiting, return_exceptions=True)
        assert taken_by(shares, "lone") == taken_by(Shares(limit), "lone")

    asyncio.run(run())
