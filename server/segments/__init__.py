"""What the controller asks of segment stores: in this process, remote, recorded."""

from segstore.server.segments.local import (
    LocalSegments,
)
from segstore.server.segments.recorded import (
    RecordedSegments,
)
from segstore.server.segments.remote import (
    RemoteSegments,
)

__all__ = [
    "LocalSegments",
    "RecordedSegments",
    "RemoteSegments",
]
