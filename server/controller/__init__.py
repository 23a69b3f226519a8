"""Pravega's controller for the mock: scopes, streams, transactions and their kin over gRPC, on one state in memory.

The order of the layers: `policies` and `epochs` (values and pure functions), `state` and `operations` (what is
remembered and how it changes), the parts (`streams`, `transactions`, …: decide, have the segment store act, record),
`controller` (the parts together), `service` and `answers` (messages and errors), `server` (sockets and time). What it
needs of a segment store is `SegmentAdmin`.
"""

from segstore.server.controller.api.auth import Accounts, Authority, Permission
from segstore.server.controller.api.server import ControllerServer, TlsFiles
from segstore.server.controller.config import AutoScaling, ControllerConfig
from segstore.server.controller.controller import Controller
from segstore.server.controller.segment_admin import Endpoint, Load, SegmentAdmin

__all__ = [
    "Accounts",
    "Authority",
    "AutoScaling",
    "Controller",
    "ControllerConfig",
    "ControllerServer",
    "Endpoint",
    "Load",
    "Permission",
    "SegmentAdmin",
    "TlsFiles",
]
