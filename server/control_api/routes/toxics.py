"""Routes that list, add and remove toxics while the server runs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Response

from segstore.server.control_api.controlled import Here
from segstore.server.control_api.models import ActiveToxic, ActiveToxics, Added
from segstore.server.control_api.problems import ApiProblem
from segstore.server.control_api.routes import NAME
from segstore.server.control_api.routes.faults import faults_of
from segstore.server.toxics import NoSuchToxic, Toxic

_Name = Annotated[str, Path(description="The name of a toxic.")]


router = APIRouter(prefix="/v1/toxics", tags=["faults"])


@router.get("", summary="Toxics and the connections that have them")
async def list_toxics(controlled: Here) -> ActiveToxics:
    tallies = faults_of(controlled).toxics.tallies()
    return ActiveToxics(toxics=[ActiveToxic(**msgspec.structs.asdict(each)) for each in tallies])


@router.post("", summary="Add a toxic", status_code=201)
async def add_toxic(controlled: Here, toxic: Toxic) -> Added:
    there = faults_of(controlled).toxics
    controlled.check_store(toxic.store, "body.store")
    try:
        return Added(name=there.add(toxic))
    except ValueError as error:
        raise ApiProblem(409, str(error), "body.name") from error


@router.delete("", summary="Remove all toxics", status_code=204)
async def clear_toxics(controlled: Here) -> Response:
    faults_of(controlled).toxics.clear()
    return Response(status_code=204)


@router.delete(f"/{NAME}", summary="Remove a toxic", status_code=204)
async def remove_toxic(controlled: Here, name: _Name) -> Response:
    try:
        faults_of(controlled).toxics.clear(name)
    except NoSuchToxic as error:
        raise ApiProblem(404, str(NoSuchToxic(name[:200], error.known)), "path.name") from error
    return Response(status_code=204)
