"""Routes that create, change and delete scopes, streams, transactions and key-value tables, and restore snapshots.

They call the controller in this process, as its gRPC methods do, so streams are the same for all clients. Fault rules
and the request log see only clients, not the controller's own requests. One request that arranges data is executed at a
time.

Restoring a snapshot and resetting the server discard the requests so far, in the traffic that is kept, too: the next
test finds only its own.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Path, Query

from segstore.server.config import PlainName
from segstore.server.control_api.controlled import Controlled, Here
from segstore.server.control_api.models import ClosedConnections
from segstore.server.control_api.problems import ApiProblem, shown
from segstore.server.control_api.routes import NAME
from segstore.server.control_api.steering import models as m
from segstore.server.controller import Controller, ScalingPolicy, StreamConfig, TableConfig
from segstore.server.controller.state import history
from segstore.server.node import NO_SNAPSHOTS, Snapshots

_POSITION: Final = re.compile(r"\d{1,19}:\d{1,19}(?:,\d{1,19}:\d{1,19})*", re.ASCII)
_MOST: Final = 1 << 63
_IN_PATH: Final = Path(min_length=1, max_length=100, description="The name of a snapshot.")
_Name = Annotated[str, _IN_PATH]
_NewName = Annotated[PlainName, _IN_PATH]
_NO_CONTROLLER = "there is no controller in this process: streams and tables are the controller's"


def controller_of(controlled: Controlled) -> Controller:
    """Returns the controller. Raises ApiProblem without a controller."""
    controller = controlled.controller()
    if controller is None:
        raise ApiProblem(409, _NO_CONTROLLER, "path")
    return controller


def position_text(cut: Mapping[int, int]) -> str:
    """Returns a position in a stream, a stream cut, as text: `segment id:offset` per segment."""
    return ",".join(f"{identifier}:{offset}" for identifier, offset in sorted(cut.items()))


def parse_position(text: str, where: str) -> dict[int, int]:
    """Returns the stream cut. Raises ApiProblem, which names `where`."""
    pairs = [pair.split(":") for pair in text.split(",")] if _POSITION.fullmatch(text) else []
    cut = {int(identifier): int(offset) for identifier, offset in pairs}
    if not cut or len(cut) < len(pairs) or any(number >= _MOST for pair in cut.items() for number in pair):
        raise ApiProblem(422, f"{where}: a position is `next` of a page of events, such as 0:0,1:24", where)
    return cut


@asynccontextmanager
async def arranging(controlled: Controlled) -> AsyncIterator[Controller]:
    """Enters the only request that changes data, and waits at its end until the changes are durable."""
    async with controlled.one_at_a_time:
        yield controller_of(controlled)
        await controlled.settled()


router = APIRouter(prefix="/v1")
_STREAM: Final = "/streams/{scope}/{stream}"
_TRANSACTIONS: Final = f"{_STREAM}/transactions"
_TRANSACTION: Final = f"{_TRANSACTIONS}/{{transaction}}"
_TABLE: Final = "/tables/{scope}/{table}"


@router.put("/scopes/{scope}", tags=["scopes"], summary="Create a scope, unless it exists", status_code=204)
async def create_scope(controlled: Here, scope: m.Scope) -> None:
    async with arranging(controlled) as controller:
        if not controller.scopes.exists(scope):
            controller.scopes.create(scope)


@router.delete("/scopes/{scope}", tags=["scopes"], summary="Delete a scope", status_code=204)
async def delete_scope(
    controlled: Here,
    scope: m.Scope,
    recursive: Annotated[bool, Query(description="Whether to delete its contents, too.")] = False,
) -> None:
    async with arranging(controlled) as controller:
        controller.state.scope(scope)
        if recursive:
            await controller.scopes.delete_recursively(scope)
        else:
            controller.scopes.delete(scope)


@router.put(_STREAM, tags=["streams"], summary="Create a stream, and its scope if needed", status_code=201)
async def create_stream(
    controlled: Here, scope: m.Scope, stream: m.Stream, settings: m.StreamSettings | None = None
) -> m.StreamInfo:
    config = StreamConfig(ScalingPolicy(min_segments=(settings or m.StreamSettings()).segments))
    async with arranging(controlled) as controller:
        if not controller.scopes.exists(scope):
            controller.scopes.create(scope)
        await controller.create_stream(scope, stream, config)
        return _state(controller, scope, stream)


@router.delete(_STREAM, tags=["streams"], summary="Delete a sealed stream", status_code=204)
async def delete_stream(controlled: Here, scope: m.Scope, stream: m.Stream) -> None:
    async with arranging(controlled) as controller:
        await controller.streams.delete(scope, stream)


@router.post(f"{_STREAM}/seal", tags=["streams"], summary="Seal a stream")
async def seal_stream(controlled: Here, scope: m.Scope, stream: m.Stream) -> m.StreamInfo:
    async with arranging(controlled) as controller:
        await controller.streams.seal(scope, stream)
        return _state(controller, scope, stream)


@router.post(f"{_STREAM}/scale", tags=["streams"], summary="Replace segments of a stream by others")
async def scale_stream(controlled: Here, scope: m.Scope, stream: m.Stream, to: m.ScaleTo) -> m.StreamInfo:
    async with arranging(controlled) as controller:
        known = controller.streams.get(scope, stream)
        sealed, ranges = to.seal or [segment.id for segment in known.current.segments], to.ranges
        if ranges is None:
            ranges = history.equal_ranges(to.segments or 1)
        await controller.scaling.start(scope, stream, sealed, sorted(ranges))
        return _state(controller, scope, stream)


@router.post(f"{_STREAM}/truncate", tags=["streams"], summary="Remove the events before a position")
async def truncate_stream(controlled: Here, scope: m.Scope, stream: m.Stream, at: m.TruncateAt) -> m.StreamInfo:
    cut = parse_position(at.position, "body.position")
    async with arranging(controlled) as controller:
        await _check_ends(controller, scope, stream, cut)
        await controller.streams.truncate(scope, stream, cut)
        return _state(controller, scope, stream)


async def _check_ends(controller: Controller, scope: str, stream: str, cut: Mapping[int, int]) -> None:
    """Refuses a cut beyond the end of a segment, which the controller would accept, as Pravega's does."""
    known = controller.streams.get(scope, stream)
    controller.streams.check_progress(known, known.cut, cut)
    for identifier, offset in cut.items():
        name = known.segment_name(known.segment(identifier))
        end = await controller.segments.segment_length(name)
        if offset > end:
            why = f"body.position: offset {offset} of {name} is beyond its end, {end}"
            raise ApiProblem(422, why, "body.position")


