"""Client connections of a segment store: listening, request execution, replies, limits and deadlines."""

from segstore.server.connection.accepting import Listening, stop_accepting
from segstore.server.connection.connection import Connection
from segstore.server.connection.hub import ConnectionHub
from segstore.server.connection.recording import Recorder
from segstore.server.connection.service import Clock, StoreService, TimerHandle
from segstore.server.connection.session import Ending, Session
from segstore.server.connection.writer_counts import WriterCount, WriterCounts

__all__ = [
    "Clock",
    "Connection",
    "ConnectionHub",
    "Ending",
    "Listening",
    "Recorder",
    "Session",
    "StoreService",
    "TimerHandle",
    "WriterCount",
    "WriterCounts",
    "stop_accepting",
]
