"""The controller's gRPC API: messages and methods, as declared in ``controller.proto``.

``METHODS`` describes the service: the request and response type of each method, by its name on the wire. Servers and
clients are built from it with grpc's generic handlers and channels, so there is no generated code to maintain.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from google.protobuf.message import Message

from segstore.wire.controller_api import messages

__all__ = ["METHODS", "OUTCOME_UNKNOWN", "SERVICE", "Method"]

SERVICE: Final = "io.pravega.controller.stream.api.grpc.v1.ControllerService"

OUTCOME_UNKNOWN: Final = ("segstore-outcome", "unknown")
"""In the trailing metadata of UNAVAILABLE: the call may have been applied. Without this entry, it was not applied."""

_ONCE: Final = frozenset(
    {
        # A repeat is refused: the name exists or is gone, the segments are sealed, the generation has changed.
        "createScope",
        "createStream",
        "createKeyValueTable",
        "scale",
        "updateReaderGroup",
        # A repeat may also affect what another client has since created under the name.
        "deleteScope",
        "deleteScopeRecursive",
        "deleteStream",
        "deleteReaderGroup",
        "deleteKeyValueTable",
    }
)
"""Methods that are not repeated if the first call may have been applied.

All others only read or are idempotent: sealing, truncating and configuring a stream, committing and aborting a
transaction, extending its lease, creating a reader group, moving a subscriber, recording and removing a writer's time.
createTransaction can be repeated too: a transaction whose id was lost ends with its lease.
"""


class Method(NamedTuple):
    """One unary method: its full path, its message classes, and whether it can safely be repeated if the first call may
    have been applied.
    """

    path: str
    request: type[Message]
    response: type[Message]
    repeatable: bool


_service = messages.ServerRequest.DESCRIPTOR.file.services_by_name[SERVICE.rpartition(".")[2]]

METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        method.name: Method(
            f"/{SERVICE}/{method.name}",
            getattr(messages, method.input_type.name),
            getattr(messages, method.output_type.name),
            method.name not in _ONCE,
        )
        for method in _service.methods
    }
)
"""All methods of the service, by name."""
