"""Changes of the world while a request waits: a stream scales, a container moves, a store restarts, data goes away.

Each is a coroutine of the cluster and the segment of the request, which passes when the coroutine has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segstore.client import ClientError, connect
from segstore.wire.names import SegmentName, stream_of

if TYPE_CHECKING:
    from segstore.explore.running import ExploredCluster

_OUTAGE_S: Final = 0.1
_SCALES_S: Final = 5.0
_LOOK_S: Final = 0.005
_STREAMS: Final = frozenset({"stream", "transaction"})
"""The kinds of segment that belong to a user's stream."""


class Change(NamedTuple):
    """A change of the world. needs: the kinds of segment at whose requests it can happen; empty for any."""

    make: Callable[[ExploredCluster, str, int], Awaitable[Any]]
    needs: frozenset[str] = frozenset()
    stores: int = 1
    may_lose: bool = False

    def why_not(self, stores: int, *, streams: bool) -> str:
        """Returns why it cannot happen in a cluster, or ""."""
        if self.needs and self.needs <= _STREAMS and not streams:
            return "the client has called no controller"
        return "" if stores >= self.stores else f"it takes {self.stores} stores"


class CannotChange(RuntimeError):
    """The world cannot change in this way at the moment, such as a stream that is sealed."""


def _stream(mock: ExploredCluster, segment: str) -> tuple[Any, str, str, Any]:
    """Returns the controller, the scope, the name and the state of a segment's stream. Raises CannotChange."""
    scope, _, name = (stream_of(segment) or "").rpartition("/")
    controller: Any = mock.controller
    if not scope or f"{scope}/{name}" not in {f"{each.scope}/{each.name}" for each in controller.state.streams()}:
        raise CannotChange(f"the controller knows no stream of {segment}")
    return controller, scope, name, controller.streams.get(scope, name)


async def _scale(mock: ExploredCluster, segment: str, more: int) -> None:
    controller, scope, name, stream = _stream(mock, segment)
    current, epoch = stream.current.segments, stream.current.number
    count = len(current) + more
    if count < 1:
        raise CannotChange(f"stream {scope}/{name} has one segment")
    ranges = [(number / count, (number + 1) / count) for number in range(count)]
    await controller.scaling.start(scope, name, [each.id for each in current], ranges)
    async with asyncio.timeout(_SCALES_S):
        while controller.streams.get(scope, name).current.number == epoch:  # noqa: ASYNC110 — an epoch has no event
            await asyncio.sleep(_LOOK_S)


async def _scale_up(mock: ExploredCluster, segment: str, store: int) -> None:
    await _scale(mock, segment, 1)


async def _scale_down(mock: ExploredCluster, segment: str, store: int) -> None:
    await _scale(mock, segment, -1)


async def _truncate(mock: ExploredCluster, segment: str, store: int) -> None:
    controller, scope, name, stream = _stream(mock, segment)
    cut = {
        each.id: await controller.segments.segment_length(stream.segment_name(each)) for each in stream.current.segments
    }
    await controller.streams.truncate(scope, name, cut)


async def _seal(mock: ExploredCluster, segment: str, store: int) -> None:
    controller, scope, name, _ = _stream(mock, segment)
    await controller.streams.seal(scope, name)


async def _delete(mock: ExploredCluster, segment: str, store: int) -> None:
    await _seal(mock, segment, store)
    controller, scope, name, _ = _stream(mock, segment)
    await controller.streams.delete(scope, name)


async def _abort(mock: ExploredCluster, segment: str, store: int) -> None:
    controller, scope, name, _ = _stream(mock, segment)
    await controller.transactions.abort(scope, name, SegmentName.parse(segment).transaction_id)


async def _join(mock: ExploredCluster, segment: str, store: int) -> None:
    """Another reader joins the group, and leaves it without reading."""
    scope, _, name = (stream_of(segment) or "").rpartition("/")
    try:
        async with (
            connect(f"tcp://{mock.controller_uri}") as client,
            client.reader_group(scope, name.removeprefix("_RG")) as group,
            group.reader("explorer"),
        ):
            pass
    except ClientError as error:
        raise CannotChange(str(error)) from error


async def _move(mock: ExploredCluster, segment: str, store: int) -> None:
    await mock.move(mock.container_of(segment), ((mock.owner_of(segment) or 0) + 1) % len(mock.stores))


async def _restart(mock: ExploredCluster, segment: str, store: int) -> None:
    await _disturb(mock, "down", store)


async def _half_open(mock: ExploredCluster, segment: str, store: int) -> None:
    await _disturb(mock, "half_open", store)


async def _disturb(mock: ExploredCluster, toxic: Any, store: int) -> None:
    """Disturbs a store's connections for a while, from now on: its requests pass meanwhile."""
    name = mock.faults.toxics.add(toxic, store=store, name=f"{toxic} {mock.next_number()}")
    asyncio.get_running_loop().call_later(_OUTAGE_S, mock.healed, name)


CHANGES: Final[dict[str, Change]] = {
    "half-open": Change(_half_open),
    "store restarts": Change(_restart),
    "container moves": Change(_move, _STREAMS | {"reader group", "table", "transient", "other"}, stores=2),
    "reader joins and leaves": Change(_join, frozenset({"reader group"})),
    "scale up": Change(_scale_up, _STREAMS),
    "scale down": Change(_scale_down, _STREAMS),
    "truncated at the tail": Change(_truncate, _STREAMS, may_lose=True),
    "stream sealed": Change(_seal, _STREAMS, may_lose=True),
    "stream deleted": Change(_delete, _STREAMS, may_lose=True),
    "transaction aborted": Change(_abort, frozenset({"transaction"}), may_lose=True),
}
"""Name → change."""
