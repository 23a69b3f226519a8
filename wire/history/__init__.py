"""Judges histories: what clients and stores did, record by record, against the rules of `RULES`.

Sans I/O. Rules are folds over the facts of one key; see `segstore.wire.history.judge`.
"""

from segstore.wire.history.facts import Acked, Broken, Fact, Finding, Key, Open, Place, Sent
from segstore.wire.history.judge import (
    FOLDS,
    UNREAD,
    FirstFold,
    Judge,
    Verdicts,
    first_fold,
    first_key,
    judge,
    placed,
    timed,
)
from segstore.wire.history.lines import OPERATIONS, HistoryError, read_history
from segstore.wire.history.rules import RULES

__all__ = [
    "FOLDS",
    "OPERATIONS",
    "RULES",
    "UNREAD",
    "Acked",
    "Broken",
    "Fact",
    "Finding",
    "FirstFold",
    "HistoryError",
    "Judge",
    "Key",
    "Open",
    "Place",
    "Sent",
    "Verdicts",
    "first_fold",
    "first_key",
    "judge",
    "placed",
    "read_history",
    "timed",
]
