"""Who owns which container: sessions with a coordination service, and what follows when one expires (PIP-57)."""

from segstore.server.coordination.configuration import Configuration, NoConfiguration
from segstore.server.coordination.in_process import InProcessCoordinator, InProcessSession
from segstore.server.coordination.ownership import ContainerOwnership, Hosted
from segstore.server.coordination.placement import LoadReport
from segstore.server.coordination.policy import OwnershipSettings, Reconnect, SessionExpiredPolicy, Shutdown
from segstore.server.coordination.storage import ContainerStorage, SharedContainers
from segstore.server.coordination.types import CoordinationSession, Coordinator, Node, SessionState

__all__ = [
    "Configuration",
    "ContainerOwnership",
    "ContainerStorage",
    "CoordinationSession",
    "Coordinator",
    "Hosted",
    "InProcessCoordinator",
    "InProcessSession",
    "LoadReport",
    "NoConfiguration",
    "Node",
    "OwnershipSettings",
    "Reconnect",
    "SessionExpiredPolicy",
    "SessionState",
    "SharedContainers",
    "Shutdown",
]
