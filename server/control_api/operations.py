"""The operations on streams, transactions, groups and tables, called in this process: the handlers, without HTTP."""

from __future__ import annotations

from typing import Any, get_args

from fastapi.routing import APIRoute
from pydantic import BaseModel

from segstore.server.config import settings_of
from segstore.server.control_api import contents
from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.problems import ApiProblem
from segstore.server.control_api.steering import arranging, events

_ERRORS: dict[int, type[Exception]] = {404: LookupError, 422: ValueError}


class Operations:
    """The operations by their ids, which are those of the API's description."""

    def __init__(self, controlled: Controlled) -> None:
        routers = *contents.routers(controlled), arranging.router(controlled), events.router(controlled)
        routes = (route for router in routers for route in router.routes)
        self._routes = {route.name: route for route in routes if isinstance(route, APIRoute)}

    async def call(self, operation: str, path: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Returns what the handler does. path: the values in the operation's path. given: the fields of its body, or
        else of its query.

        Raises ControllerError, StoreError; LookupError, ValueError or RuntimeError for other refusals.
        """
        route = self._routes[operation]
        named = dict(zip((each.name for each in route.dependant.path_params), path, strict=True))
        for body in route.dependant.body_params:
            given = {body.name: settings_of(_model(body.field_info.annotation), given)}
        try:
            return await route.endpoint(**named, **given)
        except ApiProblem as problem:
            raise _ERRORS.get(problem.status, RuntimeError)(problem.detail) from None


def _model(annotation: Any) -> type[BaseModel]:
    """Returns the model of a body, which may be optional."""
    found: type[BaseModel] = (get_args(annotation) or (annotation,))[0]
    return found
