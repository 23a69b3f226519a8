"""Routes that list containers, move one to another store, stop and start a store, and disturb its session.

All but the list need several stores in one process. They run one at a time, a move within `_MOVE_S`, because two
concurrent moves of one container would move it back and forth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Path, Query

from segstore.server.control_api.controlled import Controlled, Here
from segstore.server.control_api.models import ContainerInfo, Containers, MoveTo, StoreInfo
from segstore.server.control_api.problems import ApiProblem
from segstore.server.control_api.routes.about import store_info
from segstore.server.net import CannotListen, address_text

if TYPE_CHECKING:
    from segstore.server.cluster import Cluster
    from segstore.server.node import SegmentStoreServer

_MOVE_S: Final = 10.0
_Number = Annotated[int, Path(description="The number of a store.")]


router = APIRouter(prefix="/v1", tags=["containers"])


@router.get("/containers", summary="Containers and their owners")
async def list_containers(controlled: Here) -> Containers:
    return Containers(
        stores=len(controlled.stores),
        movable=controlled.cluster is not None,
        containers=[_info(controlled, container) for container in range(controlled.containers)],
    )


@router.post("/containers/{container}/move", summary="Move a container to a store; answers once that store serves it")
async def move_container(controlled: Here, container: Annotated[int, Path()], where: MoveTo) -> ContainerInfo:
    cluster, count = _cluster(controlled), controlled.containers
    if not 0 <= container < count:
        raise ApiProblem(404, f"there is no container {container}: there are {count}, from 0", "path.container")
    controlled.check_store(where.to, "body.to")
    try:
        async with asyncio.timeout(_MOVE_S), controlled.moving:
            await cluster.move(container, where.to)
    except RuntimeError as error:
        raise ApiProblem(409, str(error), "body.to") from error
    except TimeoutError as error:
        why = f"store {where.to} has not taken container {container} within {_MOVE_S:g} s"
        raise ApiProblem(409, f"{why}: its session may be cut", "body.to") from error
    return _info(controlled, container)


def _several(controlled: Controlled, number: int) -> Cluster:
    cluster, count = _cluster(controlled), len(controlled.stores)
    if not 0 <= number < count:
        raise ApiProblem(404, f"there is no store {number}: there are {count}, from 0", "path.store")
    return cluster


def _change_session(controlled: Controlled, number: int, change: Callable[[int], None]) -> StoreInfo:
    try:
        change(number)
    except RuntimeError as error:
        raise ApiProblem(409, str(error), "path.store") from error
    return store_info(controlled.fronts[number])


@router.post("/stores/{store}/stop", summary="Stop a store; the others take its containers")
async def stop_store(
    controlled: Here,
    store: _Number,
    drain_s: Annotated[float, Query(ge=0, le=10, description="Time to send replies; 0 cuts connections.")] = 0.0,
) -> StoreInfo:
    cluster = _several(controlled, store)
    async with controlled.moving:
        await cluster.stop_store(store, drain_s=drain_s)
    return store_info(controlled.fronts[store])


@router.post("/stores/{store}/start", summary="Restart a store on its port; it takes its share of the containers")
async def start_store(controlled: Here, store: _Number) -> StoreInfo:
    cluster = _several(controlled, store)
    try:
        async with controlled.moving:
            await cluster.start_store(store)
    except CannotListen as error:
        raise ApiProblem(409, str(error), "path.store") from error
    return store_info(controlled.fronts[store])


@router.post("/stores/{store}/expire-session", summary="Expire a store's session with the coordination service")
async def expire_session(controlled: Here, store: _Number) -> StoreInfo:
    return _change_session(controlled, store, _several(controlled, store).expire_session)


@router.post("/stores/{store}/cut-session", summary="Disconnect a store from the coordination service")
async def cut_session(controlled: Here, store: _Number) -> StoreInfo:
    return _change_session(controlled, store, _several(controlled, store).cut_session)


@router.post("/stores/{store}/heal-session", summary="Reconnect a store to the coordination service")
async def heal_session(controlled: Here, store: _Number) -> StoreInfo:
    return _change_session(controlled, store, _several(controlled, store).heal_session)


def _cluster(controlled: Controlled) -> Cluster:
    if controlled.cluster is None:
        raise ApiProblem(409, f"this needs several stores in one process: {controlled.why_no_cluster}", "path")
    return controlled.cluster


def _owns(store: SegmentStoreServer, number: int) -> bool:
    return number in store.store.containers or number in store.store.unopened


def _info(controlled: Controlled, number: int) -> ContainerInfo:
    here = next((store for store in controlled.stores if _owns(store, number)), None)
    if here is None:
        where = controlled.owner_elsewhere(number)
        return ContainerInfo(container=number, store=None, address=address_text(where), open=False)
    opened = here.store.containers.get(number)
    return ContainerInfo(
        container=number,
        store=here.number,
        address=address_text(here.address),
        open=opened is not None,
        segments=None if opened is None else len(opened.segments) - opened.index_count,
        index_segments=None if opened is None else opened.index_count,
    )
