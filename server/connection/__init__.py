"""Client connections of a segment store: request execution, replies, limits and deadlines."""

from segstore.server.connection.connection import Connection
from segstore.server.connection.hub import ConnectionHub
from segstore.server.connection.service import StoreService
from segstore.server.connection.session import Session
from segstore.server.connection.states import SessionEnding
from segstore.server.connection.writers import WriterCount, WriterCounts

__all__ = ["Connection", "ConnectionHub", "Session", "SessionEnding", "StoreService", "WriterCount", "WriterCounts"]
