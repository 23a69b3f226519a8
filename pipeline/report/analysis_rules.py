"""Definitions for trace analysis: kinds of commands, ends of exchanges, columns of exchanges. No Spark."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from segstore.wire import commands as _commands  # noqa: F401 — completes the registry
from segstore.wire.schema import COMMANDS


class Status(StrEnum):
    """How an exchange ended. `repeated`, `covered` and `lost` apply only to appends, `orphan` only to replies."""

    ANSWERED = "answered"
    REFUSED = "refused"
    WAITING = "waiting"
    """No reply, and the connection was still open at the end of the trace."""
    UNANSWERED = "unanswered"
    """No reply, and the connection was closed; appends are `lost` instead, reads `given up` if the client closed it."""
    GIVEN_UP = "given up"
    """A read without a reply whose client closed the connection, such as a tail read that waited for data."""
    ORPHAN = "orphan"
    """A reply without a request."""
    REPEATED = "repeated"
    """An append of events that had already been acknowledged."""
    COVERED = "covered"
    """An append without an ack, but a later set-up or ack of its writer shows that it is stored."""
    LOST = "lost"
    """An append on a closed connection that nothing shows to be stored."""


APPENDS: Final = ("APPEND_BLOCK_END", "CONDITIONAL_APPEND", "CONDITIONAL_BLOCK_END")
"""The commands that complete an append and get a reply."""
APPENDING: Final = ("PADDING", "SETUP_APPEND", "APPEND_BLOCK", *APPENDS)
"""The commands of which only the last one can open the block of an append."""
REPLIES: Final = tuple(cls.type_name for cls in COMMANDS.values() if cls.is_reply)
KEYS: Final = {"HELLO": 1, "KEEP_ALIVE": 2}
"""Commands without a request id; each command has its own queue."""

EXCHANGE_COLUMNS: Final = (
    "file", "connection", "life", "block", "record", "ts_ns", "command", "segment", "flow", "request_id", "writer_id",
    "size", "status", "paired", "reply_block", "reply_record", "reply_ts_ns", "reply_command", "latency_ns",
    "first_event", "last_event", "append_bytes", "block_bytes", "whole_bytes", "premature",
)  # fmt: skip
"""One row per request, and one per reply without a request, which has no `command` but its own place and time.

life: counts the uses of a connection number, from 1. paired: whether a reply has the request's id. reply_*: the reply;
for an append, the ack that covers it. block_bytes: the size in the append block's header; null for an append without a
block. whole_bytes: size of the whole events in the block. premature: whether the block was padded.
"""
