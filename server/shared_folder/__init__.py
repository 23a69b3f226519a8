"""Coordination and storage in a folder shared by several processes."""

from segstore.server.shared_folder.identity import confirm, identify, verify_cluster
from segstore.server.shared_folder.presence import CONTROLLER, Owners, Present
from segstore.server.shared_folder.storage import FolderStorage, SharedFolder, result_of

__all__ = [
    "CONTROLLER",
    "FolderStorage",
    "Owners",
    "Present",
    "SharedFolder",
    "confirm",
    "identify",
    "result_of",
    "verify_cluster",
]
