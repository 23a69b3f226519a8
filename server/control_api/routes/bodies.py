"""Request bodies in YAML, which routes of the class `YamlRoute` take.

YAML is read as fault files are, in a thread because odd documents take seconds: aliases, tags and duplicate keys are
refused, and data is no larger than its text. It is then handled as the same document in JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute

from segstore.server.control_api.guard import YAML_TYPES, media_type
from segstore.server.control_api.problems import ApiProblem
from segstore.server.faults import FaultFileError, parse_document

_MOST_BYTES: Final = 64 * 1024
YAML_PATHS: Final = ("/v1/faults",)
"""The paths of these routes that have bodies; elsewhere the guard refuses YAML."""


class YamlRoute(APIRoute):
    """A route whose body may be YAML."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def reading(request: Request) -> Response:
            if media_type(request.headers.get("content-type", "")) not in YAML_TYPES:
                return await handle(request)
            body = await request.body()
            if len(body) > _MOST_BYTES:
                raise ApiProblem(413, f"a body in YAML has at most {_MOST_BYTES} bytes; JSON may be longer", "body")
            return await handle(_InJson(request, await asyncio.to_thread(_as_json, body)))

        return reading


class _InJson(Request):
    """A request with another body, which is JSON."""

    def __init__(self, request: Request, body: bytes) -> None:
        headers = [header for header in request.scope["headers"] if header[0] != b"content-type"]
        super().__init__({**request.scope, "headers": [*headers, (b"content-type", b"application/json")]})
        self._body = body


def _as_json(body: bytes) -> bytes:
    try:
        return json.dumps(parse_document(body.decode(), "body").given).encode()
    except UnicodeDecodeError as error:
        raise ApiProblem(400, f"body: not UTF-8 at byte {error.start}", "body") from error
    except FaultFileError as error:
        raise ApiProblem(400, str(error), "body") from error


def describe_yaml(description: dict[str, Any]) -> None:
    """Adds the type to the OpenAPI description of these routes."""
    for path in YAML_PATHS:
        for operation in description["paths"][path].values():
            if (body := operation.get("requestBody")) is not None:
                body["content"][YAML_TYPES[0]] = body["content"]["application/json"]
