"""Request bodies in YAML: routes of the class `YamlRoute` take them beside JSON.

A body is read as fault files are, so aliases, tags and duplicate keys are refused and data is no larger than its text.
Then the route sees JSON, so both forms are validated alike; an error in YAML has the line and the column in front.

Reading YAML takes long, some seconds for odd documents of `_MOST_BYTES`, the limit. So a body is read in a thread, and
a route reads one at a time, unless its client has disconnected meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from segstore.server.control_api.guard import YAML_TYPES, media_type
from segstore.server.control_api.problems import ApiProblem, place, sentence
from segstore.server.faults import Document, FaultFileError, parse_document

_MOST_BYTES: Final = 64 * 1024
YAML_PATHS: Final = ("/v1/faults",)
"""The paths of these routes that have bodies; elsewhere the guard refuses YAML."""


class YamlRoute(APIRoute):
    """A route whose body may be YAML."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        one_at_a_time = asyncio.Lock()

        async def reading(request: Request) -> Response:
            if media_type(request.headers.get("content-type", "")) not in YAML_TYPES:
                return await handle(request)
            body = await request.body()
            if len(body) > _MOST_BYTES:
                raise ApiProblem(413, f"a body in YAML has at most {_MOST_BYTES} bytes; JSON may be longer", "body")
            async with one_at_a_time:
                if await request.is_disconnected():
                    raise ApiProblem(408, "the client disconnected before its body was read", "body")
                document = await _read(body)
            try:
                return await handle(_as_json(request, document.given))
            except RequestValidationError as error:
                raise _problem(document, error) from error

        return reading


async def _read(body: bytes) -> Document:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ApiProblem(400, f"body: not UTF-8 at byte {error.start}", "body") from error
    try:
        return await asyncio.to_thread(parse_document, text, "body")
    except FaultFileError as error:
        where = f"body.{error.path}" if error.path else "body"
        raise ApiProblem(400, f"{_at(error.line, error.column)}{where}: {error.reason}", where) from error


def _as_json(request: Request, given: Any) -> Request:
    """Returns the request with its body in JSON."""
    body = json.dumps(given).encode()
    headers = [each for each in request.scope["headers"] if each[0] not in (b"content-type", b"content-length")]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({**request.scope, "headers": headers}, receive)


def _problem(document: Document, error: RequestValidationError) -> ApiProblem:
    first = error.errors()[0]
    where = place(first["loc"])
    found = document.place(tuple(first["loc"][1:]))
    return ApiProblem(422, f"{_at(found.line, found.column)}{where}: {sentence(first)}", where)


def _at(line: int | None, column: int | None) -> str:
    return "" if line is None else f"line {line}, column {column}: "


def describe_yaml(description: dict[str, Any]) -> None:
    """Adds the type to the OpenAPI description of these routes."""
    for path in YAML_PATHS:
        for operation in description["paths"][path].values():
            if (body := operation.get("requestBody")) is not None:
                body["content"][YAML_TYPES[0]] = body["content"]["application/json"]
