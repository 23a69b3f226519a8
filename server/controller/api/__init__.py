"""The controller's gRPC server: methods, status codes, authentication and permissions."""

from segstore.server.controller.api.access import Permission
from segstore.server.controller.api.auth import Accounts, Authority
from segstore.server.controller.api.forwarding import ForwardingServer
from segstore.server.controller.api.in_flight import Handler, InFlight, sent_metadata, trailing_of
from segstore.server.controller.api.server import ControllerServer, listen, new_server

__all__ = [
    "Accounts",
    "Authority",
    "ControllerServer",
    "ForwardingServer",
    "Handler",
    "InFlight",
    "Permission",
    "listen",
    "new_server",
    "sent_metadata",
    "trailing_of",
]
