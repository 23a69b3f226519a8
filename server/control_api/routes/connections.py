"""Routes that list the connections of clients and close them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from segstore.server.control_api.controlled import Here
from segstore.server.control_api.models import ClosedConnection, ClosedConnections, ConnectionInfo, Connections
from segstore.server.control_api.problems import ApiProblem, shown

_ASKED = "closed through the control API"
_Limit = Annotated[int, Query(ge=1, le=10_000, description="Maximum number of entries.")]


router = APIRouter(prefix="/v1/connections", tags=["connections"])


@router.get("", summary="Open connections")
async def list_connections(controlled: Here, limit: _Limit = 1_000) -> Connections:
    connections = sorted(
        (
            (front.number, connection.number or 0, connection.peer, connection)
            for front in controlled.fronts
            for connection in front.connections
        ),
        key=lambda each: each[:3],
    )
    listed = [ConnectionInfo.of(each, store=store, peer=shown(peer)) for store, _, peer, each in connections[:limit]]
    return Connections(total=len(connections), connections=listed)


@router.delete("", summary="Close all connections at once, as a failing network does")
async def cut_connections(controlled: Here) -> ClosedConnections:
    connections = [connection for front in controlled.fronts for connection in front.connections]
    for connection in connections:
        connection.disconnect(_ASKED, drain=False)
    return ClosedConnections(connections=len(connections))


@router.delete("/{number}", summary="Close a connection")
async def close_connection(
    controlled: Here,
    number: Annotated[int, Path(description="Its number in the list.")],
    drain: Annotated[bool, Query(description="Write queued replies first; otherwise they are lost.")] = False,
) -> ClosedConnection:
    if controlled.faults is None and controlled.traffic is None:
        raise ApiProblem(409, "connections have no numbers here: the store was made with watched=False", "path")
    for front in controlled.fronts:
        for connection in front.connections:
            if connection.number == number:
                connection.disconnect(_ASKED, drain=drain)
                return ClosedConnection(peer=shown(connection.peer))
    raise ApiProblem(404, f"no connection with the number {number} is open", "path.number")
