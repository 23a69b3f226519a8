"""Container ownership: sessions with a coordination service, and handling of their expiry (PIP-57)."""

from segstore.server.coordination.configuration import Configuration, Configured, configured
from segstore.server.coordination.errors import BadVersion, CoordinationError, Disconnected, NodeExists, NoNode
from segstore.server.coordination.in_process import InProcessCoordinator, InProcessSession
from segstore.server.coordination.ownership import CONTAINERS, ContainerOwnership, container_path
from segstore.server.coordination.placement import LoadReport
from segstore.server.coordination.policy import OwnershipSettings, follow
from segstore.server.coordination.storage import ContainerRefused, ContainerStorage, Opened, SharedContainers
from segstore.server.coordination.types import CoordinationSession, Coordinator, Node, SessionState
from segstore.server.coordination.zookeeper import ZooKeeperCoordinator

__all__ = [
    "CONTAINERS",
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
    "InProcessCoordinator",
    "InProcessSession",
    "LoadReport",
    "NoNode",
    "Node",
    "NodeExists",
    "Opened",
    "OwnershipSettings",
    "SessionState",
    "SharedContainers",
    "ZooKeeperCoordinator",
    "configured",
    "container_path",
    "follow",
]
