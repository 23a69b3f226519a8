"""What folds take and return: facts about one key, verdicts, and questions that stay open.

A fact has a key: its kind ("segment", "register", …) and a name. Its value is a record of this module, which traces and
users' own histories both become, or `lines.ReportedOperation`, an operation that histories alone have. Times are in ns
since 1970. All values can be pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from segstore.wire.names import parent_of
from segstore.wire.reader_groups import Update


class Key(NamedTuple):
    """The subject of a fact. kind: a key of `segstore.wire.history.FOLDS`. name: unique within the kind."""

    kind: str
    name: str


class Place(NamedTuple):
    """A record of a trace or a line of a history.

    file: its path. block: the byte of the file where its block, line or packet starts. record: its number there, from
    0; of a history, the line's number, from 1. connection: 0 for controller calls and histories.
    """

    file: str
    block: int
    record: int
    connection: int
    time_ns: int

    @property
    def order(self) -> tuple[int, str, int, int]:
        """Sorts the facts of a key: by time, then by place."""
        return self.time_ns, self.file, self.block, self.record


class Fact(NamedTuple):
    """Something that happened to a key. place: of the request, or of the reply if it is about the reply."""

    key: Key
    place: Place
    value: Any


class Broken(NamedTuple):
    """A rule that was broken.

    rule: its id. key: what broke it. places: the records that show it, the decisive record last. expected, actual: the
    values that should be equal, or None. text: one sentence with the facts.
    """

    rule: str
    key: Key
    places: tuple[Place, ...]
    text: str
    expected: Any = None
    actual: Any = None


class Open(NamedTuple):
    """Something that the records do not decide. why: a fixed phrase, by which such questions are counted."""

    rule: str
    key: Key
    why: str
    times: int = 1


Finding = Fact | Broken | Open
"""What a fold yields."""


# --- segments and their writers ---------------------------------------------------------------------------------------


class Sent(NamedTuple):
    """An append that a client sent: `events` events of a writer, the last with number `last`.

    data: the bytes as they are stored, headers included; None if they are not known. expected: the offset that a
    conditional append names.
    """

    segment: str
    writer: str
    last: int
    events: int
    data: bytes | None
    expected: int | None = None


class SetUp(NamedTuple):
    """A store's answer to a writer's set-up: the number of its last stored event. asked: the place of the request."""

    segment: str
    writer: str
    stored: int
    asked: Place


class Acked(NamedTuple):
    """An acknowledgement: events up to `number` are stored. length: the segment's, -1 if unknown. store: its address.

    asked: the place of the latest append that it covers; None if it covers no append that was recorded.
    """

    segment: str
    writer: str
    number: int
    length: int
    store: str
    asked: Place | None


class Refused(NamedTuple):
    """A failed append."""

    segment: str
    writer: str
    number: int


class Read(NamedTuple):
    """Bytes that were read. asked: the place of the request."""

    segment: str
    offset: int
    data: bytes
    is_end: bool
    asked: Place


class Changed(NamedTuple):
    """A change of a segment that was applied. what: created, sealed, deleted, truncated, merged, described; deleting
    when a deletion is requested, not deleted when it fails; truncating or merging if the request has no reply: it may
    have been applied.

    offset: of a truncation its offset, of a merge or a description the length afterwards, else -1. source: the merged
    segment. start: the first offset of a described segment. is_sealed: of a described segment. asked: the request.
    """

    segment: str
    what: str
    asked: Place
    offset: int = -1
    source: str = ""
    start: int = 0
    is_sealed: bool = False


# --- registers: keys of tables, attributes, lengths for conditional appends -------------------------------------------


class Operation(NamedTuple):
    """An operation on a register, or a change of the table or segment that has it.

    what: "put", "remove" or "read" of a table's key; "set" or "read" of an attribute, or of a register that has no
    versions; "created" or "deleted" of a table or segment, after which all its registers start again. value: written,
    or read (None: there is none, or it was not read). expected: the version that a put or remove names, or the value
    that a set names; None for no condition, `NOT_EXISTS` if there must be no key, "" if there must be no value.
    version: that the store assigned or returned; `NOT_EXISTS` if it said that there is no key. outcome: "ok", "refused"
    (the condition failed), "unknown" (it may or may not have been applied). invoked: the place of the request, the
    fact's place is the reply's. register: its name in its table or segment.
    """

    what: str
    outcome: str
    invoked: Place
    value: Any = None
    expected: Any = None
    version: Any = None
    register: str = ""


# --- streams, transactions, groups ------------------------------------------------------------------------------------


class Transaction(NamedTuple):
    """A step of a transaction. what: begun, committing, committed, aborting, aborted, or unknown.

    name: its id. asked: the request.
    """

    name: str
    what: str
    asked: Place
    writer: str = ""


class GroupUpdate(NamedTuple):
    """An update of the state of a reader group. group: the segment that has it. order, end: its offset, and the end.

    changes: what `segstore.wire.reader_groups.decode_updates` returns.
    """

    group: str
    order: int
    end: int
    changes: tuple[Update, ...]


class TableUpdate(NamedTuple):
    """An update of the state of a reader group in a table. order, end: the version of the map of readers that the
    update names, and the version that it gets.

    readers: reader → its segments with their offsets, None for a reader that is offline. released: segment → offset.
    """

    group: str
    order: int
    end: int
    readers: Mapping[str, Mapping[str, int] | None]
    released: Mapping[str, int]


class Passed(NamedTuple):
    """Bytes of a segment, from `start` to `end`, that a connection was given, or that are truncated.

    end: -1 if another store has the segment, which may give bytes without a record.
    """

    segment: str
    start: int
    end: int


class LoggedEvent(NamedTuple):
    """An event as users' histories have it: a fact of its segment, its routing key, or a reader group. what: "sent" or
    "read".

    event: its identity, a value that can be hashed; for a group, None if it may be one of several equal events. who:
    the writer or reader. offset: any number that grows with the place in the segment, None if not known. outcome: of a
    sent event "ok", "failed" (certainly not stored) or "unknown"; of a read event "moved" if the reader was moved to
    this place, else "ok". transaction: "" outside of a transaction. invoked: the place where the operation began.
    """

    what: str
    event: Any
    who: str
    offset: int | None
    outcome: str
    transaction: str
    invoked: Place
    segment: str = ""
    routing_key: str | None = None


class Waiting(NamedTuple):
    """A request that waits for its reply: the command and its place."""

    command: Any
    place: Place


def segment_key(segment: str) -> Key:
    """Returns the key of a segment's facts; a transaction or transient segment has its parent's."""
    return Key("segment", parent_of(segment) or segment)


def positions_key(segment: str) -> Key:
    """Returns the key of what concerns all reader groups of a scope. segment: of a stream, or of a group's state."""
    return Key("positions", segment.partition("/")[0])
