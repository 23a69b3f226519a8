"""The durable store: journals, snapshots, chunk files, fences, and their verification."""

from segstore.server.durable.committer import Committers, Gate, Gated
from segstore.server.durable.data_directory import (
    CLUSTER_FILE,
    DataDirectory,
    DataError,
    DirectoryDamaged,
    DirectoryForeign,
    DirectoryInUse,
    DirectoryUnusable,
    UnknownFormat,
    check_containers,
    check_entries,
    read_signed,
    signed,
)
from segstore.server.durable.durable import MEMORY_BYTES, MIN_MEMORY_BYTES, Durability
from segstore.server.durable.fence import ContainerEpoch, Fenced, FencedDirectory, current, epochs_of, lost
from segstore.server.durable.files import Files
from segstore.server.durable.journal import JournalFailed
from segstore.server.durable.recovery import verify
from segstore.server.durable.snapshot import Image, copy_of, restore

__all__ = [
    "CLUSTER_FILE",
    "MEMORY_BYTES",
    "MIN_MEMORY_BYTES",
    "Committers",
    "ContainerEpoch",
    "DataDirectory",
    "DataError",
    "DirectoryDamaged",
    "DirectoryForeign",
    "DirectoryInUse",
    "DirectoryUnusable",
    "Durability",
    "Fenced",
    "FencedDirectory",
    "Files",
    "Gate",
    "Gated",
    "Image",
    "JournalFailed",
    "UnknownFormat",
    "check_containers",
    "check_entries",
    "copy_of",
    "current",
    "epochs_of",
    "lost",
    "read_signed",
    "restore",
    "signed",
    "verify",
]
