"""The controller's gRPC server: methods, status codes, authentication and permissions (the last two also for REST)."""

from segstore.server.controller.api.access import Permission
from segstore.server.controller.api.answers import answer, with_status
from segstore.server.controller.api.auth import Accounts, Authority
from segstore.server.controller.api.calls import Calls, sent_metadata
from segstore.server.controller.api.executing import Executor
from segstore.server.controller.api.forwarding import ForwardingServer, NotForwarded
from segstore.server.controller.api.in_flight import CallsInFlight, Handler, trailing_of
from segstore.server.controller.api.resources import SCOPES, scope_resource, stream_resource, user_resource
from segstore.server.controller.api.server import ControllerServer, bounds, listen, new_server
from segstore.server.controller.api.service import Caller
from segstore.server.controller.api.upstream import MOST_MESSAGE, RAW, UpstreamController, channel_to, unreached

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
    "Executor",
    "ForwardingServer",
    "Handler",
    "NotForwarded",
    "Permission",
    "UpstreamController",
    "answer",
    "bounds",
    "channel_to",
    "listen",
    "new_server",
    "scope_resource",
    "sent_metadata",
    "stream_resource",
    "trailing_of",
    "unreached",
    "user_resource",
    "with_status",
]
