"""The controller: Pravega's gRPC API for scopes, streams, transactions, reader groups and key-value tables.

The order of the layers: `policies` and `epochs` (values and pure functions), `state` and `operations` (what is
remembered and how it changes), the parts (`streams`, `transactions`, …: decide, have the segment store act, record),
`controller` (the parts together), `service` and `answers` (messages and errors), `server` (sockets and time). What it
needs of a segment store is `SegmentAdmin`.
"""

from segstore.server.controller.api import (
    Accounts,
    Authority,
    ControllerServer,
    Permission,
    TlsFiles,
)
from segstore.server.controller.config import (
    AutoScaling,
    ControllerConfig,
    read_config,
)
from segstore.server.controller.controller import (
    Controller,
    wall_clock_ms,
)
from segstore.server.controller.errors import (
    ControllerError,
    NobodyOwns,
    SegmentStoreFailed,
)
from segstore.server.controller.policies import (
    ScalingPolicy,
    StreamConfig,
)
from segstore.server.controller.segment_admin import (
    CONTROLLER_WRITER,
    Endpoint,
    Load,
    SegmentAdmin,
)

__all__ = [
    "CONTROLLER_WRITER",
    "Accounts",
    "Authority",
    "AutoScaling",
    "Controller",
    "ControllerConfig",
    "ControllerError",
    "ControllerServer",
    "Endpoint",
    "Load",
    "NobodyOwns",
    "Permission",
    "ScalingPolicy",
    "SegmentAdmin",
    "SegmentStoreFailed",
    "StreamConfig",
    "TlsFiles",
    "read_config",
    "wall_clock_ms",
]
