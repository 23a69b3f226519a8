"""Error responses of the control API: status, location and one sentence (RFC 9457).

All errors have this form, whether the guard, the web library or a route raises them. Only names from the request are
echoed.
"""

from __future__ import annotations

import json
import logging
import sys
from http import HTTPStatus
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from segstore.server.config import UnknownName, path_of, problem_of
from segstore.server.controller import (
    ControllerError,
    InvalidArgument,
    InvalidName,
    InvalidStreamCut,
    NotFound,
    ScaleRefused,
    TooMany,
)
from segstore.server.durable import JournalFailed
from segstore.server.node import SnapshotRefused
from segstore.server.recordings import RecordingRefused
from segstore.server.store import StoreError
from segstore.wire.validation import DuplicateKey, foremost, unique

log = logging.getLogger(__name__)

T = TypeVar("T")

PROBLEM_TYPE: Final = "application/problem+json"
_METHODS: Final = ("GET", "PUT", "POST", "DELETE")
_OF_REST_API: Final = ("/ping", "/v1/scopes", "/v1/health/")
"""Where the paths of Pravega's REST API begin."""


class ProblemDetails(BaseModel):
    """An error in a request."""

    status: int = Field(description="The HTTP status.")
    title: str = Field(description="The name of the status.")
    detail: str = Field(description="The error in one sentence; further lines are the nearest requests.")
    where: str = Field(description="The part of the request: `path.name`, `body.rules[0].do`, `header.host`.")
    errors: list[dict[str, str]] = Field([], description="`detail` and `where` of all errors, if there are several.")


def problem_response(text: str) -> dict[str, Any]:
    """Returns the description of an error response."""
    return {"description": text, "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}}


class ApiProblem(Exception):
    """A request is refused. Attributes: status, detail, where."""

    def __init__(self, status: int, detail: str, where: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.where = where


def body(status: int, detail: str, where: str, **more: Any) -> bytes:
    """Returns the response body. ASCII, so that it can contain any text from a peer."""
    problem = {"status": status, "title": HTTPStatus(status).phrase, "detail": detail, "where": where, **more}
    return json.dumps(problem).encode()


def answer(status: int, detail: str, where: str, headers: dict[str, str] | None = None) -> Response:
    return Response(body(status, detail, where), status, headers, PROBLEM_TYPE)


def required(traffic: T | None) -> T:
    """Returns the traffic, or its history or recordings. Raises ApiProblem where traffic is not kept."""
    if traffic is None:
        raise ApiProblem(409, "requests are not kept here: history_bytes is 0", "path")
    return traffic


def shown(text: str) -> str:
    """Returns a peer's text in valid UTF-8: lone surrogates, which names on the wire can contain, are escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiProblem)
    return answer(error.status, error.detail, error.where)


_STATUS: Final[tuple[tuple[type[Exception], int], ...]] = (
    (NotFound, 404),
    (UnknownName, 404),
    (InvalidArgument, 422),
    (InvalidName, 422),
    (InvalidStreamCut, 422),
    (TooMany, 422),
    (JournalFailed, 503),
    (Exception, 409),
)
_ABOUT_WHAT_IS_GIVEN: Final = (InvalidArgument, InvalidStreamCut, ScaleRefused, RecordingRefused)
"""Errors about the body of a request, or else its query; other errors are about its path."""


async def _refused_by_server(request: Request, error: Exception) -> Response:
    """Answers a valid request that the controller, a store, its snapshots or its recordings refuse."""
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    where = "path.name" if isinstance(error, UnknownName) else "path"
    if isinstance(error, _ABOUT_WHAT_IS_GIVEN):
        where = "body" if request.scope["route"].body_field is not None else "query" if request.url.query else "path"
    return answer(status, str(error), where)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    first, field = foremost(errors), request.scope["route"].body_field
    if first["type"] == "json_invalid":
        at = first["loc"][-1]
        return answer(400, f"this is not JSON: {first['ctx']['error']} at character {at}", "body")

    def located(problem: Any) -> dict[str, str]:
        where = path_of(problem["loc"])
        inside: Any = {**problem, "loc": problem["loc"][1:]}  # behind "body"
        return {"detail": f"{where}: {problem_of(inside, field and field.field_info.annotation)}", "where": where}

    every: dict[str, Any] = {"errors": [located(problem) for problem in errors]} if len(errors) > 1 else {}
    return Response(body(422, **located(first), **every), 422, media_type=PROBLEM_TYPE)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    path = request.url.path
    other_port = (
        "; Pravega's REST API is at the port of `segstore serve --rest-port`" if path.startswith(_OF_REST_API) else ""
    )
    if error.status_code == 404:
        return answer(404, f"there is no {path}; see /v1/openapi.json{other_port}", "path", headers)
    if error.status_code == 405:
        allowed = ", ".join(_allowed(request))
        why = f"{request.method} is not allowed for {path}; allowed: {allowed}{other_port}"
        return answer(405, why, "method", {"allow": allowed})
    if isinstance(error.__cause__, ValueError | RecursionError):
        return answer(400, f"body: {_unreadable(error.__cause__)}", "body")
    return answer(error.status_code, f"{error.detail}.".replace("..", "."), "body", headers)


def _unreadable(error: ValueError | RecursionError) -> str:
    """Returns why a body cannot be read although it may be JSON."""
    match error:
        case UnicodeDecodeError():
            return f"not UTF-8 at byte {error.start}"
        case RecursionError():
            return "it is nested too deeply"
    return f"an integer has at most {sys.get_int_max_str_digits()} digits"


def check_keys(data: bytes) -> None:
    """Refuses JSON with a key that an object has twice. Raises ApiProblem."""
    try:
        json.loads(data, object_pairs_hook=unique)
    except DuplicateKey as error:
        raise ApiProblem(400, f"body: {error}", "body") from None


def _allowed(request: Request) -> list[str]:
    """Returns the methods of all routes that match the path. The library's own header names only the first route's
    methods.
    """
    allowed = [
        method
        for method in _METHODS
        if method != request.method
        and any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]
    return ["GET", "HEAD", *allowed[1:]] if "GET" in allowed else allowed


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
    return answer(500, "unexpected error; the server's log says more", "")


def install(app: FastAPI) -> None:
    app.add_exception_handler(ApiProblem, _refused)
    for kind in (ControllerError, StoreError, UnknownName, SnapshotRefused, RecordingRefused, JournalFailed):
        app.add_exception_handler(kind, _refused_by_server)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)
