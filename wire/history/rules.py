"""The rules that histories are judged by. `docs/reference/rules.md` has an example and the source of each."""

from __future__ import annotations

from typing import Final, NamedTuple

from segstore.wire.blocks import AppendRule


class HistoryRule(NamedTuple):
    """A rule. family: its heading in the reference. text: one sentence that holds in a correct history."""

    id: str
    family: str
    text: str


_FAMILIES: Final[dict[str, dict[str, str]]] = {
    "Writers": {
        "lost-write": "an acknowledged event is read where its segment is read past its place",
        "duplicate": "an event is stored as often as it was written",
        "reordered": "the events of a writer are stored in the order of their numbers",
        "gap": "an event is not stored without the earlier events that its writer sent to the segment",
        "ack-backwards": "acknowledged event numbers do not go backwards",
        "ack-beyond": "only events that were sent, or stored at the set-up, are acknowledged",
        "block-repeated": "after a set-up, a writer does not send events again that the set-up reported as stored",
        "number-reused": "an event number of a writer always means the same event",
        "fenced-writer": (
            "a connection's append is not acknowledged after another connection of its writer has stored one"
        ),
        "key-order": "the events of a routing key are read in the order in which they were written, across segments",
    },
    "Readers": {
        "garbage-read": "every event that is read was written: no foreign, spliced or truncated event",
        "inconsistent-offsets": (
            "an offset of a segment always holds the same byte, also by the length of an acknowledgement"
        ),
        "aborted-read": "no event of an aborted transaction is read",
        "precommitted-read": "no event of a transaction is read before its commit has begun",
        "truncated-read": "nothing before a truncation is read after it",
        "poll-skip": (
            "a reader does not skip an offset between two reads, unless it was moved or another reader read it"
        ),
        "nonmonotonic-poll": "a reader does not go back in a segment that it holds",
        "read-twice": "between two checkpoints, an event goes to one reader of a group",
        "unread-below-checkpoint": "all events before the positions of a complete checkpoint were read before it",
        "held-twice": "a segment is held by at most one reader of a group",
    },
    "Transactions": {
        "partial-transaction": "all events of a committed transaction are readable, or none",
        "two-outcomes": "a transaction has one outcome",
        "commit-order": "transactions that a writer commits one after the other are stored in that order",
    },
    "Segments": {
        "partial-large-event": "a large event is stored whole and contiguous, or not at all",
        "append-after-seal": "nothing is stored in a segment after it was sealed",
        "truncation-too-far": "a truncation keeps the bytes at and behind its offset",
        "merge-scattered": "the bytes of a merged segment are stored once, and contiguous",
        "length-shrinks": "the length of a segment does not shrink",
        "two-owners": "two stores do not acknowledge different appends at the same offset",
    },
    "Tables, attributes and conditional appends": {
        "not-linearizable": "the operations on a key have an order that explains all results and respects their times",
        "version-backwards": "the versions of a key only grow",
        "false-compare-and-set": "a conditional update succeeds only if the key has the version that it names",
        "false-conditional-append": "a conditional append succeeds only at the offset that it names",
    },
    "Protocol": {
        "hello-first": "the first frame of either side is a Hello",
        "direction": "requests go to the store, replies to the client",
        "frames-only": "whole frames are sent",
        "decodes": "a frame decodes",
        "known-command": "the type code of a frame belongs to a command",
        "after-close": "nothing is sent on a connection that was closed",
        "reply-without-request": "a reply has the request id of a request that waits on its connection",
        "reply-kind": "a reply is of the kind that its request is answered with, or a failure",
        "request-id-reuse": "a request id is not used again while its request waits, unless by the same writer",
        "flow-reuse": "a flow has no other writer before all appends of its last one are answered",
        **{
            rule.name.lower().replace("_", "-"): rule.value
            for rule in AppendRule
            if rule is not AppendRule.TOO_MANY_WRITERS  # the server's own
        },
    },
    "Watermarks": {"window-over-event": "a time window does not close over an event whose time was noted before it"},
}
RULES: Final = {
    rule: HistoryRule(rule, family, text) for family, rules in _FAMILIES.items() for rule, text in rules.items()
}
