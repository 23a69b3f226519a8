"""Routes that take and restore snapshots of all data, and reset the server.

Restoring and resetting discard the requests so far, in the traffic that is kept, too: the next test finds only its own.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Response

from segstore.server.config import PlainName
from segstore.server.control_api.controlled import Controlled, Here
from segstore.server.control_api.models import ClosedConnections
from segstore.server.control_api.problems import ApiProblem, shown
from segstore.server.control_api.routes import NAME
from segstore.server.control_api.steering.models import NewSnapshot, SnapshotList
from segstore.server.node import NO_SNAPSHOTS, SnapshotInfo, Snapshots

_IN_PATH: Final = Path(min_length=1, max_length=100, description="The name of a snapshot.")
_Name = Annotated[str, _IN_PATH]
_NewName = Annotated[PlainName, _IN_PATH]


router = APIRouter(prefix="/v1", tags=["snapshots"])


def _snapshots(controlled: Controlled) -> Snapshots:
    if controlled.snapshots is None:
        raise ApiProblem(409, NO_SNAPSHOTS, "path")
    return controlled.snapshots


def _replaced(controlled: Controlled, connections: int) -> ClosedConnections:
    controlled.forget_requests()
    return ClosedConnections(connections=connections)


@router.get("/snapshots", summary="Snapshots")
async def list_snapshots(controlled: Here) -> SnapshotList:
    there = [] if controlled.snapshots is None else controlled.snapshots.infos()
    return SnapshotList(snapshots=[_described(each) for each in there])


@router.put(f"/snapshots/{NAME}", summary="Take a snapshot of all data, and replace a snapshot of this name")
async def take_snapshot(controlled: Here, name: _NewName) -> NewSnapshot:
    async with controlled.one_at_a_time:
        return _described(await _snapshots(controlled).take(name))


@router.delete(f"/snapshots/{NAME}", summary="Delete a snapshot", status_code=204)
async def delete_snapshot(controlled: Here, name: _Name) -> Response:
    _snapshots(controlled).delete(name)
    return Response(status_code=204)


@router.post(f"/snapshots/{NAME}/restore", summary="Restore a snapshot; cuts all connections and removes fault rules")
async def restore_snapshot(controlled: Here, name: _Name) -> ClosedConnections:
    async with controlled.one_at_a_time:
        return _replaced(controlled, await _snapshots(controlled).restore(name))


@router.post("/reset", summary="Remove all data and fault rules; cuts all connections")
async def reset(controlled: Here) -> ClosedConnections:
    async with controlled.one_at_a_time:
        return _replaced(controlled, await _snapshots(controlled).reset())


def _described(info: SnapshotInfo) -> NewSnapshot:
    return NewSnapshot(name=shown(info.name), segments=info.segments, size=info.size, taken_ms=info.taken_ms)
