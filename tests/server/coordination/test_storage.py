"""Containers that stores of one process share: epochs grow, the older holder is fenced, and the state moves."""

from segstore.server.coordination.storage import SharedContainers
from segstore.server.store import Container


async def test_an_opening_has_the_next_epoch_fences_the_older_and_takes_its_state() -> None:
    shared, state, fenced = SharedContainers(), Container(3), []

    def gives_back() -> Container:
        fenced.append(1)
        return state

    assert (await shared.epoch(3), await shared.refused(3)) == (0, "")
    assert await shared.open(3, gives_back) == (1, None)
    assert fenced == []
    assert await shared.open(3, lambda: None) == (2, state)
    assert fenced == [1]
    shared.close(3, 1, state)  # the owner was fenced
    assert await shared.open(3, lambda: None) == (3, None)
    shared.close(3, 3, state)
    assert await shared.open(3, lambda: None) == (4, state)
    assert (await shared.epoch(3), await shared.epoch(4)) == (4, 0)
    shared.put(4, state)
    assert await shared.open(4, lambda: None) == (1, state)
