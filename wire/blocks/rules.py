"""The rules for sequences of append commands, and the error that names the broken rule.

Follows the checks of `AppendDecoder` and `CommandEncoder.validateAppend`; both sides of a connection use them.
"""

from enum import StrEnum
from typing import Any
from uuid import UUID

from segstore.wire.errors import OutOfOrder
from segstore.wire.schema import Command


class AppendRule(StrEnum):
    """A rule that a sequence of append commands must follow."""

    WRITER_UNKNOWN = "a writer is set up before it appends"
    BLOCK_OPEN = "an append block is followed by its end before any other append command"
    WRITER_MISMATCH = "the end of a block names the block's writer"
    WHOLE_SIZE = "the whole events lie within the block"
    NO_EVENTS = "an append holds at least one event"
    NUMBER_BACKWARDS = "a writer's event numbers do not go backwards"
    BLOCK_TAIL = "a block ends with padding or a partial event"
    PADDED_DATA = "the end of a padded block has no data"
    TOO_MANY_WRITERS = "the writers of a connection fit into its memory"


class AppendViolation(OutOfOrder):
    """A sequence of appends breaks `rule`; `writer_id` and `segment` identify the writer, if known.

    writer_id: by default from `command`. facts: as for `WireError`.
    """

    def __init__(
        self,
        rule: AppendRule,
        detail: str,
        writer_id: UUID | None = None,
        segment: str | None = None,
        *,
        command: Command | None = None,
        **facts: Any,
    ) -> None:
        if writer_id is None:
            writer_id = getattr(command, "writer_id", None)
        whose = "" if writer_id is None else f", writer {writer_id}"
        where = "" if segment is None else f" of {segment!r}"
        super().__init__(
            f"{rule}: {detail}{whose}{where}",
            code=None if command is None else command.code,
            type_name=None if command is None else command.type_name,
            **facts,
        )
        self.rule = rule
        self.writer_id = writer_id
        self.segment = segment

    def facts(self) -> dict[str, Any]:
        known = {"rule": self.rule.name, "writer_id": self.writer_id, "segment": self.segment}
        return super().facts() | {name: value for name, value in known.items() if value is not None}
