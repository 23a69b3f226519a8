"""The controller's work on streams, transactions, reader groups, tables and scopes."""

from segstore.server.controller.streams.reader_groups import ReaderGroups, SharedState
from segstore.server.controller.streams.scaling import Scaling
from segstore.server.controller.streams.scopes import Scopes, Tables
from segstore.server.controller.streams.streams import Streams
from segstore.server.controller.streams.transactions import Transactions
from segstore.server.controller.streams.upkeep import Upkeep
from segstore.server.controller.streams.watermarks import Watermarks, Writers

__all__ = [
    "ReaderGroups",
    "Scaling",
    "Scopes",
    "SharedState",
    "Streams",
    "Tables",
    "Transactions",
    "Upkeep",
    "Watermarks",
    "Writers",
]
