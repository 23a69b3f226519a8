"""Checkpoints of a group: positions of all its readers such that each reader was between two events.

The initiator puts an entry into the group's table that names the online readers. Each takes it at its next `read`, and
its positions are added; when the last has, the checkpoint is complete and its entry is removed. A reader that goes
offline meanwhile takes it with its last positions.

Invariant: the entry is removed, whether the checkpoint completes, times out or is cancelled. Follows `CheckpointState`
(Pravega's client). Deliberate difference: the entries are in the table that is shared with the Rust client, whose
readers ignore them; a group in which one is online has no checkpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from segstore.client.cluster import Cluster
from segstore.client.controller import StreamCut
from segstore.client.errors import ConditionFailed
from segstore.client.groups.positions import cuts_of, finished_positions
from segstore.client.groups.state import GroupState
from segstore.client.groups.table import GroupTable
from segstore.client.lifecycle import within
from segstore.client.retry import POLLS


class Checkpoint(NamedTuple):
    """A checkpoint of a group. cuts: "scope/stream" → cut; a new group can start there (`from_`)."""

    name: str
    cuts: Mapping[str, StreamCut]


async def checkpointed(cluster: Cluster, table: GroupTable, name: str, timeout_ms: float) -> Checkpoint:
    """Begins a checkpoint and waits until each online reader has taken it.

    Raises RequestTimedOut, which names the readers that have not; ConditionFailed if one of this name is in progress or
    another client removed it; NoSuchReaderGroup, and the errors of requests.
    """

    def begin(state: GroupState) -> dict[str, set[int]]:
        if state.config is None:
            raise table.missing()
        state.begin_checkpoint(name)
        return {segment: set(waiting) for segment, waiting in state.future.items()}

    def end(state: GroupState) -> None:
        state.end_checkpoint(name)

    await table.fetch()
    future = await table.change_or_undo(begin, end, f"the checkpoint {name}")
    try:
        positions = await finished_positions(cluster, future)
        async with within(timeout_ms, lambda: _late(table, name), segment=table.segment, checkpoint=name):
            positions |= await _complete(cluster, table, name)
    finally:
        await table.change(end)
    return Checkpoint(name, cuts_of(positions))


async def _complete(cluster: Cluster, table: GroupTable, name: str) -> Mapping[str, int]:
    """Waits until a checkpoint is complete; returns its positions."""
    asked = 0
    while True:
        entry = table.state.checkpoints.get(name)
        if entry is None:
            raise ConditionFailed(f"another client removed the checkpoint {name}", segment=table.segment)
        if not entry.waiting:
            return entry.positions
        asked += 1
        await asyncio.sleep(POLLS.delay_ms(asked, cluster.pool.random) / 1000)
        await table.fetch()


def _late(table: GroupTable, name: str) -> str:
    entry = table.state.checkpoints.get(name)
    waiting = sorted(entry.waiting) if entry is not None else []
    return f"the readers {', '.join(waiting)} did not take the checkpoint {name}"
