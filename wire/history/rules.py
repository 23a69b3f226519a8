"""The rules that histories are judged by, as a table: `RULES`. `docs/reference/rules.md` is made from it.

`_DECLARED` has the families, and four lines for each rule: id and alias, text, source, example. The text of a rule of
append blocks is that of `AppendRule`.

The names in `alias` are those of Jepsen's Kafka workload and of Elle for the same anomaly, if they have a name for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from segstore.wire.blocks import AppendRule


class HistoryRule(NamedTuple):
    """A rule. text: one sentence that holds in a correct history. source: where the reference keeps or states it.

    example: a history that breaks the rule. family: the heading in the reference page. judged_in: the recordings that
    the rule is judged in.
    """

    id: str
    family: str
    text: str
    source: str
    example: str
    alias: str
    judged_in: str


_IN_GROUPS: Final = "traces (of reader groups: the positions in their states{}), histories"
_IN_A_CONNECTION: Final = "bytes that were never read, between reads of one connection"
_UNLESS_REMOVED: Final = "traces, histories (a removal by a client that was not recorded may break it)"
_JUDGED_IN: Final = {
    "key-order": "histories (traces have no routing keys)",
    "inconsistent-offsets": "traces (bytes without event headers: under `garbage-read`), histories",
    "window-over-event": "histories (traces do not show that a writer timed out)",
    **dict.fromkeys(("not-linearizable", "false-compare-and-set"), _UNLESS_REMOVED),
    **dict.fromkeys(("read-twice", "nonmonotonic-poll"), _IN_GROUPS.format("")),
    **dict.fromkeys(("unread-below-checkpoint", "poll-skip"), _IN_GROUPS.format(f"; {_IN_A_CONNECTION}")),
}
_ALSO_IN_HISTORIES: Final = (
    *("lost-write", "duplicate", "reordered", "garbage-read", "aborted-read", "held-twice"),
    *("precommitted-read", "partial-transaction", "two-outcomes", "version-backwards"),
)

_DECLARED: Final = """
Writers
  lost-write = lost-write
    an acknowledged event is read where its segment is read past its place
    AppendProcessor.java: an append is acknowledged after the container has stored it
    event 3 is acknowledged at length 330, the segment is read from 0 to 330, and event 3 is not among it
  duplicate = duplicate
    an event is stored as often as it was written
    AppendProcessor.java: an event number that is already stored is not stored again
    the connection ends before the acknowledgement, the writer sends the block again, and both are read
  reordered = nonmonotonic-send
    the events of a writer are stored in the order of their numbers
    AppendProcessor.java: event numbers of a writer only grow
    a writer sends events 1 and 2, and 2 is read before 1
  gap = lost-write
    an event is not stored without the earlier events that its writer sent to the segment
    AppendProcessor.java: appends of a connection are executed in order
    a writer sends events 1, 2 and 3 on a connection, and only 1 and 3 are read
  ack-backwards
    acknowledged event numbers do not go backwards
    AppendProcessor.java: DataAppended carries the last and the previous event number
    an acknowledgement of event 5, then of event 4
  ack-beyond
    only events that were sent, or stored at the set-up, are acknowledged
    AppendProcessor.java: DataAppended
    a writer has sent events 1 to 3, and 4 is acknowledged
  block-repeated
    after a set-up, a writer does not send events again that the set-up reported as stored
    SegmentOutputStreamImpl.java: events up to AppendSetup's last event number are dropped
    the set-up answers 7, and the writer sends events 5 to 9
  number-reused
    an event number of a writer always means the same event
    SegmentOutputStreamImpl.java: event numbers are counted for a writer id
    a writer sends event 4 as “a”, reconnects, and sends event 4 as “b”
  fenced-writer
    a connection's append is not acknowledged after another connection of its writer has stored one
    AppendProcessor.java: an append names the writer's last event number, which must be the stored one
    a writer is set up on connections 1 and 2, stores an event on 2, and then one on 1
  key-order = nonmonotonic-poll
    the events of a routing key are read in the order in which they were written, across segments
    ReaderGroupState.java: a successor is read after its predecessors
    a stream scales; of one key, an event of the successor is read before the predecessor's last event

