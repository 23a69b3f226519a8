"""Container ownership: sessions with a coordination service, and handling of their expiry (PIP-57)."""

from segstore.server.coordination.configuration import Configuration, Configured, NoConfiguration, configured
from segstore.server.coordination.in_process import InProcessCoordinator, InProcessSession
from segstore.server.coordination.ownership import CONTAINERS, ContainerOwnership, Hosted, container_path
from segstore.server.coordination.placement import LoadReport
from segstore.server.coordination.policy import (
    OwnershipSettings,
    PolicyName,
    Reconnect,
    SessionExpiredPolicy,
    Shutdown,
    backoff_s,
)
from segstore.server.coordination.reports import SHOWN_BYTES, store_path
from segstore.server.coordination.storage import ContainerRefused, ContainerStorage, Opened, SharedContainers
from segstore.server.coordination.types import (
    BadVersion,
    CoordinationError,
    CoordinationSession,
    Coordinator,
    Disconnected,
    Node,
    NodeExists,
    NoNode,
    SessionExpired,
    SessionState,
)

__all__ = [
    "CONTAINERS",
    "SHOWN_BYTES",
    "BadVersion",
    "Configuration",
    "Configured",
    "ContainerOwnership",
    "ContainerRefused",
    "ContainerStorage",
    "CoordinationError",
    "CoordinationSession",
    "Coordinator",
    "Disconnected",
    "Hosted",
    "InProcessCoordinator",
    "InProcessSession",
    "LoadReport",
    "NoConfiguration",
    "NoNode",
    "Node",
    "NodeExists",
    "Opened",
    "OwnershipSettings",
    "PolicyName",
    "Reconnect",
    "SessionExpired",
    "SessionExpiredPolicy",
    "SessionState",
    "SharedContainers",
    "Shutdown",
    "backoff_s",
    "configured",
    "container_path",
    "store_path",
]
