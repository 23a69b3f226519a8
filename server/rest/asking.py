"""Requests of the REST API and their answers, apart from HTTP, so that a process can forward them to another.

Refused requests have the reference's status and, as there, no body; `why` is the reason.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from grpc import StatusCode

from segstore.server.controller import ControllerError
from segstore.server.controller.api import answer

_OF_VALUES: Final = {
    "SCOPE_EXISTS": HTTPStatus.CONFLICT,
    "STREAM_EXISTS": HTTPStatus.CONFLICT,
    "SCOPE_NOT_FOUND": HTTPStatus.NOT_FOUND,
    "STREAM_NOT_FOUND": HTTPStatus.NOT_FOUND,
    "RG_NOT_FOUND": HTTPStatus.NOT_FOUND,
    "SCOPE_NOT_EMPTY": HTTPStatus.PRECONDITION_FAILED,
    "STREAM_NOT_SEALED": HTTPStatus.PRECONDITION_FAILED,
}
"""HTTP status by value of a gRPC method's enum; 500 for other values, as in `StreamMetadataResourceImpl`."""

_OF_CODES: Final = {
    StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""HTTP status by gRPC status code; 500 for other codes."""


class RestRequest(msgspec.Struct):
    """A request. operation: a key of `OPERATIONS`. parameters: from the path and the query, by name."""

    operation: str
    parameters: dict[str, str]
    body: bytes


class RestResponse(msgspec.Struct):
    """A response. body: JSON, or empty. why: one sentence about the error, if any."""

    status: int
    body: bytes = b""
    why: str = ""


class Refused(Exception):
    """A request that is refused in any state of the controller. Attributes: status, why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


def refusal(method: str, error: ControllerError) -> RestResponse:
    """The answer to a request that failed in the controller as a call of a gRPC method fails."""
    return RestResponse(status_of(*answer(method, error)), why=error.message)


def status_of(value: str | None, code: StatusCode) -> HTTPStatus:
    """The status for a failure of a gRPC method: a value of its enum, or if that is None a status code."""
    status = _OF_CODES.get(code) if value is None else _OF_VALUES.get(value)
    return status or HTTPStatus.INTERNAL_SERVER_ERROR
