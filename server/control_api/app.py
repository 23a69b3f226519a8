"""The control API's web application: all routes, with one error format and one OpenAPI description.

Every handler is a coroutine, so it runs on the store's loop and not in a thread; handlers that iterate over many
segments yield to the loop regularly. The OpenAPI description is at /v1/openapi.json, the live page at /. No page loads
scripts from elsewhere.

Invariant of the description: an operation lists every status that it can be answered with, and maybe others. The id of
an operation is the name of its handler, and clients are generated from it: it is part of the API.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from importlib.metadata import version
from typing import Any, Final, get_args
from uuid import UUID

from fastapi import APIRouter, Depends, FastAPI, Request, params
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from segstore.server.config import path_of, settings_of, unknown_name
from segstore.server.control_api import contents, replayed
from segstore.server.control_api.controlled import Controlled, Kind
from segstore.server.control_api.problems import ApiProblem, ProblemDetails, check_keys, install, problem_response
from segstore.server.control_api.routes import (
    about,
    bodies,
    connections,
    containers,
    faults,
    recordings,
    requests,
    segments,
    streams,
)
from segstore.server.control_api.steering import arranging, asserting, events

_WITH_TRAFFIC: Final = (
    connections.router,
    faults.router,
    faults.decisions,
    faults.toxics,
    asserting.router,  # before `requests`, whose paths end in a number
    requests.router,
    recordings.router,
    about.page,
)
_OF_CONTENTS: Final = (*contents.ROUTERS, arranging.router, events.router)
_OF_STORES: Final = (
    requests.sending,
    streams.router,
    segments.router,
    containers.router,
    *_OF_CONTENTS,
    arranging.snapshots,
)
_RESOURCES: Final[tuple[tuple[tuple[APIRouter, ...], tuple[Kind, ...]], ...]] = (
    ((about.router,), ("stores", "tap", "replay")),
    (_WITH_TRAFFIC, ("stores", "tap")),
    (_OF_STORES, ("stores",)),
    ((replayed.router,), ("replay",)),
)
"""The resources, and the kinds of servers that have them."""
_LACKS: Final[dict[Kind, str]] = {
    "tap": "a tap has no stores: this is a request for `segstore serve`, or for the cluster behind the tap",
    "replay": "a replay has problems only: this is a request for `segstore serve` or `segstore tap`",
}
_OF_REPLAYS: Final = "only a replay answers from a trace: this is a request for `segstore replay`"
_ERRORS: Final[dict[int, type[Exception]]] = {404: LookupError, 422: ValueError}
"""Exception by status for refusals within this process; RuntimeError for other statuses."""
_ABOUT: Final = """Inspects and controls a running segment store, a tap before one, or a replay of a trace.

Every error response is a `ProblemDetails`: one sentence, and the place in the request."""

_REFUSALS: Final = {
    "400": "The request has no valid Host header, or its body is not JSON.",
    "401": "The token is missing or wrong.",
    "403": "The request comes from another web page, or is for a host name that is not this server's.",
    "404": "Something that the path names does not exist.",
    "409": "The server's state does not allow it, or what was waited for or verified is not so.",
    "413": "The body is too long.",
    "415": "The body's content type is not one that the operation takes.",
    "422": "A value in the request is invalid.",
    "500": "Unexpected error; the server's log says more.",
    "503": "The server cannot store data any more.",
}
"""Meaning of each error status. Routes add their own statuses."""
_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    int(status): {"$ref": f"#/components/responses/Problem{status}"} for status in _REFUSALS
}
_TOKEN: Final = {"type": "http", "scheme": "bearer", "description": "The token of `--http-token-file`."}
_OF_LISTS: Final = ("type", "items", "minItems", "maxItems")


def _refuse(kind: Kind, kinds: tuple[Kind, ...]) -> params.Depends:
    """Refuses a router's requests on a server of kind `kind`. kinds: the kinds of servers that serve them."""
    why = _OF_REPLAYS if kinds == ("replay",) else _LACKS[kind]

    def refuse() -> None:
        raise ApiProblem(409, why, "path")

    refusal: params.Depends = Depends(refuse)
    return refusal


