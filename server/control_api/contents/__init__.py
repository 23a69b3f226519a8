"""Routes that show a cluster's contents: scopes, streams and their segments, transactions, reader groups, tables.

They change nothing. Every answer is bounded: lists have pages, and contents are truncated.
"""

from typing import Final

from segstore.server.control_api.contents import groups, streams, tables, tails, transactions
from segstore.server.control_api.contents.models import (
    GroupDetails,
    GroupSummary,
    SegmentOfStream,
    StreamDetails,
    StreamSummary,
    TableDetails,
    TableSummary,
    TransactionDetails,
)

__all__ = [
    "ROUTERS",
    "GroupDetails",
    "GroupSummary",
    "SegmentOfStream",
    "StreamDetails",
    "StreamSummary",
    "TableDetails",
    "TableSummary",
    "TransactionDetails",
]


ROUTERS: Final = tuple(module.router for module in (streams, tails, transactions, groups, tables))
