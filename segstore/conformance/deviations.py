"""Deliberate differences from the reference, by name; docs/project/deviations.md says what and why for each.

A difference is excused only if a rule below names it: by type code, or by dialogue and step.
"""

from __future__ import annotations

import struct
from typing import Final

LEGACY_TABLE_COMMANDS: Final = "legacy-table-commands"

DEVIATIONS: Final[dict[str, str]] = {
    LEGACY_TABLE_COMMANDS: "SEAL_TABLE_SEGMENT (72) and MERGE_TABLE_SEGMENTS (73) decode, and are answered",
    "tail-reads-end": "a read that waits at the tail is answered empty after --long-poll-s",
    "exact-values": "times, entry counts and the order of a delta are exact and at once",
    "first-error-ends": "the decoder of a connection stops for good at its first error",
    "shared-writer-id": "two writers with one id on different segments both keep their pending appends",
    "append-beyond-a-frame": "an append that would make a frame too long starts a new block",
    "bounded-writers": "the state of a connection's writers takes bounded memory",
    "bounded-connections": "a connection has deadlines, and bounds on what waits for it",
    "bounded-memory": "a request that needs more memory than --max-memory closes its connection",
    "merged-indexes": "the index of a merged segment is deleted a minute after the merge",
    "merges-across-containers": "segments merge across the containers of one store",
    "older-versions": "what older wire versions did is only in their frames, and bytes they did not know do not close",
    "nothing-after-the-end": "what follows a request that ends its connection in the same read is not executed",
    "reader-groups-again": "the table of a reader group can be created again under its name",
    "watermark-streams": "the stream of a stream's watermarks is made when it is needed, and not listed",
    "watermark-offsets": "a segment to which a writer has written nothing has offset 0 in a watermark",
    "no-system-scope": "the controller has no scope _system of its own",
    "completed-transactions": "the last completed transactions of a stream are listed in the order of their opening",
    "bounded-calls": "streams, tables, stream cuts and requests to the controller have bounds",
    "tag-lists": "the streams of a tag are listed by name within each part of the index",
    "lease-slack": "a transaction is aborted some time after its lease has ended",
    "calls-that-end": "calls that never end there, or leave something unusable, are executed or refused",
    "cuts-with-gaps": "a stream cut that overlaps or leaves keys out is never valid",
    "page-tokens": "any text is a continuation token",
    "password-files": "plain passwords are accepted, and lines after an empty one are read",
    "access-patterns": "patterns of access-control entries that need backtracking are refused",
    "own-words": "texts of errors and of stack traces are this project's own",
}
"""Id → what is different, in one line. Ids are the headings of docs/project/deviations.md."""

STEPS: Final[dict[tuple[str, int], str]] = {}
"""(dialogue, step) → id of the deviation that its replies show."""

_LEGACY_CODES: Final = frozenset({72, 73})


def of_frame(frame: bytes) -> str | None:
    """Returns the deviation by which a frame decodes that the reference refuses."""
    if len(frame) >= 8 and struct.unpack_from(">i", frame)[0] in _LEGACY_CODES:
        return LEGACY_TABLE_COMMANDS
    return None


def of_step(dialogue: str, step: int, sent: bytes) -> str | None:
    """Returns the deviation that excuses a step's replies; sent: the frames of the step."""
    if (dialogue, step) in STEPS:
        return STEPS[dialogue, step]
    at = 0
    while len(sent) - at >= 8:
        if of_frame(sent[at:]) is not None:
            return LEGACY_TABLE_COMMANDS
        at += 8 + max(struct.unpack_from(">i", sent, at + 4)[0], 0)
    return None
