"""Facts of requests about registers: keys of tables, and attributes of segments."""

from __future__ import annotations

from typing import Final

from segstore.wire.history.segment_facts import Maker, Unanswered
from segstore.wire.schema import Command

OF_REGISTERS: Final[dict[type[Command], Maker]] = {}
UNANSWERED_REGISTERS: Final[dict[type[Command], Unanswered]] = {}
