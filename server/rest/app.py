"""The web application of the REST API: routes, health, and refusals.

A path may end in a slash, as in the reference. The answer to a refused request has no body; the header `segstore-error`
has the reason.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from segstore.server.control_api import ApiProblem
from segstore.server.controller import ControllerError
from segstore.server.controller.api import SCOPES, Authority, Permission
from segstore.server.rest.asking import RestRequest, RestResponse, refusal
from segstore.server.rest.health import HealthResult, HealthStatus, health_of
from segstore.server.rest.operations import OPERATIONS

log = logging.getLogger(__name__)

_HEALTH: Final = "/v1/health"
_PARTS: Final[Mapping[str, Callable[[HealthResult], Any]]] = {
    "": lambda result: result,
    "/status": lambda result: result.status,
    "/readiness": lambda result: result.readiness,
    "/liveness": lambda result: result.liveness,
    "/details": lambda result: result.details,
}
"""Answer about a part's health, by the end of the path."""

_encode = msgspec.json.Encoder().encode


class Answering(NamedTuple):
    """The functions that answer requests. ask: (request, credentials, peer) → answer. health: returns the status of
    each part. authority: checks access to the details of health.
    """

    ask: Callable[[RestRequest, str | None, str], Awaitable[RestResponse]]
    health: Callable[[], Mapping[str, HealthStatus]]
    authority: Authority


def response(answer: RestResponse) -> Response:
    headers = {"content-type": "application/json"} if answer.body else {}
    if answer.why:
        headers["segstore-error"] = "".join(each if " " <= each <= "~" else "?" for each in answer.why)
    return Response(answer.body, answer.status, headers)


def refused(problem: ApiProblem) -> Response:
    """The response of a request that the guard refuses."""
    return response(RestResponse(problem.status, why=problem.detail))


def make_app(answering: Answering) -> Starlette:
    """Creates the application, without the guard in front of it."""
    resources: dict[str, dict[str, str]] = defaultdict(dict)
    for name, operation in OPERATIONS.items():
        resources[operation.path][operation.verb] = name
    routes = [_route("/ping", ["GET"], _ping)]
    for path, verbs in resources.items():
        routes += [_route(path, list(verbs), _resource(answering, verbs))]
    for part, shown in _PARTS.items():
        endpoint = _health(answering, shown, guarded=part == "/details")
        routes += [_route(f"{_HEALTH}{part}{end}", ["GET"], endpoint) for end in ("", "/{id}")]
    # The whole's parts come before `/v1/health/{id}`, which would match them, too.
    routes.sort(key=lambda each: each.path == f"{_HEALTH}/{{id}}")
    both = [
        found for route in routes for found in (route, _route(f"{route.path}/", route.methods or (), route.endpoint))
    ]
    app = Starlette(routes=both, exception_handlers={HTTPException: _http, Exception: _unexpected})
    app.router.redirect_slashes = False
    return app


def _route(path: str, methods: Any, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    return Route(path, endpoint, methods=list(methods))


async def _ping(_: Request) -> Response:
    return Response()


def _credentials(request: Request) -> str | None:
    return next(iter(request.headers.getlist("authorization")), None)


def _resource(answering: Answering, verbs: Mapping[str, str]) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        name = verbs[request.method]
        parameters = {key: request.query_params.getlist(key)[0] for key in request.query_params}
        asked = RestRequest(name, {**parameters, **request.path_params}, await request.body())
        client = request.client
        peer = "http" if client is None else f"http:{client.host}:{client.port}"
        return response(await answering.ask(asked, _credentials(request), peer))

    return handle


def _health(
    answering: Answering, shown: Callable[[HealthResult], Any], *, guarded: bool
) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        if guarded:
            try:
                principal = await answering.authority.principal(_credentials(request))
                answering.authority.check(principal, SCOPES, Permission.READ_UPDATE)
            except ControllerError as error:
                return response(refusal("listScopes", error))
        name = request.path_params.get("id", "")
        result = health_of(answering.health(), name)
        if result is None:
            return response(RestResponse(HTTPStatus.NOT_FOUND, why=f"there is no part {name[:80]!r}"))
        return response(RestResponse(HTTPStatus.OK, _encode(shown(result))))

    return handle


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    why = f"{request.method[:20]} {request.url.path[:200]}: {error.detail}"
    if error.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        why += " in Pravega's REST API; segstore's own HTTP API has another port: --http-port"
    found = response(RestResponse(error.status_code, why=why))
    found.headers.update(error.headers or {})
    return found


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
    return response(RestResponse(HTTPStatus.INTERNAL_SERVER_ERROR, why="unexpected error; the server's log says more"))
