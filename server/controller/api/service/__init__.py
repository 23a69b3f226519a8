"""The controller's gRPC methods, which take a message, call the controller, and return a message.

The parts implement the methods of `controller.proto` under their names in snake case. A method first checks the
caller's permission, then calls the controller; `answers` maps the errors that it raises. Permissions and resources are
as in Pravega's `ControllerServiceImpl`. A method that returns None is answered with SUCCESS.
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
    """Returns the served methods by their names on the wire. `servers` returns the addresses of all controllers."""
    parts = (
        ClusterService(controller, servers),
        ScopeService(controller),
        StreamService(controller),
        SegmentService(controller),
        TransactionService(controller),
        ReaderGroupService(controller),
        TableService(controller),
    )
    snake = {name: re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in METHODS}
    return {name: getattr(part, snake[name]) for name in METHODS for part in parts if hasattr(part, snake[name])}
