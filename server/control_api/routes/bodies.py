"""Request bodies in YAML, which routes of the class `YamlRoute` take.

YAML is read as fault files are, in a thread because odd documents take seconds: aliases, tags and duplicate keys are
refused and data is no larger than its text. It is then handled as the same document in JSON; an error has the line and
the column in front.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

from segstore.server.control_api.guard import YAML_TYPES, media_type
from segstore.server.control_api.problems import ApiProblem, place, sentence
from segstore.server.faults import Document, FaultFileError, parse_document
from segstore.wire.validation import first_error

_MOST_BYTES: Final = 64 * 1024
YAML_PATHS: Final = ("/v1/faults",)
"""The paths of these routes that have bodies; elsewhere the guard refuses YAML."""


class YamlRoute(APIRoute):
    """A route whose body may be YAML."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        kind_of_body = self.body_field.field_info.annotation
        assert kind_of_body is not None, "FastAPI requires one"
        expected: TypeAdapter[Any] = TypeAdapter(kind_of_body)

        async def reading(request: Request) -> Response:
            if media_type(request.headers.get("content-type", "")) not in YAML_TYPES:
                return await handle(request)
            body = await request.body()
            if len(body) > _MOST_BYTES:
                raise ApiProblem(413, f"a body in YAML has at most {_MOST_BYTES} bytes; JSON may be longer", "body")
            document = await _read(body)
            text = json.dumps(document.given)
            try:
                expected.validate_python(json.loads(text), from_attributes=True)  # as FastAPI does
            except ValidationError as error:
                raise _problem(document, error, kind_of_body) from error
            return await handle(_InJson(request, text.encode()))

        return reading


class _InJson(Request):
    """A request with another body, which is JSON."""

    def __init__(self, request: Request, body: bytes) -> None:
        headers = [header for header in request.scope["headers"] if header[0] != b"content-type"]
        super().__init__({**request.scope, "headers": [*headers, (b"content-type", b"application/json")]})
        self._body = body


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


def _problem(document: Document, error: ValidationError, kind_of_body: Any) -> ApiProblem:
    first = first_error(error)
    where = place(("body", *first["loc"]))
    at = document.place(first["loc"])
    why = sentence({**first, "loc": ("body", *first["loc"])}, kind_of_body)
    return ApiProblem(422, f"{_at(at.line, at.column)}{where}: {why}", where)


def _at(line: int | None, column: int | None) -> str:
    return "" if line is None else f"line {line}, column {column}: "


def describe_yaml(description: dict[str, Any]) -> None:
    """Adds the type to the OpenAPI description of these routes."""
    for path in YAML_PATHS:
        for operation in description["paths"][path].values():
            if (body := operation.get("requestBody")) is not None:
                body["content"][YAML_TYPES[0]] = body["content"]["application/json"]
