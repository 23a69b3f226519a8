"""Coordination and storage in a folder shared by several processes."""

from segstore.server.shared_folder.identity import confirm, identify
from segstore.server.shared_folder.presence import Candidate, Owners, Present
from segstore.server.shared_folder.storage import FolderStorage, SharedFolder, drop, result_of
from segstore.server.shared_folder.verify import verify_cluster

__all__ = [
    "Candidate",
    "FolderStorage",
    "Owners",
    "Present",
    "SharedFolder",
    "confirm",
    "drop",
    "identify",
    "result_of",
    "verify_cluster",
]