def _state(controller: Controller, scope: str, stream: str) -> m.StreamInfo:
    known = controller.streams.get(scope, stream)
    segments = () if known.sealed else known.current.segments
    return m.StreamInfo(
        scope=scope,
        stream=stream,
        sealed=known.sealed,
        epoch=known.current.number,
        segments=[
            m.OpenSegment(id=segment.id, name=known.segment_name(segment), low=segment.start, high=segment.end)
            for segment in segments
        ],
    )


@router.post(_TRANSACTIONS, tags=["transactions"], summary="Begin a transaction", status_code=201)
async def begin_transaction(
    controlled: Here, scope: m.Scope, stream: m.Stream, settings: m.NewTransaction | None = None
) -> m.TransactionState:
    lease_ms = (settings or m.NewTransaction()).lease_ms
    async with arranging(controlled) as controller:
        identifier, _ = await controller.transactions.open(scope, stream, lease_ms)
        return _transaction(controller, scope, stream, identifier)


@router.post(f"{_TRANSACTION}/commit", tags=["transactions"], summary="Commit a transaction")
async def commit_transaction(
    controlled: Here, scope: m.Scope, stream: m.Stream, transaction: m.Transaction
) -> m.TransactionState:
    async with arranging(controlled) as controller:
        await controller.transactions.commit(scope, stream, transaction)
        return _transaction(controller, scope, stream, transaction)


@router.post(f"{_TRANSACTION}/abort", tags=["transactions"], summary="Abort a transaction")
async def abort_transaction(
    controlled: Here, scope: m.Scope, stream: m.Stream, transaction: m.Transaction
) -> m.TransactionState:
    async with arranging(controlled) as controller:
        await controller.transactions.abort(scope, stream, transaction)
        return _transaction(controller, scope, stream, transaction)


def _transaction(controller: Controller, scope: str, stream: str, identifier: UUID) -> m.TransactionState:
    status = controller.transactions.status(scope, stream, identifier)
    if status is None:
        raise ApiProblem(404, f"stream {scope}/{stream} has no transaction {identifier}", "path.transaction")
    return m.TransactionState(id=identifier, status=status.value)


@router.put(_TABLE, tags=["tables"], summary="Create a key-value table, and its scope if needed", status_code=204)
async def create_table(controlled: Here, scope: m.Scope, table: m.Table, settings: m.TableSettings) -> None:
    config = TableConfig(settings.partitions, settings.primary_key_bytes, settings.secondary_key_bytes)
    async with arranging(controlled) as controller:
        if not controller.scopes.exists(scope):
            controller.scopes.create(scope)
        await controller.tables.create(scope, table, config)


@router.delete(_TABLE, tags=["tables"], summary="Delete a key-value table", status_code=204)
async def delete_table(controlled: Here, scope: m.Scope, table: m.Table) -> None:
    async with arranging(controlled) as controller:
        await controller.tables.delete(scope, table)


snapshots = APIRouter(prefix="/v1", tags=["snapshots"])


def _snapshots(controlled: Controlled) -> Snapshots:
    if controlled.snapshots is None:
        raise ApiProblem(409, NO_SNAPSHOTS, "path")
    return controlled.snapshots


def _replaced(controlled: Controlled, connections: int) -> ClosedConnections:
    controlled.forget_requests()
    return ClosedConnections(connections=connections)


@snapshots.get("/snapshots", summary="Snapshots")
async def list_snapshots(controlled: Here) -> m.SnapshotList:
    infos = [] if controlled.snapshots is None else controlled.snapshots.infos()
    return m.SnapshotList(snapshots=[m.NewSnapshot.of(info, name=shown(info.name)) for info in infos])


@snapshots.put(f"/snapshots/{NAME}", summary="Take a snapshot of all data, and replace a snapshot of this name")
async def take_snapshot(controlled: Here, name: _NewName) -> m.NewSnapshot:
    async with controlled.one_at_a_time:
        return m.NewSnapshot.of(await _snapshots(controlled).take(name), name=shown(name))


@snapshots.delete(f"/snapshots/{NAME}", summary="Delete a snapshot", status_code=204)
async def delete_snapshot(controlled: Here, name: _Name) -> None:
    _snapshots(controlled).delete(name)


@snapshots.post(
    f"/snapshots/{NAME}/restore", summary="Restore a snapshot; cuts all connections and removes fault rules"
)
async def restore_snapshot(controlled: Here, name: _Name) -> ClosedConnections:
    async with controlled.one_at_a_time:
        return _replaced(controlled, await _snapshots(controlled).restore(name))


@snapshots.post("/reset", summary="Remove all data and fault rules; cuts all connections")
async def reset(controlled: Here) -> ClosedConnections:
    async with controlled.one_at_a_time:
        return _replaced(controlled, await _snapshots(controlled).reset())
