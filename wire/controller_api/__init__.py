"""The controller's API on the wire: its messages and its methods, as ``controller.proto`` declares them.

``METHODS`` is the service: what each method takes and answers, by its name on the wire. Servers and clients are made
from it with grpc's generic handlers and channels, so there is no generated code to keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from google.protobuf.message import Message

from segstore.wire.controller_api import messages

__all__ = ["METHODS", "SERVICE", "Method"]

SERVICE: Final = "io.pravega.controller.stream.api.grpc.v1.ControllerService"


class Method(NamedTuple):
    """One unary method: its full path and its two message classes."""

    path: str
    request: type[Message]
    response: type[Message]


_service = messages.ServerRequest.DESCRIPTOR.file.services_by_name[SERVICE.rpartition(".")[2]]

METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        method.name: Method(
            f"/{SERVICE}/{method.name}",
            getattr(messages, method.input_type.name),
            getattr(messages, method.output_type.name),
        )
        for method in _service.methods
    }
)
"""Every method of the service, by its name."""