Readers
  garbage-read = garbage-read
    every event or byte that is read was written: no foreign, spliced or truncated event
    PravegaRequestProcessor.java: readSegment returns stored bytes
    the events “ab” and “cd” are written, and “ad” is read
  inconsistent-offsets = inconsistent-offsets
    an offset of a segment always holds the same byte, also by the length of an acknowledgement
    PravegaRequestProcessor.java: segments are append-only
    offset 100 is read as “a”, and later as “b”
  aborted-read = G1a
    no event of an aborted transaction is read
    StreamTransactionMetadataTasks.java: an abort deletes the transaction's segments
    a transaction is aborted, and one of its events is read from the stream's segment
  precommitted-read = precommitted-read
    no event of a transaction is read before its commit has begun
    CommitRequestHandler.java: segments are merged by a commit
    an event of a transaction is read from the stream's segment, and the transaction is committed later
  truncated-read
    nothing before a truncation is read after it
    PravegaRequestProcessor.java: SegmentIsTruncated
    a segment is truncated at 200, and a read of offset 100 returns bytes
  poll-skip = poll-skip
    a reader does not skip an offset between two reads, unless it was moved or another reader read it
    SegmentInputStreamImpl.java: reads are contiguous
    a reader gets the event at offset 0, then the event at 200, and no reader gets the event at 100
  nonmonotonic-poll = nonmonotonic-poll
    a reader does not go back in a segment that it holds
    SegmentInputStreamImpl.java: the offset only grows
    a reader gets the event at offset 100, then the event at offset 0
  read-twice = duplicate
    between two checkpoints, an event goes to one reader of a group
    ReaderGroupState.java: a segment is assigned to one reader
    readers a and b of a group both get the event at offset 100
  unread-below-checkpoint
    all events before the positions of a complete checkpoint were read before it
    CheckpointState.java: a checkpoint has the position of every reader
    a checkpoint is complete at offset 300, and a reader then gets the event at 200
  held-twice
    a segment is held by at most one reader of a group
    ReaderGroupState.java: assigned segments
    reader b acquires a segment that reader a has not released

Transactions
  partial-transaction = lost-write
    all events of a committed transaction are readable, or none
    CommitRequestHandler.java: all segments of a transaction are merged
    a transaction of two events is committed; one is read, the other is not though its segment was read
  two-outcomes
    a transaction has one outcome
    StreamMetadataTasks.java: COMMITTED and ABORTED are final
    a transaction is reported as committed, and later as aborted
  commit-order
    transactions that a writer commits one after the other are stored in that order
    CommitRequestHandler.java: transactions are committed in the order of their commit requests
    a writer commits t1, then t2, and t2's events are stored before t1's

Segments
  partial-large-event
    a large event is stored whole and contiguous, or not at all
    LargeEventWriter.java: its parts are merged as one
    the second of three parts of a large event is missing in the segment
  append-after-seal
    nothing is stored in a segment after it was sealed
    PravegaRequestProcessor.java: SegmentIsSealed
    a seal is confirmed at length 300, and an append is then acknowledged at length 330
  truncation-too-far
    a truncation keeps the bytes at and behind its offset
    PravegaRequestProcessor.java: truncateSegment
    a segment is truncated at 200, and its start is then 300
  merge-scattered
    the bytes of a merged segment are stored once, and contiguous
    PravegaRequestProcessor.java: mergeSegments
    another writer's event is read between two events of a transaction
  length-shrinks
    the length of a segment does not shrink
    PravegaRequestProcessor.java: segments are append-only
    an append is acknowledged at length 330, and the next at length 300
  two-owners
    two stores do not acknowledge different appends at the same offset
    ZKSegmentContainerMonitor.java: a container has one owner
    two stores acknowledge different appends of 30 bytes that end at 330

