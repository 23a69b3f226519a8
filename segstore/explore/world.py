"""Changes of the world while a request waits: a stream scales, a container moves, a store restarts, data goes away.

Each is a coroutine of the cluster, the segment of the request and its store; the request passes when it has returned.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from segstore.client import ClientError, GroupReader, connect
from segstore.explore.points import subject_of
from segstore.wire.names import SegmentName, container_of, stream_of

if TYPE_CHECKING:
    from segstore.explore.running import ExploredCluster

_OUTAGE_S: Final = 0.1
_SCALES_S: Final = 5.0
_LOOK_S: Final = 0.005
TOKEN_LIFE_S: Final = 600
STREAMS: Final = frozenset({"stream", "transaction"})
"""The kinds of segment that belong to a user's stream."""
_GROUPS: Final = frozenset({"reader group"})


class Change(NamedTuple):
    """A change of the world.

    Args:
        make: The coroutine function. It may return a coroutine, which continues after the request has passed.
        needs: The kinds of segment at whose requests it can happen; empty for any.
        tokens: Whether the stores must check tokens.
    """

    make: Callable[[ExploredCluster, str, int], Awaitable[Coroutine[Any, Any, None] | None]]
    needs: frozenset[str] = frozenset()
    stores: int = 1
    may_lose: bool = False
    tokens: bool = False


class CannotChange(RuntimeError):
    """The world cannot change in this way at the moment, such as a stream that is sealed."""


async def _scale(more: int, mock: ExploredCluster, segment: str, store: int) -> None:
    name = subject_of(segment)
    before = await mock.stream(name)
    if before.open_segments + more < 1:
        raise CannotChange(f"stream {name} has one segment")
    await mock.scale_stream(name, before.open_segments + more)
    async with asyncio.timeout(_SCALES_S):
        while (await mock.stream(name)).epoch == before.epoch:  # noqa: ASYNC110 — it has no event
            await asyncio.sleep(_LOOK_S)


async def _truncate(mock: ExploredCluster, segment: str, store: int) -> None:
    name = subject_of(segment)
    cut = {current.id: current.length or 0 for current in await mock.stream_segments(name) if current.status == "open"}
    await mock.truncate_stream(name, cut)


async def _seal(mock: ExploredCluster, segment: str, store: int) -> None:
    await mock.seal_stream(subject_of(segment))


async def _delete(mock: ExploredCluster, segment: str, store: int) -> None:
    await mock.seal_stream(subject_of(segment))
    await mock.delete_stream(subject_of(segment))


async def _abort(mock: ExploredCluster, segment: str, store: int) -> None:
    if transaction := SegmentName.parse(segment).transaction_id:
        await mock.abort_transaction(subject_of(segment), transaction)


@asynccontextmanager
async def _reader(mock: ExploredCluster, segment: str) -> AsyncIterator[GroupReader]:
    scope, _, name = (stream_of(segment) or "").rpartition("/")
    try:
        async with (
            connect(f"tcp://{mock.controller_uri}") as client,
            client.reader_group(scope, name.removeprefix("_RG")) as group,
            group.reader("explorer") as reader,
        ):
            yield reader
    except ClientError as error:
        raise CannotChange(str(error)) from error


async def _join(mock: ExploredCluster, segment: str, store: int) -> None:
    """Another reader joins the group, and leaves it without reading."""
    async with _reader(mock, segment):
        return


async def _join_and_read(mock: ExploredCluster, segment: str, store: int) -> Coroutine[Any, Any, None]:
    """Another reader joins the group; when the request has passed, it takes an event, and leaves."""
    joined = AsyncExitStack()
    reader = await joined.enter_async_context(_reader(mock, segment))

    async def rest() -> None:
        async with joined:
            await reader.read()

    return rest()


async def _move(mock: ExploredCluster, segment: str, store: int) -> None:
    container = container_of(segment, mock.settings.store.containers)
    await mock.move(container, ((mock.owner_of(segment) or 0) + 1) % len(mock.stores))


async def _expire(mock: ExploredCluster, segment: str, store: int) -> None:
    """The stores' time advances, so that all tokens have expired; the controller issues valid tokens."""
    mock.time.ahead_s += TOKEN_LIFE_S


async def _disturb(toxic: Any, mock: ExploredCluster, segment: str, store: int) -> None:
    """Disturbs a store's connections for a while, from now on: its requests pass meanwhile."""
    name = mock.faults.toxics.add(toxic, store=store, name=str(uuid4()))
    mock.back_s[store] = math.inf
    asyncio.get_running_loop().call_later(_OUTAGE_S, mock.heal, name, store)


CHANGES: Final[dict[str, Change]] = {
    "half-open": Change(partial(_disturb, "half_open")),
    "store restarts": Change(partial(_disturb, "down")),
    "tokens expire": Change(_expire, tokens=True),
    "container moves": Change(_move, STREAMS | _GROUPS | {"table", "transient", "other"}, stores=2),
    "reader joins and leaves": Change(_join, _GROUPS),
    "reader joins, reads and leaves": Change(_join_and_read, _GROUPS, may_lose=True),
    "scale up": Change(partial(_scale, 1), STREAMS),
    "scale down": Change(partial(_scale, -1), STREAMS),
    "truncated at the tail": Change(_truncate, STREAMS, may_lose=True),
    "stream sealed": Change(_seal, STREAMS, may_lose=True),
    "stream deleted": Change(_delete, STREAMS, may_lose=True),
    "transaction aborted": Change(_abort, frozenset({"transaction"}), may_lose=True),
}
"""Name → change."""
