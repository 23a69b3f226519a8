"""Error responses of the control API: status, location and one sentence (RFC 9457).

Every refusal has this one form (RFC 9457), whoever finds it: the guard, the web library, a resource. Nothing of what
was sent is echoed but names.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

log = logging.getLogger(__name__)

_TYPE = "application/problem+json"


class Problem(BaseModel):
    """What is wrong with a request."""

    status: int = Field(description="The status of the answer.")
    title: str = Field(description="What that status is called.")
    detail: str = Field(description="One sentence: what is wrong.")
    where: str = Field(description="Which part of the request: `path.name`, `body.rules[0].do`, `header.host`.")


class ApiProblem(Exception):
    """A request that is refused. Attributes: status, detail, where."""

    def __init__(self, status: int, detail: str, where: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.where = where


def body(status: int, detail: str, where: str) -> bytes:
    """The answer's body. ASCII, so that any text of a peer can stand in it."""
    problem = {"status": status, "title": HTTPStatus(status).phrase, "detail": detail, "where": where}
    return json.dumps(problem).encode()


def answer(status: int, detail: str, where: str, headers: dict[str, str] | None = None) -> Response:
    return Response(body(status, detail, where), status, headers, _TYPE)


def shown(text: str) -> str:
    """Text of a peer as JSON can carry it: a half of a surrogate pair, which a wire name may hold, as its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def place(location: Sequence[int | str]) -> str:
    """A path as a person writes it; the tags of pydantic's unions, `<Error>`, are left out."""
    path = ""
    for index, part in enumerate(location):
        if isinstance(part, int):
            path += f"[{part}]"
        elif not (part.startswith("<") and index):
            path += f".{part}" if path else part
    return path


def sentence(error: Any) -> str:
    """The sentence of an error of pydantic's."""
    if error["type"] == "extra_forbidden":
        return "there is no such key"
    return str(error["msg"]).removeprefix("Value error, ")


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiProblem)
    return answer(error.status, error.detail, error.where)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        at = first["loc"][-1]
        return answer(400, f"this is no JSON: {first['ctx']['error']} at character {at}", "body")
    where = place(first["loc"])
    return answer(422, f"{where}: {sentence(first)}", where)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return answer(404, f"there is no {request.url.path}; see /v1/openapi.json", "path", headers)
    if error.status_code == 405:
        allowed = headers.get("Allow", headers.get("allow", ""))
        return answer(405, f"{request.method} is not for {request.url.path}; {allowed} is", "method", headers)
    return answer(error.status_code, f"{error.detail}.".replace("..", "."), "body", headers)


async def _unforeseen(request: Request, error: Exception) -> Response:
    log.error("%s %s failed in a way that nobody foresaw", request.method, request.url.path, exc_info=error)
    return answer(500, "the request failed in a way that nobody foresaw; the server's log says more", "")


def install(app: FastAPI) -> None:
    """Has the application answer so."""
    app.add_exception_handler(ApiProblem, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)
