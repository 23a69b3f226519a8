"""Routes of the control API that arrange data and verify a server's requests, a module per resource."""

from segstore.server.control_api.steering.arranging import controller_of, position_text
from segstore.server.control_api.steering.models import (
    Group,
    Scope,
    Stream,
    StreamInfo,
    Table,
    Transaction,
    TransactionState,
    WrittenEvent,
)

__all__ = [
    "Group",
    "Scope",
    "Stream",
    "StreamInfo",
    "Table",
    "Transaction",
    "TransactionState",
    "WrittenEvent",
    "controller_of",
    "position_text",
]
