"""The controller: Pravega's gRPC API for scopes, streams, transactions, reader groups and key-value tables.

The layers, from the bottom: `policies` and `history` (values and pure functions), `state` and `operations` (the state
and its changes), the parts (`streams`, `transactions`, …: decide, call the segment store, record), `controller`
(combines the parts), `service` and `answers` (messages and errors), `server` (sockets and time). `SegmentAdmin` is the
interface to the segment store.
"""

from segstore.server.controller.api import Accounts, Authority, ControllerServer
from segstore.server.controller.config import ControllerConfig, read_config
from segstore.server.controller.controller import Controller
from segstore.server.controller.errors import (
    ControllerError,
    InvalidArgument,
    InvalidName,
    InvalidStreamCut,
    Malformed,
    NobodyOwns,
    NotFound,
    ScaleRefused,
    SegmentStoreFailed,
    TooMany,
)
from segstore.server.controller.policies import ScalingPolicy, StreamConfig, TableConfig
from segstore.server.controller.segment_admin import REPLIES, SegmentAdmin
from segstore.server.controller.streams import SharedState

__all__ = [
    "REPLIES",
    "Accounts",
    "Authority",
    "Controller",
    "ControllerConfig",
    "ControllerError",
    "ControllerServer",
    "InvalidArgument",
    "InvalidName",
    "InvalidStreamCut",
    "Malformed",
    "NobodyOwns",
    "NotFound",
    "ScaleRefused",
    "ScalingPolicy",
    "SegmentAdmin",
    "SegmentStoreFailed",
    "SharedState",
    "StreamConfig",
    "TableConfig",
    "TooMany",
    "read_config",
]
