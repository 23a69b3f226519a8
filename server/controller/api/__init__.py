"""The controller's gRPC server: methods, status codes, authentication and permissions (the last two also for REST)."""

from segstore.server.controller.api.answers import answer, end_refused
from segstore.server.controller.api.auth import Accounts, Authority
from segstore.server.controller.api.caller import SCOPES, Caller, scope_resource, stream_resource, user_resource
from segstore.server.controller.api.calls import Behaviour, Calls, end_call, sent_metadata
from segstore.server.controller.api.forwarding import (
    MOST_MESSAGE,
    CallOutcome,
    ForwardingServer,
    NotForwarded,
    UpstreamController,
    unreached,
)
from segstore.server.controller.api.in_flight import CallsInFlight
from segstore.server.controller.api.server import ControllerServer, bounds

__all__ = [
    "MOST_MESSAGE",
    "SCOPES",
    "Accounts",
    "Authority",
    "Behaviour",
    "CallOutcome",
    "Caller",
    "Calls",
    "CallsInFlight",
    "ControllerServer",
    "ForwardingServer",
    "NotForwarded",
    "UpstreamController",
    "answer",
    "bounds",
    "end_call",
    "end_refused",
    "scope_resource",
    "sent_metadata",
    "stream_resource",
    "unreached",
    "user_resource",
]
