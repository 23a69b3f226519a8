"""Routes that show a cluster's contents: scopes, streams and their segments, transactions, reader groups, tables.

They change nothing. Every answer is bounded: lists have pages, and contents are truncated.
"""

from fastapi import APIRouter

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
from segstore.server.control_api.controlled import Controlled

__all__ = [
    "GroupDetails",
    "GroupSummary",
    "SegmentOfStream",
    "StreamDetails",
    "StreamSummary",
    "TableDetails",
    "TableSummary",
    "TransactionDetails",
    "router",
    "routers",
]


def router(controlled: Controlled) -> APIRouter:
    """Returns the routes of all modules of this package."""
    made = APIRouter()
    for each in routers(controlled):
        made.include_router(each)
    return made


def routers(controlled: Controlled) -> list[APIRouter]:
    """Returns the routes of each module."""
    return [each.router(controlled) for each in (streams, tails, transactions, groups, tables)]
