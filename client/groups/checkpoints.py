"""Checkpoints of a group: positions of all its readers such that each reader was between two events.

The initiator adds a checkpoint to the group's state, which names the online readers. Each reader takes it at its next
`read`, which adds the reader's positions; when the last reader has taken it, the checkpoint is complete. A reader that
goes offline meanwhile takes it with its last positions. Readers also begin automatic checkpoints, as often as the
group's configuration asks for.

Invariant: a checkpoint that times out or is cancelled is removed, unless other checkpoints are in progress, because
only all can be removed together; then readers take it, and it has no effect. Follows `ReaderGroupImpl` (Pravega's
client).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from segstore.client.cluster import Cluster
from segstore.client.controller import StreamCut
from segstore.client.errors import ConditionFailed
from segstore.client.groups.positions import covering, cuts_of, finished_positions
from segstore.client.groups.shared import SharedGroup
from segstore.client.groups.state import Draft
from segstore.client.lifecycle import within
from segstore.client.retry import POLLS


class Checkpoint(NamedTuple):
    """A checkpoint of a group. cuts: "scope/stream" → cut; a new group can start there (`from_`)."""

    name: str
    cuts: Mapping[str, StreamCut]


async def checkpointed(cluster: Cluster, shared: SharedGroup, name: str, timeout_ms: float) -> Checkpoint:
    """Begins a checkpoint and waits until each online reader has taken it.

    Raises RequestTimedOut, which names the readers that have not; ConditionFailed if this name or too many checkpoints
    are in progress, if another client removed it, or for a group whose state is in a table; NoSuchReaderGroup, and the
    errors of requests.
    """

    def begin(draft: Draft) -> dict[str, set[int]]:
        draft.begin_checkpoint(name)
        return draft.state.future

    cancel = partial(Draft.cancel_checkpoint, name=name)
    await shared.fetch()
    shared.refuse_in_table("checkpoints")
    facts = {**shared.facts, "checkpoint": name}
    with shared.watching(name) as taken:
        future = await shared.change_or_undo(begin, cancel, f"the checkpoint {name}")
        end = cancel
        try:
            positions = await finished_positions(cluster, future)
            async with within(timeout_ms, lambda: _late(shared, name), **facts):
                complete = await _complete(cluster, shared, name, taken)
                positions |= await covering(cluster, complete, shared.state.ends)
            end = partial(Draft.end_checkpoint, name=name)
        finally:
            await shared.change(end)
    return Checkpoint(name, cuts_of(positions))


async def _complete(
    cluster: Cluster, shared: SharedGroup, name: str, taken: Callable[[], Mapping[str, int] | None]
) -> Mapping[str, int]:
    """Waits until a checkpoint is complete; returns its positions."""
    asked = 0
    while (positions := taken()) is None:
        if name not in shared.state.checkpoints.waiting:
            raise ConditionFailed(f"another client removed the checkpoint {name}", **shared.facts)
        asked += 1
        await asyncio.sleep(POLLS.delay_ms(asked, cluster.pool.random) / 1000)
        await shared.fetch()
    return positions


def _late(shared: SharedGroup, name: str) -> str:
    waiting = sorted(shared.state.checkpoints.waiting.get(name, ()))
    return f"the readers {', '.join(waiting)} did not take the checkpoint {name}"
