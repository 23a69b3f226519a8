"""Routes that show what a cluster holds: scopes, streams and their segments, transactions, reader groups, tables.

They change nothing. Every answer is bounded: lists have pages, and contents are cut.
"""

from fastapi import APIRouter

from segstore.server.control_api.contents import groups, streams, tables, tails, transactions
from segstore.server.control_api.controlled import Controlled

__all__ = ["router"]


def router(controlled: Controlled) -> APIRouter:
    """Returns the routes of all modules of this package."""
    made = APIRouter()
    for each in (streams, tails, transactions, groups, tables):
        made.include_router(each.router(controlled))
    return made