async def _check_given(request: Request) -> None:
    """Refuses unknown parameters, an unexpected body, and repeated keys.

    Only under `/v1/`, because the page keeps parameters of its own in its address, and scrapers of `/metrics` may send
    parameters.
    """
    if not request.url.path.startswith("/v1/"):
        return
    known = [param.alias for param in request.scope["route"].dependant.query_params]
    body = await request.body()
    if request.scope["route"].body_field is not None and body:
        check_keys(body)
    elif body not in (b"", b"{}"):
        hint = f"; its parameters are in the query: {', '.join(known)}" if known else ""
        raise ApiProblem(422, f"body: the operation takes none{hint}", "body")
    query = request.query_params.multi_items()
    twice = next((name for name, count in Counter(name for name, _ in query).items() if count > 1), None)
    if twice is not None and twice in known:
        raise ApiProblem(422, f"query.{twice}: the parameter appears twice", f"query.{twice}")
    unknown = next((param for param in request.query_params if param not in known), None)
    if unknown is not None:
        where = path_of(("query", unknown))
        why = unknown_name("parameter", unknown[:200], known) if known else "there are no parameters"
        raise ApiProblem(422, f"{where}: {why}", where)


def serving(controlled: Controlled, *, guarded: bool = False) -> ASGIApp:
    """Returns the application for a server, without the guard in front of it."""
    app, state = application(controlled.kind, guarded=guarded), {"controlled": controlled}

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": state}, receive, send)

    return serve


@cache
def application(kind: Kind, *, guarded: bool = False) -> FastAPI:
    """Returns the application of all servers of a kind: making it takes as long as hundreds of requests.

    guarded: whether the guard requires a token.
    """
    app = FastAPI(
        title="segstore",
        version=version("segstore"),
        description=_ABOUT,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=_RESPONSES,
        generate_unique_id_function=lambda route: route.name,
    )
    for routers, kinds in _RESOURCES:
        is_here = kind in kinds
        refused = [] if is_here else [_refuse(kind, kinds)]
        for router in routers:
            app.include_router(router, dependencies=[*refused, Depends(_check_given)], include_in_schema=is_here)
    install(app)
    described = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = described()
            _describe_rules(description)
            if kind != "replay":
                bodies.describe_yaml(description)
            components = description["components"]
            components["schemas"].pop("Call", None)  # no request or response has one
            components["schemas"]["ProblemDetails"] = ProblemDetails.model_json_schema()
            components["responses"] = {f"Problem{status}": problem_response(text) for status, text in _REFUSALS.items()}
            components["securitySchemes"] = {"token": _TOKEN}
            description["security"] = [{"token": []}] if guarded else [{}, {"token": []}]
        return described()

    app.openapi = openapi  # type: ignore[method-assign]  # as the library documents
    return app


_ROUTES: Final = {
    route.name: route for router in _OF_CONTENTS for route in router.routes if isinstance(route, APIRoute)
}


class Operations:
    """The operations on streams, transactions, groups and tables, called in this process without HTTP."""

    def __init__(self, controlled: Controlled) -> None:
        self._controlled = controlled

    async def call(self, operation: str, path: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Returns the handler's result. path: the values in the operation's path. given: the fields of its body, or
        else of its query.

        Raises ControllerError, StoreError; LookupError, ValueError or RuntimeError for other refusals.
        """
        route = _ROUTES[operation]
        named = dict(zip((param.name for param in route.dependant.path_params), path, strict=True))
        for name, value in named.items():
            if not isinstance(value, str | UUID):
                raise ValueError(f"{name} is text, not {value!r}")
        for body in route.dependant.body_params:
            annotation = body.field_info.annotation  # of a model, which may be optional
            given = {body.name: settings_of((get_args(annotation) or (annotation,))[0], given)}
        try:
            return await route.endpoint(self._controlled, **named, **given)
        except ApiProblem as problem:
            raise _ERRORS.get(problem.status, RuntimeError)(problem.detail) from None


def _describe_rules(description: dict[str, Any]) -> None:
    """Adds to the description the short forms of rules: an action as a word, one value for a list."""
    for name, schema in description["components"]["schemas"].items():
        if name.startswith("Rule"):
            fields = schema["properties"]
            fields["do"]["items"] = {"anyOf": [{"type": "string"}, fields["do"]["items"]]}
            for field in (fields["do"], fields["nth"]):
                listed = {key: field.pop(key) for key in _OF_LISTS if key in field}
                field["anyOf"] = [listed["items"], listed]