Tables, attributes and conditional appends
  not-linearizable = G-single-realtime
    the operations on a key have an order that explains all results and respects their times
    ContainerKeyIndex.java: updates of a key are sequential
    a put of 2 is confirmed, and a get that starts later returns 1
  version-backwards = cyclic-versions
    the versions of a key only grow
    ContainerTableExtensionImpl.java: a version is the entry's offset
    an update gets version 40, and a later update version 20
  false-compare-and-set = lost-update
    a conditional update succeeds only if the key has the version that it names
    ContainerKeyIndex.java: BadKeyVersionException
    version 40 is current, and an update that names version 20 succeeds
  false-conditional-append
    a conditional append succeeds only at the offset that it names
    AppendProcessor.java: ConditionalCheckFailed
    a segment is 300 bytes long, and an append that names offset 270 is acknowledged

Protocol
  hello-first
    the first frame of either side is a Hello
    WireCommands.java: Hello
    a connection starts with SetupAppend
  direction
    requests go to the store, replies to the client
    WireCommands.java
    a client sends SegmentRead
  frames-only
    whole frames are sent
    WireCommands.java
    a client sends bytes of another protocol
  decodes
    a frame decodes
    WireCommands.java
    a Hello of 4 bytes
  known-command
    the type code of a frame belongs to a command
    WireCommands.java
    a frame of type 999
  after-close
    nothing is sent on a connection that was closed
    ServerConnectionInboundHandler.java
    a reply follows the record of the close
  reply-without-request
    a reply has the request id of a request that waits on its connection
    FlowHandler.java: replies are routed by request id
    SegmentRead with request id 7, and no read has it
  reply-kind
    a reply is of the kind that its request is answered with, or a failure
    WireCommands.java
    CreateSegment is answered with SegmentSealed
  request-id-reuse
    a request id is not used again while its request waits, unless by the same writer
    Flow.java: request ids are counted
    two reads with request id 7, before the first is answered
  flow-reuse
    a flow has no other writer before all appends of its last one are answered
    FlowHandler.java: a flow belongs to one user
    a second writer is set up on flow 3 while an append of the first waits
  writer-unknown
    AppendRule
    AppendDecoder.java
    an append block of a writer without a set-up
  block-open
    AppendRule
    AppendDecoder.java
    two append blocks without an end between them
  writer-mismatch
    AppendRule
    AppendDecoder.java
    a block of writer a, an end of writer b
  whole-size
    AppendRule
    AppendDecoder.java
    a block of 20 bytes with 30 bytes of whole events
  no-events
    AppendRule
    AppendDecoder.java
    an append of 0 events
  block-tail
    AppendRule
    AppendDecoder.java
    whole events, then bytes of type 5
  padded-data
    AppendRule
    AppendDecoder.java
    a padded block whose end has data
  number-backwards
    AppendRule
    AppendDecoder.java
    event 5, then event 4 on one connection

Watermarks
  window-over-event
    a time window does not close over an event whose time was noted before it
    PeriodicWatermarking.java: a watermark is at most the minimum of all writers' times
    a writer notes time 100, and a later window has the lower bound 120
"""


def _rules() -> Iterator[HistoryRule]:
    for family in _DECLARED.strip().split("\n\n"):
        heading, *lines = map(str.strip, family.splitlines())
        for names, text, source, example in zip(*[iter(lines)] * 4, strict=True):
            name, _, alias = names.partition(" = ")
            if text == AppendRule.__name__:
                text = AppendRule[name.replace("-", "_").upper()].value
            judged_in = _JUDGED_IN.get(name, "traces, histories" if name in _ALSO_IN_HISTORIES else "traces")
            yield HistoryRule(name, heading, text, source, example, alias, judged_in)


RULES: Final = {rule.id: rule for rule in _rules()}
