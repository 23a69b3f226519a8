"""The controller's gRPC server: methods, status codes, authentication and permissions (the last two also for REST)."""

from segstore.server.controller.api.access import Permission
from segstore.server.controller.api.answers import answer, with_status
from segstore.server.controller.api.auth import Accounts, Authority
from segstore.server.controller.api.caller import SCOPES, Caller, scope_resource, stream_resource, user_resource
from segstore.server.controller.api.calls import Calls, sent_metadata
from segstore.server.controller.api.forwarding import (
    MOST_MESSAGE,
    RAW,
    ForwardingServer,
    NotForwarded,
    UpstreamController,
    channel_to,
    unreached,
)
from segstore.server.controller.api.in_flight import CallsInFlight, Handler, trailing_of
from segstore.server.controller.api.server import ControllerServer, bounds

__all__ = [
    "MOST_MESSAGE",
    "RAW",
    "SCOPES",
    "Accounts",
    "Authority",
    "Caller",
    "Calls",
    "CallsInFlight",
    "ControllerServer",
    "ForwardingServer",
    "Handler",
    "NotForwarded",
    "Permission",
    "UpstreamController",
    "answer",
    "bounds",
    "channel_to",
    "scope_resource",
    "sent_metadata",
    "stream_resource",
    "trailing_of",
    "unreached",
    "user_resource",
    "with_status",
]
