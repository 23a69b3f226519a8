"""The control API's web application: all routes, with one error format and one OpenAPI description.

Every handler is a coroutine, so it runs on the store's loop and not in a thread; handlers that iterate over many
segments yield to the loop regularly. The OpenAPI description is at /v1/openapi.json, the live page at /. No page loads
scripts from elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

from segstore.server.control_api import contents, page
from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.problems import ApiProblem, Problem, install
from segstore.server.control_api.routes import (
    about,
    bodies,
    connections,
    containers,
    decisions,
    faults,
    recordings,
    requests,
    segments,
    streams,
    toxics,
)
from segstore.server.control_api.steering import arranging, asserting, events, snapshots

_EVERYWHERE: Final = (
    about,
    connections,
    faults,
    decisions,
    toxics,
    asserting,  # before `requests`, whose paths end in a number
    requests,
    recordings,
    page,
)
_OF_STORES: Final = (streams, segments, containers, contents, arranging, events, snapshots)
"""Resources that a tap does not have."""
_ABOUT = """Inspects and controls a running segment store, or a tap before one.

Every error response is a `Problem`: one sentence, and the place in the request."""


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    kind = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {each: {"model": Problem, "content": {"application/problem+json": kind}} for each in statuses}


def _operation(route: APIRoute) -> str:
    return route.name


def _refuse_on_tap() -> None:
    raise ApiProblem(
        409, "a tap has no stores: this is a request for `segstore serve`, or for the cluster behind the tap", "path"
    )


def make_app(controlled: Controlled) -> FastAPI:
    """Creates the application, without the guard in front of it."""
    app = FastAPI(
        title="segstore",
        version=controlled.version,
        description=_ABOUT,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation,
        responses=_refusals(400, 401, 403, 404, 408, 409, 413, 415, 422, 500, 501, 503),
    )
    for resources in _EVERYWHERE:
        app.include_router(resources.router(controlled))
    on_tap = controlled.tap is not None
    for resources in _OF_STORES:
        refused = [Depends(_refuse_on_tap)] if on_tap else []
        app.include_router(resources.router(controlled), dependencies=refused, include_in_schema=not on_tap)
    install(app)
    described = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _describe_actions(described())
            bodies.describe_yaml(described())
        return described()

    app.openapi = openapi  # type: ignore[method-assign]  # as the library documents
    return app


def _describe_actions(description: dict[str, Any]) -> None:
    """Adds to the description that an action can be a word, alone or in a list; the model does not say so."""
    for name, schema in description["components"]["schemas"].items():
        if name.startswith("Rule"):
            actions = schema["properties"]["do"]
            one = {"anyOf": [{"type": "string"}, actions["items"]]}
            listed = {"type": "array", "minItems": 1, "items": one}
            schema["properties"]["do"] = {"anyOf": [*one["anyOf"], listed], "title": "Do"}
