"""The controller's gRPC methods: each takes a message, calls the controller, and returns a message.

The parts have one method for each in `controller.proto`, under its name in snake case. A method first checks the
caller's permission, then calls the controller; errors are raised and answered by `answers`. Permissions and resources
are those of Pravega's `ControllerServiceImpl`. A method that returns None is answered with SUCCESS, one that no part
has with UNIMPLEMENTED.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from segstore.server.controller.api.service.caller import Caller
from segstore.server.controller.api.service.cluster import ClusterService
from segstore.server.controller.api.service.reader_groups import ReaderGroupService
from segstore.server.controller.api.service.scopes import ScopeService
from segstore.server.controller.api.service.segments import SegmentService
from segstore.server.controller.api.service.streams import StreamService
from segstore.server.controller.api.service.tables import TableService
from segstore.server.controller.api.service.transactions import TransactionService
from segstore.server.controller.controller import Controller
from segstore.wire.controller_api import METHODS
from segstore.wire.endpoint import Endpoint

__all__ = ["Caller", "Served", "serve"]

Served = Callable[[Any, Caller], Awaitable[Any]]
"""A method: (request, caller) → response. Messages are Any, because each method has its own two classes."""


def serve(controller: Controller, servers: Callable[[], Sequence[Endpoint]]) -> Mapping[str, Served]:
    """Return the served methods by their names on the wire. `servers` returns the addresses of all controllers."""
    parts = (
        ClusterService(controller, servers),
        ScopeService(controller),
        StreamService(controller),
        SegmentService(controller),
        TransactionService(controller),
        ReaderGroupService(controller),
        TableService(controller),
    )
    served: dict[str, Served] = {}
    for name in METHODS:
        snake = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
        for part in parts:
            if (method := getattr(part, snake, None)) is not None:
                served[name] = method
    return served
