"""Calls of the API over a real socket, and what they are made with."""

import base64
from typing import Any

import grpc

from segstore.wire.controller_api import METHODS
from segstore.wire.controller_api import messages as m

__all__ = ["LEASE_MS", "NO_ID", "NO_STREAM", "Client", "S", "basic", "group", "stream_config"]

S = m.StreamInfo(scope="a", stream="s")
NO_STREAM = m.StreamInfo(scope="a", stream="no")
LEASE_MS = 90_000
NO_ID = "00000000-0000-0000-0000-000000000000"


class Client:
    """Calls methods by name."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    async def __call__(self, name: str, request: Any = None, credentials: str | None = None) -> Any:
        method = METHODS[name]
        call = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        metadata = (("authorization", credentials),) if credentials is not None else None
        return await call(method.request() if request is None else request, metadata=metadata, timeout=60)

    async def status(self, name: str, request: Any, credentials: str | None = None) -> str:
        """The name of the enum value of an answer, or of the status code of a refusal."""
        try:
            response = await self(name, request, credentials)
        except grpc.aio.AioRpcError as error:
            return error.code().name if error.details() else "a refusal without a sentence"
        for field in ("status", "result", "state"):
            described = response.DESCRIPTOR.fields_by_name.get(field)
            if described is not None:
                return str(described.enum_type.values_by_number[getattr(response, field)].name)
        return "OK"


def basic(user: str) -> str:
    """The credentials of a user whose password is pw."""
    return "Basic " + base64.b64encode(f"{user}:pw".encode()).decode()


def stream_config(name: str, segments: int = 1, **more: Any) -> m.StreamConfig:
    return m.StreamConfig(
        streamInfo=m.StreamInfo(scope="a", stream=name), scalingPolicy=m.ScalingPolicy(minNumSegments=segments), **more
    )


def group(name: str, scope: str = "a", **more: Any) -> m.ReaderGroupConfiguration:
    """What makes a reader group of stream a/s, but for what `more` says."""
    given: dict[str, Any] = {
        "readerGroupId": NO_ID,
        "maxOutstandingCheckpointRequest": 1,
        "startingStreamCuts": [m.StreamCut(streamInfo=S)],
    }
    return m.ReaderGroupConfiguration(scope=scope, readerGroupName=name, **(given | more))
