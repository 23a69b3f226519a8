"""The web application of the REST API, and its port, with the listener and the guard of the control API.

A path may end in a slash, as in the reference. The answer to a refused request has no body; the header `segstore-error`
has the reason.

The whole is as healthy as its least healthy part. Invariant: a status is computed per request. Follows
`HealthEndpointImpl` and `StatusAggregator`, which instead update statuses at intervals.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import IntEnum
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from segstore.server.auth import Permission
from segstore.server.control_api import ApiProblem, Guard, HttpListener
from segstore.server.controller import ControllerError
from segstore.server.controller.api import SCOPES, Authority
from segstore.server.net import TlsFiles
from segstore.server.rest.asking import RestRequest, RestResponse, refusal
from segstore.server.rest.operations import OPERATIONS

log = logging.getLogger(__name__)


class HealthStatus(IntEnum):
    """Health of a part; the names are as in JSON. From NEW on, the part is alive; UP is ready."""

    FAILED = -2
    DOWN = -1
    UNKNOWN = 0
    NEW = 1
    STARTING = 2
    UP = 3


class HealthResult(msgspec.Struct):
    """The health of a part, and of the parts in it. The whole has the name ""."""

    name: str
    status: str
    readiness: bool
    liveness: bool
    details: dict[str, str]
    children: dict[str, HealthResult]


def health_of(parts: Mapping[str, HealthStatus], name: str = "") -> HealthResult | None:
    """Returns the health of a part, or of the whole; None if there is no such part."""
    if name:
        return None if name not in parts else _result(name, parts[name], {})
    alive = all(part >= HealthStatus.NEW for part in parts.values())
    return _result(
        "", HealthStatus.UP if alive else HealthStatus.DOWN, {part: _result(part, parts[part], {}) for part in parts}
    )


def _result(name: str, status: HealthStatus, children: dict[str, HealthResult]) -> HealthResult:
    return HealthResult(name, status.name, status >= HealthStatus.UP, status >= HealthStatus.NEW, {}, children)


_HEALTH: Final = "/v1/health"
_FACTS: Final = ("", "status", "readiness", "liveness", "details")
"""The facts about health that have paths of their own; "" is for all."""

_encode = msgspec.json.Encoder().encode


class Answering(NamedTuple):
    """The functions that answer requests. ask: (request, credentials, peer) → answer. health: returns the status of
    each part. authority: checks access to the details of health.
    """

    ask: Callable[[RestRequest, str | None, str], Awaitable[RestResponse]]
    health: Callable[[], Mapping[str, HealthStatus]]
    authority: Authority


def _response(answer: RestResponse) -> Response:
    headers = {"content-type": "application/json"} if answer.body else {}
    if answer.why:
        headers["segstore-error"] = "".join(character if " " <= character <= "~" else "?" for character in answer.why)
    return Response(answer.body, answer.status, headers)


def _refused(problem: ApiProblem) -> Response:
    """The response of a request that the guard refuses."""
    return _response(RestResponse(problem.status, why=problem.detail))


def make_app(answering: Answering) -> Starlette:
    """Creates the application, without the guard in front of it."""
    resources: dict[str, dict[str, str]] = defaultdict(dict)
    for name, operation in OPERATIONS.items():
        resources[operation.path][operation.verb] = name
    routes = [Route("/ping", _ping, methods=["GET"])]
    for path, verbs in resources.items():
        routes += [Route(path, _resource(answering, verbs), methods=list(verbs))]
    for fact in _FACTS:
        path, endpoint = f"{_HEALTH}/{fact}".removesuffix("/"), _health(answering, fact)
        routes += [Route(f"{path}{end}", endpoint, methods=["GET"]) for end in ("", "/{id}")]
    # The whole's parts come before `/v1/health/{id}`, which would match them, too.
    routes.sort(key=lambda it: it.path == f"{_HEALTH}/{{id}}")
    routes += [Route(f"{route.path}/", route.endpoint, methods=list(route.methods or ())) for route in routes]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http, Exception: _unexpected})
    app.router.redirect_slashes = False
    return app


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
        return _response(await answering.ask(asked, _credentials(request), peer))

    return handle


def _health(answering: Answering, fact: str) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        if fact == "details":
            try:
                principal = await answering.authority.principal(_credentials(request))
                answering.authority.check(principal, SCOPES, Permission.READ_UPDATE)
            except ControllerError as error:
                return _response(refusal("listScopes", error))
        name = request.path_params.get("id", "")
        result = health_of(answering.health(), name)
        if result is None:
            return _response(RestResponse(HTTPStatus.NOT_FOUND, why=f"there is no part {name[:80]!r}"))
        return _response(RestResponse(HTTPStatus.OK, _encode(getattr(result, fact) if fact else result)))

    return handle


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    why = f"{request.method[:20]} {request.url.path[:200]}: {error.detail}"
    if error.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        why += " in Pravega's REST API; segstore's own HTTP API has another port: --http-port"
    answer = _response(RestResponse(error.status_code, why=why))
    answer.headers.update(error.headers or {})
    return answer


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
    return _response(RestResponse(HTTPStatus.INTERNAL_SERVER_ERROR, why="unexpected error; the server's log says more"))


class RestApi(HttpListener):
    """Serves the REST API at a host and port; port 0 picks a free port.

    names: other allowed host names in requests. tls: the files for HTTPS; None for HTTP.
    """

    def __init__(
        self, answering: Answering, host: str, port: int, *, names: Iterable[str] = (), tls: TlsFiles | None = None
    ) -> None:
        super().__init__(host, port, "REST", "--rest-port", tls)
        self._answering = answering
        self._names = tuple(names)

    async def start(self) -> None:
        """Starts listening. Raises AddressInUse, CannotListen."""
        app = make_app(self._answering)
        # The controller completes work that it has started.
        await self.listen(Guard(app, bound=self._host, names=self._names, refusal=_refused, abandons=True))
