"""Client connections of a segment store: listening, request execution, replies, limits and deadlines."""

from segstore.server.connection.accepting import Listening, stop_accepting
from segstore.server.connection.connection import Connection
from segstore.server.connection.hub import ConnectionHub
from segstore.server.connection.recording import Recorder
from segstore.server.connection.service import StoreService
from segstore.server.connection.session import Ending, Session
from segstore.server.connection.writer_counts import WriterCount, WriterCounts

__all__ = [
    "Connection",
    "ConnectionHub",
    "Ending",
    "Listening",
    "Recorder",
    "Session",
    "StoreService",
    "WriterCount",
    "WriterCounts",
    "stop_accepting",
]
