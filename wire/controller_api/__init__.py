"""The controller's gRPC API: messages and methods, as declared in ``controller.proto``.

``METHODS`` describes the service: the request and response type of each method, by its name on the wire. Servers and
clients are built from it with grpc's generic handlers and channels, so there is no generated code to maintain. The
messages and ``METHODS`` load protobuf on first use; importing this package does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segstore.wire.controller_api.methods import OUTCOME_UNKNOWN, SERVICE, STATUSES, Method

if TYPE_CHECKING:
    from segstore.wire.controller_api.compiled import METHODS

__all__ = ["METHODS", "OUTCOME_UNKNOWN", "SERVICE", "STATUSES", "Method"]


def __getattr__(name: str) -> Any:
    if name != "METHODS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from segstore.wire.controller_api.compiled import METHODS

    return globals().setdefault(name, METHODS)
