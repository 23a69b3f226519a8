"""Routes that list containers and move one to another store.

Moves need several stores in one process. They run one at a time, each within `_MOVE_S`, because two concurrent moves of
one container would move it back and forth.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Path

from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.fronts import Store
from segstore.server.control_api.models import ContainerInfo, Containers, MoveTo
from segstore.server.control_api.problems import ApiProblem
from segstore.server.net import address_text

_MOVE_S: Final = 10.0


def router(controlled: Controlled) -> APIRouter:
    made = APIRouter(prefix="/v1/containers", tags=["containers"])
    one_at_a_time = asyncio.Lock()

    @made.get("", summary="Containers and their owners")
    async def list_containers() -> Containers:
        return Containers(
            stores=len(controlled.stores),
            movable=controlled.move is not None,
            containers=[_info(controlled, each) for each in range(controlled.containers)],
        )

    @made.post("/{container}/move", summary="Move a container to a store; answers once that store serves it")
    async def move_container(container: Annotated[int, Path()], where: MoveTo) -> ContainerInfo:
        move, count = controlled.move, controlled.containers
        if move is None:
            raise ApiProblem(409, f"containers cannot be moved here: {controlled.why_not_moved}", "path")
        if not 0 <= container < count:
            raise ApiProblem(404, f"there is no container {container}: there are {count}, from 0", "path.container")
        controlled.check_store(where.to, "body.to")
        try:
            async with asyncio.timeout(_MOVE_S), one_at_a_time:
                await move(container, where.to)
        except RuntimeError as error:
            raise ApiProblem(409, str(error), "body.to") from error
        except TimeoutError as error:
            why = f"store {where.to} has not taken container {container} within {_MOVE_S:g} s"
            raise ApiProblem(409, f"{why}: its session may be cut", "body.to") from error
        return _info(controlled, container)

    return made


def _owns(store: Store, number: int) -> bool:
    return number in store.store.containers or number in store.store.unopened


def _info(controlled: Controlled, number: int) -> ContainerInfo:
    here = next((each for each in controlled.stores if _owns(each, number)), None)
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
