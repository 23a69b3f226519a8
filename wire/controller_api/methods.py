"""Facts about the methods of the controller's API that ``controller.proto`` does not declare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from google.protobuf.message import Message

SERVICE: Final = "io.pravega.controller.stream.api.grpc.v1.ControllerService"

OUTCOME_UNKNOWN: Final = ("segstore-outcome", "unknown")
"""In the trailing metadata of UNAVAILABLE: the call may have been applied. Without this entry, it was not applied."""

STATUSES: Final = (
    *("CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
"""gRPC's status codes but OK."""

ONCE: Final = frozenset(
    {
        # A repeat is refused: the name exists or is gone, the segments are sealed, the generation has changed.
        "createScope",
        "createStream",
        "createKeyValueTable",
        "scale",
        "updateReaderGroup",
        # A repeat may also affect what another client has since created under the name.
        "deleteScope",
        "deleteScopeRecursive",
        "deleteStream",
        "deleteReaderGroup",
        "deleteKeyValueTable",
    }
)
"""Methods that are not repeated if the first call may have been applied.

All others only read or are idempotent: sealing, truncating and configuring a stream, committing and aborting a
transaction, extending its lease, creating a reader group, moving a subscriber, recording and removing a writer's time.
createTransaction can be repeated too: a transaction whose id was lost ends with its lease.
"""


class Method(NamedTuple):
    """One unary method: its full path, its message classes, and whether it can safely be repeated if the first call may
    have been applied.
    """

    path: str
    request: type[Message]
    response: type[Message]
    repeatable: bool
