"""Routes of a server that answers from a trace: the requests that the trace does not answer.

Problems are described on request, one per loop iteration, because comparing large frames takes time.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Query

from segstore.server.control_api.controlled import Here
from segstore.server.control_api.models import ReplayProblem, ReplayProblems
from segstore.server.control_api.problems import shown
from segstore.wire.trace import CONTROLLER

_MOST_CHARACTERS: Final = 10_000


router = APIRouter(prefix="/v1", tags=["replay"])


@router.get("/problems", summary="Requests that the trace does not answer, oldest first")
async def list_problems(
    controlled: Here,
    after: Annotated[int, Query(ge=0, description="Only problems with a greater number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of problems.")] = 20,
) -> ReplayProblems:
    known = [] if controlled.replay is None else controlled.replay.problems
    total, page = len(known), []
    for number in range(after + 1, min(after + limit, total) + 1):
        problem = known[number - 1]
        page.append(
            ReplayProblem(
                number=number,
                connection=None if problem.connection == CONTROLLER else problem.connection,
                request=shown(problem.request),
                expected=None if problem.expected is None else shown(problem.expected),
                detail=shown(str(problem)[:_MOST_CHARACTERS]),
            )
        )
        await asyncio.sleep(0)
    return ReplayProblems(total=total, problems=page, next=after + limit if after + limit < total else None)
