"""Containers that stores of one process share: epochs grow, the older holder is fenced, and the state moves."""

from __future__ import annotations

import asyncio

from segstore.server.coordination.storage import SharedContainers
from segstore.server.store import Container


def container() -> Container:
    return Container(3)


def test_an_opening_has_the_next_epoch_fences_the_older_and_takes_its_state() -> None:
    async def played() -> None:
        shared, state, fenced = SharedContainers(), container(), []

        def gives_back() -> Container:
            fenced.append(1)
            return state

        assert await shared.epoch(3) == 0
        assert await shared.open(3, gives_back) == (1, None)
        assert fenced == []
        assert await shared.open(3, lambda: None) == (2, state)
        assert fenced == [1]
        assert await shared.epoch(3) == 2
        assert await shared.epoch(4) == 0
        assert await shared.refused(3) == ""

    asyncio.run(played())


def test_what_was_closed_or_put_is_given_to_the_next_opening_once() -> None:
    async def played() -> None:
        shared, first, second = SharedContainers(), container(), container()
        shared.put(3, first)
        assert await shared.open(3, lambda: None) == (1, first)
        shared.close(3, 1, second)
        assert await shared.open(3, lambda: None) == (2, second)
        assert await shared.open(3, lambda: None) == (3, None)

    asyncio.run(played())


def test_an_owner_that_was_fenced_gives_nothing_back() -> None:
    async def played() -> None:
        shared = SharedContainers()
        await shared.open(3, lambda: None)
        await shared.open(3, lambda: None)
        shared.close(3, 1, container())
        assert await shared.open(3, lambda: None) == (3, None)

    asyncio.run(played())
