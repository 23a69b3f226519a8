"""Mutants of the store and of the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from segstore.server.connection import service
from segstore.server.connection.session import Session
from segstore.server.controller.streams.transactions import Transactions, TransactionStatus
from segstore.server.recording import RecordedConnection
from segstore.server.store import BadAttribute, Container, SegmentStore
from segstore.server.store import operations as op
from segstore.server.store.errors import KeyBadVersion
from segstore.server.store.segment import Segment
from segstore.server.store.tables import TableSegment
from segstore.server.store.tables.log import entries_between
from segstore.wire import AppendSetup, DataAppended, Hello, KeepAlive, SegmentRead, SegmentSealed, SetupAppend, encode
from segstore.wire.commands import StreamSegmentInfo
from segstore.wire.names import container_of, is_index
from segstore.wire.trace import Direction
from tests.mutants import scenarios
from tests.mutants.mutant import Patch, Planted

STORE = Planted()
mutant = STORE.mutant

# --- appends ----------------------------------------------------------------------------------------------------------

Rows = list[tuple[int, int, bytes, int]]
Stored = list[tuple[bytes, Rows]]
"""Writers and the rows that are stored of them."""
Change = Callable[[int, str, bytes, Rows], Stored]
"""Takes the number of an append to a segment, the segment, the writer and the rows; returns what is stored instead."""


def changed(rows: Rows, change: Callable[[bytes, int], bytes]) -> Rows:
    """Changes the data of rows. change: takes a row's data, and where its second half of events begins."""
    return [
        (last, events, change(bytes(data), len(data) // events * (events // 2)), id_)
        for last, events, data, id_ in rows
    ]


def without_data(rows: Rows) -> Rows:
    return changed(rows, lambda data, half: b"")


def stores(patch: Patch, change: Change) -> None:
    """Stores what `change` returns, while acknowledgements say what was sent."""
    store, counts = Segment.append, dict[str, int]()

    def append(self: Segment, writer: bytes, rows: Sequence[Any], now_ms: int, decided: bool = False) -> None:
        if not writer or not self.name.startswith(("a/s/", "scope/")):
            store(self, writer, rows, now_ms, decided)
            return
        counts[self.name] = number = 1 if not self.length else counts.get(self.name, 0) + 1
        for each_writer, stored in change(number, self.name, writer, list(rows)):
            last = max(self.attributes.get(each_writer, -1), stored[-1][0])
            store(self, each_writer, stored, now_ms, decided)
            self.attributes[each_writer] = last

    patch(Segment, "append", append)


@mutant("lost-write", scenarios.writers)
def drops_an_append(patch: Patch) -> None:
    stores(patch, lambda number, _, writer, rows: [(writer, without_data(rows) if number == 4 else rows)])


@mutant("lost-write", scenarios.writers)
def loses_the_second_half_of_a_batch(patch: Patch) -> None:
    stores(
        patch,
        lambda number, _, writer, rows: [
            (writer, changed(rows, lambda data, half: data[half:]) if number == 4 else rows)
        ],
    )


@mutant("duplicate", scenarios.writers)
def stores_an_append_twice(patch: Patch) -> None:
    stores(patch, lambda number, _, writer, rows: [(writer, rows)] * (2 if number == 4 else 1))


@mutant("reordered", scenarios.writers)
def turns_a_batch(patch: Patch) -> None:
    stores(
        patch,
        lambda number, _, writer, rows: [
            (writer, changed(rows, lambda data, half: data[half:] + data[:half]) if number == 4 else rows)
        ],
    )


@mutant("garbage-read", scenarios.writers)
def corrupts_a_byte(patch: Patch) -> None:
    stores(
        patch,
        lambda number, _, writer, rows: [
            (writer, changed(rows, lambda data, half: data[:-1] + b"?") if number == 4 else rows)
        ],
    )


@mutant("garbage-read", scenarios.byte_stream)
def corrupts_a_byte_without_an_event(patch: Patch) -> None:
    stores(patch, lambda number, _, writer, rows: [(writer, changed(rows, lambda data, half: data[:-1] + b"?"))])


@mutant("inconsistent-offsets", scenarios.writers)
def reorders_two_writers(patch: Patch) -> None:
    """Stores an append behind the next one of another writer."""
    held: Stored = []

    def swapped(number: int, segment: str, writer: bytes, rows: Rows) -> Stored:
        if number == 1:
            held.clear()
        if held and held[0][0] != writer:
            return [(writer, rows), held.pop()]
        if number == 4:
            held.append((writer, rows))
            return [(writer, without_data(rows))]
        return [(writer, rows)]

    stores(patch, swapped)


@mutant("inconsistent-offsets", scenarios.writer)
def acknowledges_before_it_stores(patch: Patch) -> None:
    """Stores the second append behind the third, though it is acknowledged before."""
    held: Stored = []

    def later(number: int, segment: str, writer: bytes, rows: Rows) -> Stored:
        if number == 2:
            held[:] = [(writer, rows)]
            return [(writer, without_data(rows))]
        return [(writer, rows), *(held if number == 3 else ())]

    stores(patch, later)


@mutant("partial-transaction", scenarios.in_transactions)
def loses_half_a_transaction(patch: Patch) -> None:
    stores(
        patch,
        lambda number, segment, writer, rows: [
            (writer, without_data(rows) if number == 2 and "#transaction" in segment else rows)
        ],
    )


@mutant("partial-large-event", scenarios.large_event)
def stores_a_large_event_without_its_end(patch: Patch) -> None:
    stores(
        patch,
        lambda number, segment, writer, rows: [
            (writer, without_data(rows) if number == 3 and "#transient" in segment else rows)
        ],
    )


@mutant("gap", scenarios.unanswered)
def drops_an_append_and_acknowledges_none(patch: Patch) -> None:
    stores(patch, lambda number, _, writer, rows: [(writer, without_data(rows) if number == 2 else rows)])
    acknowledges(patch, lambda ack: ())


@mutant("two-owners", scenarios.two_stores, stores=2)
def serves_a_container_of_another_store(patch: Patch) -> None:
    container_for = SegmentStore.container_for

    def own(self: SegmentStore, name: str) -> Container:
        if not self.owns(name):
            self.own(container_of(name, self.container_count)).create_segment(
                name, scale_type=0, target_rate=0, rollover_size=0, now_ms=0
            )
        return container_for(self, name)

    patch(SegmentStore, "container_for", own)


@mutant("append-after-seal", scenarios.after_seal)
def seals_nothing(patch: Patch) -> None:
    patch(Container, "seal_segment", lambda self, name, now_ms: None)


@mutant("append-after-seal", scenarios.truncation)
def forgets_a_seal(patch: Patch) -> None:
    def seal(self: Container, name: str, *, now_ms: int) -> None:
        self.segment(name).mapped = True

    patch(Container, "seal_segment", seal)


@mutant("duplicate", scenarios.writer, "lost acknowledgement")
def forgets_a_writer(patch: Patch) -> None:
    """Answers a set-up as if the writer had written nothing."""
    set_up = Container.setup_append

    def forgetting(self: Container, name: str, writer_id: UUID, *, now_ms: int) -> int:
        self.segment(name).attributes.pop(writer_id.bytes, None)
        return set_up(self, name, writer_id, now_ms=now_ms)

    patch(Container, "setup_append", forgetting)


@mutant("lost-write", scenarios.writer, "lost append")
def answers_a_set_up_with_a_higher_number(patch: Patch) -> None:
    """Tells a writer that set up again that its append was stored, which was lost."""
    set_up, seen = Container.setup_append, set[tuple[int, UUID]]()

    def ahead(self: Container, name: str, writer_id: UUID, *, now_ms: int) -> int:
        number = set_up(self, name, writer_id, now_ms=now_ms)
        if number >= 0 and (id(self.segment(name)), writer_id) in seen:
            number += 1
            self.segment(name).attributes[writer_id.bytes] = number
        seen.add((id(self.segment(name)), writer_id))
        return number

    patch(Container, "setup_append", ahead)


@mutant("fenced-writer", scenarios.fenced)
def acknowledges_a_fenced_writer(patch: Patch) -> None:
    patch(Container, "_check_writer", lambda *_: None)


@mutant("false-conditional-append", scenarios.revisions)
def ignores_the_offset_of_a_conditional_append(patch: Patch) -> None:
    append = Container.append
    patch(Container, "append", lambda self, *values: append(self, *values[:5]))


# --- acknowledgements -------------------------------------------------------------------------------------------------


def acknowledges(patch: Patch, change: Callable[[DataAppended], Iterable[DataAppended]]) -> None:
    """Sends other acknowledgements than those of the store."""

    def acknowledger(version: int) -> Any:
        def acknowledge(rows: Rows, writer: bytes, previous: int, offset: int, out: bytearray) -> int:
            for number, _, data, request_id in rows:
                offset += len(data)
                for ack in change(DataAppended(request_id, UUID(bytes=writer), number, previous, offset)):
                    out += encode(ack)
                previous = number
            return previous

        return acknowledge

    patch(service, "acknowledger", acknowledger)


@mutant("ack-backwards", scenarios.fenced)
def acknowledges_backwards(patch: Patch) -> None:
    acknowledges(patch, lambda ack: (ack, replace(ack, event_number=ack.event_number - 1)))


@mutant("ack-beyond", scenarios.writer)
def acknowledges_beyond(patch: Patch) -> None:
    acknowledges(patch, lambda ack: (replace(ack, event_number=ack.event_number + (ack.event_number == 3)),))


@mutant("length-shrinks", scenarios.writer)
def acknowledges_a_shorter_length(patch: Patch) -> None:
    def shorter(ack: DataAppended) -> tuple[DataAppended]:
        length = ack.current_segment_write_offset - (20 if ack.event_number == 2 else 0)
        return (replace(ack, current_segment_write_offset=length),)

    acknowledges(patch, shorter)


# --- reads, truncations and merges ------------------------------------------------------------------------------------


@mutant("truncated-read", scenarios.truncation)
def truncates_nothing(patch: Patch) -> None:
    patch(Container, "truncate_segment", lambda self, name, offset: None)


@mutant("truncation-too-far", scenarios.truncation)
def truncates_too_far(patch: Patch) -> None:
    truncate = Container.truncate_segment
    patch(Container, "truncate_segment", lambda self, name, at: truncate(self, name, at if is_index(name) else at + 12))


def merges(patch: Patch, change: Callable[[str, str, bytes], Sequence[bytes]]) -> None:
    """Appends what `change` makes of the target, the source and its data, in place of a merge."""

    def merge(self: Container, target: str, source: str, *values: Any, **more: Any) -> int:
        home = more.get("source_container") or self
        for data in change(target, source, home.segment(source).read_bytes(0, home.segment(source).length)):
            self._commit(op.Appended(target, data, 0, more["now_ms"]))
        home._commit(op.SegmentDeleted(source, retired=True))
        return self.segment(target).length

    patch(Container, "merge", merge)


@mutant("duplicate", scenarios.large_event)
def merges_twice(patch: Patch) -> None:
    merges(patch, lambda target, source, data: (data, data))


@mutant("partial-large-event", scenarios.large_event)
def merges_a_large_event_without_its_middle(patch: Patch) -> None:
    merges(patch, lambda target, source, data: (data[:1000], data[2000:]))


@mutant("merge-scattered", scenarios.in_transactions)
def merges_in_two_parts(patch: Patch) -> None:
    """Stores the second half of a transaction behind the next append to the stream's segment."""
    append, held = Container.append, dict[str, bytes]()

    def half(target: str, source: str, data: bytes) -> tuple[bytes]:
        middle = 8 + int.from_bytes(data[4:8], "big")
        held[target] = held.get(target, b"") + data[middle:]
        return (data[:middle],)

    def then(self: Container, name: str, writer: bytes, rows: Any, *values: Any) -> int:
        start = append(self, name, writer, rows, *values)
        rest = held.pop(name, b"")
        if rest:
            self._commit(op.Appended(name, rest, 0, values[1]))
        return start

    merges(patch, half)
    patch(Container, "append", then)


@mutant("inconsistent-offsets", scenarios.truncation)
def returns_other_bytes_in_a_second_read(patch: Patch) -> None:
    reply, seen = Session.reply_with_payload, set[Any]()

    def other(self: Session, command: Any) -> None:
        if isinstance(command, SegmentRead) and command.data:
            if self in seen:
                command = replace(command, data=bytes(command.data)[:-1] + b"?")
            seen.add(self)
        reply(self, command)

    patch(Session, "reply_with_payload", other)


# --- transactions -----------------------------------------------------------------------------------------------------


@mutant("partial-transaction", scenarios.in_transactions)
def commits_half_a_transaction(patch: Patch) -> None:
    merges(patch, lambda target, source, data: (data[: 8 + int.from_bytes(data[4:8], "big")],))


@mutant("aborted-read", scenarios.transactions)
def commits_an_aborted_transaction(patch: Patch) -> None:
    patch(Transactions, "abort", Transactions.commit)


@mutant("precommitted-read", scenarios.open_transaction)
def shows_an_open_transaction(patch: Patch) -> None:
    """Stores what is written to a transaction in the stream's segment at once."""
    append = Container.append

    def shown(self: Container, name: str, writer: bytes, rows: Any, *values: Any) -> int:
        start = append(self, name, writer, rows, *values)
        parent, mark, _ = name.partition("#transaction")
        for row in rows if mark else ():
            self._commit(op.Appended(parent, bytes(row[2]), row[1], values[1]))
        return start

    patch(Container, "append", shown)


@mutant("two-outcomes", scenarios.transactions)
def reports_another_outcome(patch: Patch) -> None:
    status = Transactions.status

    def aborted(self: Transactions, scope: str, name: str, identifier: UUID) -> TransactionStatus | None:
        known = status(self, scope, name, identifier)
        return TransactionStatus.ABORTED if known is TransactionStatus.COMMITTED else known

    patch(Transactions, "status", aborted)


@mutant("commit-order", scenarios.in_transactions)
def commits_in_another_order(patch: Patch) -> None:
    """Executes the first commit after the second."""
    commit, held = Transactions.commit, list[Any]()

    async def later(self: Transactions, *values: Any) -> None:
        if not held:
            held.append(values)
            return
        await commit(self, *values)
        await commit(self, *held.pop())

    patch(Transactions, "commit", later)


# --- tables and attributes --------------------------------------------------------------------------------------------


@mutant("false-compare-and-set", scenarios.table)
def accepts_a_wrong_version(patch: Patch) -> None:
    patch(TableSegment, "_check_conditions", lambda *_: None)


@mutant("version-backwards", scenarios.table)
def forgets_a_version(patch: Patch) -> None:
    """Versions start again after a few updates."""
    plan = TableSegment.plan_update

    def planned(table: TableSegment, *values: Any, **more: Any) -> Any:
        write = plan(table, *values, **more)
        return write._replace(versions=[version % 60 for version in write.versions])

    patch(TableSegment, "plan_update", planned)


@mutant("not-linearizable", scenarios.table)
def loses_an_update(patch: Patch) -> None:
    appended = TableSegment.appended

    def most(table: TableSegment, start: int) -> None:
        if not any(b"two" in (entry.value or b"") for entry in entries_between(table.log, start, table.log.length)):
            appended(table, start)

    patch(TableSegment, "appended", most)


@mutant("not-linearizable", scenarios.table)
def returns_a_stale_value(patch: Patch) -> None:
    get = TableSegment.get
    last: dict[bytes, Any] = {}

    def stale(table: TableSegment, keys: Any) -> Any:
        entries = get(table, keys)
        shown = [last.get(entry[0], entry) for entry in entries]
        last.update((entry[0], entry) for entry in entries)
        return shown

    patch(TableSegment, "get", stale)


@mutant("not-linearizable", scenarios.table)
def returns_another_value(patch: Patch) -> None:
    get = TableSegment.get
    patch(
        TableSegment,
        "get",
        lambda table, keys: [(key, version, value[:-1]) for key, version, value in get(table, keys)],
    )


@mutant("not-linearizable", scenarios.table)
def refuses_the_right_version(patch: Patch) -> None:
    check, seen = TableSegment._check_conditions, count()

    def refuse(table: TableSegment, conditions: Any) -> None:
        check(table, conditions)
        if any(version >= 0 for _, version in conditions) and next(seen) % 2:
            raise KeyBadVersion(table.name)

    patch(TableSegment, "_check_conditions", refuse)


@mutant("not-linearizable", scenarios.table)
def keeps_a_removed_key(patch: Patch) -> None:
    plan = TableSegment.plan_remove
    patch(TableSegment, "plan_remove", lambda *values, **more: plan(*values, **more)._replace(data=b"", forgotten=()))


@mutant("false-compare-and-set", scenarios.revisions)
def accepts_a_wrong_attribute(patch: Patch) -> None:
    update = Container.update_attribute

    def accept(container: Container, *values: Any, **more: Any) -> None:
        with suppress(BadAttribute):
            update(container, *values, **more)

    patch(Container, "update_attribute", accept)


# --- the protocol -----------------------------------------------------------------------------------------------------


def replies(patch: Patch, change: Callable[[Any], Iterable[Any]]) -> None:
    """Sends what `change` makes of a reply: commands, and bytes as they are."""
    reply = Session.reply

    def replied(self: Session, command: Any) -> None:
        for each in change(command):
            if isinstance(each, bytes):
                self.out.append(each)
                self.out_bytes += len(each)
            else:
                reply(self, each)

    patch(Session, "reply", replied)


def instead(kind: type[Any], change: Callable[[Any], Iterable[Any]]) -> Callable[[Any], Iterable[Any]]:
    """Changes the replies of one kind."""
    return lambda command: change(command) if isinstance(command, kind) else (command,)


@mutant("reply-without-request", scenarios.fenced)
def answers_with_a_wrong_request_id(patch: Patch) -> None:
    replies(patch, instead(AppendSetup, lambda command: (replace(command, request_id=99),)))


@mutant("reply-without-request", scenarios.writer)
def answers_twice(patch: Patch) -> None:
    replies(patch, instead(AppendSetup, lambda command: (command, command)))


@mutant("reply-kind", scenarios.truncation)
def answers_with_a_wrong_kind(patch: Patch) -> None:
    sealed = SegmentSealed(6, "a/s/0.#epoch.0")
    replies(patch, instead(StreamSegmentInfo, lambda command: (sealed,)))


@mutant("decodes", scenarios.fenced)
def sends_an_undecodable_frame(patch: Patch) -> None:
    frame = DataAppended.code.to_bytes(4, "big") + (3).to_bytes(4, "big") + b"???"
    replies(patch, instead(AppendSetup, lambda command: (command, frame)))


@mutant("known-command", scenarios.fenced)
def sends_an_unknown_command(patch: Patch) -> None:
    frame = (999).to_bytes(4, "big") + bytes(4)
    replies(patch, instead(AppendSetup, lambda command: (command, frame)))


@mutant("direction", scenarios.fenced)
def sends_a_request(patch: Patch) -> None:
    replies(
        patch, instead(AppendSetup, lambda command: (command, SetupAppend(2, command.writer_id, command.segment, "")))
    )


@mutant("hello-first", scenarios.fenced)
def sends_its_hello_late(patch: Patch) -> None:
    replies(patch, instead(Hello, lambda command: (KeepAlive(), command)))


@mutant("after-close", scenarios.fenced)
def replies_after_a_close(patch: Patch) -> None:
    sent = RecordedConnection.sent

    def late(self: RecordedConnection, parts: Any) -> None:
        self.closed(Direction.REPLY, "")
        sent(self, parts)

    patch(RecordedConnection, "sent", late)
