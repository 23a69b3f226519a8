"""Request bodies that take long: in YAML, or long ones in JSON. Routes of the class `LongBodyRoute` take them.

YAML is read as fault files are, so aliases, tags and duplicate keys are refused and data is no larger than its text.
Both forms are validated alike; an error in YAML has the line and the column in front.

Reading YAML takes some seconds for odd documents of `_MOST_BYTES`, the limit, and the filters of a thousand rules some
tenths. So such a body is read and validated in a thread while others are served. A route reads one at a time, unless
its connection was lost meanwhile.
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
from segstore.wire.validation import first_error, unique

_MOST_BYTES: Final = 64 * 1024
_SHORT_BYTES: Final = 4 * 1024
_JSON: Final = "application/json"
YAML_PATHS: Final = ("/v1/faults",)
"""The paths of these routes that have bodies; elsewhere the guard refuses YAML."""


class LongBodyRoute(APIRoute):
    """A route whose body may be YAML, and may take long to read and to validate."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        kind_of_body = self.body_field.field_info.annotation
        assert kind_of_body is not None, "FastAPI requires one"
        expected: TypeAdapter[Any] = TypeAdapter(kind_of_body)
        one_at_a_time = asyncio.Lock()

        async def reading(request: Request) -> Response:
            kind, body = media_type(request.headers.get("content-type", "")), await request.body()
            is_yaml = kind in YAML_TYPES
            if not is_yaml and (kind != _JSON or len(body) <= _SHORT_BYTES):
                return await handle(request)
            if is_yaml and len(body) > _MOST_BYTES:
                raise ApiProblem(413, f"a body in YAML has at most {_MOST_BYTES} bytes; JSON may be longer", "body")
            async with one_at_a_time:
                if await request.is_disconnected():
                    raise ApiProblem(408, "the client disconnected before its body was read", "body")
                document = await _read(body) if is_yaml else None
                try:
                    given = await asyncio.to_thread(_validated, expected, document, body)
                except ValidationError as error:
                    raise _problem(document, error, kind_of_body) from error
                except (ValueError, RecursionError):
                    return await handle(request)  # which reports what is no JSON, and duplicate keys
            return await handle(_Validated(request, given))

        return reading


class _Validated(Request):
    """A request whose body, in JSON, is a valid object already, which the route takes as it is."""

    def __init__(self, request: Request, given: Any) -> None:
        headers = [each for each in request.scope["headers"] if each[0] != b"content-type"]
        super().__init__({**request.scope, "headers": [*headers, (b"content-type", _JSON.encode())]})
        self._given = given

    async def body(self) -> bytes:
        return b"{}"

    async def json(self) -> Any:
        return self._given


def _validated(expected: TypeAdapter[Any], document: Document | None, body: bytes) -> Any:
    text = body if document is None else json.dumps(document.given)
    return expected.validate_python(json.loads(text, object_pairs_hook=unique), from_attributes=True)  # as FastAPI does


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


def _problem(document: Document | None, error: ValidationError, kind_of_body: Any) -> ApiProblem:
    first = first_error(error)
    where = place(("body", *first["loc"]))
    found = None if document is None else document.place(first["loc"])
    at = "" if found is None else _at(found.line, found.column)
    return ApiProblem(422, f"{at}{where}: {sentence({**first, 'loc': ('body', *first['loc'])}, kind_of_body)}", where)


def _at(line: int | None, column: int | None) -> str:
    return "" if line is None else f"line {line}, column {column}: "


def describe_yaml(description: dict[str, Any]) -> None:
    """Adds the type to the OpenAPI description of these routes."""
    for path in YAML_PATHS:
        for operation in description["paths"][path].values():
            if (body := operation.get("requestBody")) is not None:
                body["content"][YAML_TYPES[0]] = body["content"]["application/json"]
