"""The controller's state: streams and their epochs, the operations that change it, its journal and its memory."""

from segstore.server.controller.state import history, operations
from segstore.server.controller.state.core import Core, Due, Timer
from segstore.server.controller.state.history import Comparison, Epoch, KeyRange, StreamSegment
from segstore.server.controller.state.operations import image, recovered
from segstore.server.controller.state.state import (
    MARK_PREFIX,
    READER_GROUP_PREFIX,
    SYSTEM_SCOPE,
    TABLE_SUFFIX,
    RetentionCut,
    Scale,
    Scope,
    State,
    Stream,
    Table,
    Transaction,
    TransactionStatus,
    Watermark,
    WriterMark,
    require,
    transaction_epoch,
)

__all__ = [
    "MARK_PREFIX",
    "READER_GROUP_PREFIX",
    "SYSTEM_SCOPE",
    "TABLE_SUFFIX",
    "Comparison",
    "Core",
    "Due",
    "Epoch",
    "KeyRange",
    "RetentionCut",
    "Scale",
    "Scope",
    "State",
    "Stream",
    "StreamSegment",
    "Table",
    "Timer",
    "Transaction",
    "TransactionStatus",
    "Watermark",
    "WriterMark",
    "history",
    "image",
    "operations",
    "recovered",
    "require",
    "transaction_epoch",
]
