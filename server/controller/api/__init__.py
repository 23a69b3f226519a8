"""The controller's gRPC server: methods, status codes, authentication and permissions."""

from segstore.server.controller.api.access import Permission
from segstore.server.controller.api.auth import Accounts, Authority
from segstore.server.controller.api.forwarding import ForwardingServer
from segstore.server.controller.api.in_flight import InFlight, trailing_of
from segstore.server.controller.api.server import ControllerServer, listen, new_server

__all__ = [
    "Accounts",
    "Authority",
    "ControllerServer",
    "ForwardingServer",
    "InFlight",
    "Permission",
    "listen",
    "new_server",
    "trailing_of",
]
