"""Reader groups and their readers."""

from segstore.client.groups.group import GroupStart, ReaderGroup
from segstore.client.groups.reader import GroupEvent, GroupReader, Position

__all__ = ["GroupEvent", "GroupReader", "GroupStart", "Position", "ReaderGroup"]
