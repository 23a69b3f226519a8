"""Segments: for each rule a history that breaks it, one that is right, and one that does not decide it."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from segstore.wire.history import RULES
from segstore.wire.names import transaction_name, transient_name
from tests.wire.history.segments.support import SEGMENT, History, event, events

MOST = (1 << 63) - 1
ONE, TWO = UUID(int=1), UUID(int=2)
T1, T2 = transaction_name(SEGMENT, ONE), transaction_name(SEGMENT, TWO)
L1, L2 = (transient_name(SEGMENT, ONE, digit * 32) for digit in "ab")


def new() -> History:
    """A segment whose creation was recorded, and a writer of it."""
    return History().change("created").set_up()


def later() -> History:
    """A segment whose recording began later."""
    return History().set_up(7)


def transaction(name: str, payloads: str, writer: str) -> Callable[[History], History]:
    """Adds a transaction of events of 9 bytes that are all acknowledged."""
    count = len(payloads.split())

    def add(history: History) -> History:
        history.within(name).set_up(writer=writer)
        return history.send(count, payloads, writer).ack(count, 9 * count, writer).within(SEGMENT)

    return add


def merge(history: History, source: str, length: int) -> History:
    return history.change("merged", source=source, offset=length)


def large(history: History, name: str, *chunks: bytes, merged: int | None) -> History:
    history.within(name).set_up(writer=name)
    for number, chunk in enumerate(chunks):
        history.send(number, chunk, name).ack(number, sum(map(len, chunks[: number + 1])), name)
    history.within(SEGMENT)
    return history.change("merging", source=name) if merged is None else merge(history, name, merged)


ab = transaction(T1, "a b", "t1")
cd = transaction(T2, "c d", "t2")
LARGE = event("large")

# For each rule: histories that break it, that are right, and that leave it (or the rule that is named) open.
CASES: dict[str, tuple[list[History], list[History], list[History]]] = {
    "lost-write": (
        [
            new().send(1, "a").ack(1, 9).send(2, "b").ack(2, 18).send(3, "c").ack(3, 27).read(0, "a c"),
            new().send(1, "a").send(2, "b").send(3, "c").ack(3, 27).read(0, "a c"),
            later().send(8, "a").ack(8, 109).send(10, "b c").ack(10, 127).read(100, "a c"),
            merge(ab(new().send(1, "x").ack(1, 9)), T1, 27).send(3, "y z").ack(3, 45).read(0, "x y z"),
            History().set_up().send(1, "b").ack(1, 9).send(2, "b").read(0, "a b b"),
        ],
        [
            new().send(1, "a").ack(1, 9).send(2, "b").ack(2, 18).read(0, "a b"),
            new().send(1, "a").ack(1, 9).refuse(2),
            History().set_up().send(1, "a").ack(1, 9).send(3, "b c").send(4, "c d").ack(4, 36).read(0, "a b c d"),
            new().send(MOST, "a").set_up(writer="v").send(1, "b", "v").ack(1, 9, "v").read(0, "b"),
            ab(new()).change("merged", T2, source=T1, offset=18).send(2, "x y").ack(2, 18).read(0, "x y"),
            merge(ab(new()).change("merged", T2, source=T1, offset=18), T2, 18).read(0, "a b"),
        ],
        [
            new().send(1, "a").ack(1, 9).send(2, "b").ack(2, 18).read(0, "a"),
            later().send(8, "a").ack(8, 109).read(109, "b"),
            History().set_up().send(1, "a").change("described", offset=9).send(2, "a").ack(2, 18).read(9, "a"),
            merge(ab(new()), T1, 18).read(0, b"\0"),
            History().set_up().send(1, "a").send(2, "b").send(3, "c").ack(3, 45).read(0, "a c"),
        ],
    ),
    "duplicate": (
        [
            new().send(1, "a").set_up(on=2).send(1, "a", on=2).ack(1, 18, on=2).read(0, "a a"),
            History().set_up().send(1, "a").ack(1, 9).send(2, "b").ack(2, 27).read(0, "a b b"),
            later().change("described", offset=100).send(8, "a").send(8, "a").ack(8, 118).read(100, "a a"),
            large(large(new(), L1, LARGE[:9], LARGE[9:], merged=None), L2, LARGE, merged=26).read(0, "large large"),
            large(new().within(L1).send(0, LARGE[:9], L1), L1, LARGE[:9], LARGE[9:], merged=13).read(0, "large large"),
            History().read(0, "a").set_up().send(1, "a").send(1, "a").ack(1, 27).read(9, "a a"),
        ],
        [
            new().send(1, "a").send(2, "a").ack(2, 18).read(0, "a a"),
            new().send(1, "a").set_up(on=2).send(1, "a", on=2).ack(1, 9, on=2).read(0, "a"),
            large(large(new(), L1, LARGE, merged=None), L2, LARGE, merged=13).read(0, "large"),
            large(large(new(), L1, LARGE, merged=13), L2, LARGE, merged=26).read(0, "large large"),
        ],
        [
            new().send(1, "a").send(2, "a").ack(2, 27).read(0, "a a a"),
            later().send(8, "a").ack(8, 118).read(100, b"").read(0, "x a a"),
            History().set_up().send(2, "a b").ack(2, 36).read(0, "a b a b"),
            History().set_up().send(1, "a").ack(1, 9).read(0, "a a"),
        ],
    ),
    "reordered": (
        [new().send(1, "a").send(2, "b").ack(2, 18).read(0, "b a"), new().send(2, "a b").ack(2, 18).read(0, "b a")],
        [new().send(1, "a").send(2, "b").ack(2, 18).read(0, "a b"), new().send(3, "a b a").ack(3, 27).read(0, "a b a")],
        [],
    ),
    "gap": (
        [new().send(1, "a").send(2, "b").send(3, "c").read(0, "a c"), new().send(1, "a").send(2, "b").read(0, "b")],
        [
            new().send(1, "a").send(2, "b").send(3, "c").read(0, "a b"),
            new().send(1, "a").send(2, "b", at=0).refuse(2).send(3, "c").read(0, "a c"),
            new().send(1, "a").set_up(on=2).send(2, "b", on=2).read(0, "b"),
        ],
        [],
    ),
    "ack-backwards": (
        [new().send(1, "a").send(2, "b").ack(2, 18).ack(1, 18), new().send(1, "a").ack(1, 9).set_up(0, on=2)],
        [new().send(1, "a").send(2, "b").ack(1, 9).ack(2, 18), new().send(1, "a").ack(1, 9).set_up(1, on=2)],
        [],
    ),
    "ack-beyond": ([new().send(1, "a").ack(2, 9)], [later().send(8, "a").ack(8, 100)], []),
    "block-repeated": (
        [later().send(7, "a"), later().send(9, "a b c")],
        [later().send(8, "a"), History().set_up(7).set_up(8).send(8, "a")],
        [],
    ),
    "number-reused": (
        [
            new().send(1, "a").set_up(on=2).send(1, "b", on=2),
            new().send(3, "a b c").set_up(1, on=2).send(3, "b d", on=2),
        ],
        [
            new().send(1, "a").set_up(on=2).send(1, "a", on=2),
            new().send(2, "a b").set_up(1, on=2).send(4, "b c d", on=2),
            new().send(1, "a", at=9).refuse(1).send(1, "b", at=0),
            new().send(2, b"two").set_up(1, on=2).send(2, b"o", on=2),
        ],
        [],
    ),
    "fenced-writer": (
        [new().set_up(on=2).send(1, "a", on=2).ack(1, 9, on=2).send(2, "b").ack(2, 18)],
        [
            new().set_up(on=2).send(1, "a").ack(1, 9),
            new().send(1, "a").ack(1, 9).set_up(1, on=2).send(2, "b", on=2).ack(2, 18, on=2),
            new().set_up(on=2).send(1, "a", on=2).send(2, "b").ack(1, 9, on=2, asked=3).ack(2, 18, asked=4),
        ],
        [],
    ),
    "garbage-read": (
        [
            new().send(2, "ab cd").ack(2, 20).read(0, "ad"),
            History().set_up().send(2, "ab cd").ack(2, 20).read(0, "ab cx"),
            new().send(1, "a").ack(1, 9).read(0, b"\0\0\0\1\0\0\0\1a"),
            new().send(1, "a").ack(1, 9).read(9, "b").send(2, "b").ack(2, 18),
        ],
        [
            new().send(2, "ab cd").ack(2, 20).read(0, events("ab cd")[:7]).read(7, events("ab cd")[7:]),
            new().send(2, "ab cd").ack(2, 20).read(0, "ab cd").read(12, events("ab cd")[12:]),
            new().send(1, "a").send(2, "b").read(0, "a b"),
        ],
        [
            new().read(0, "a"),
            new().send(1, "a").ack(1, 9).send(2, "b").ack(2, 27).read(0, "a x b"),
            new().send(1 << 40, "a").send(2 << 40, "b", count=2 << 40).read(0, "x"),
            History().read(0, "a b"),
            History().set_up().send(1, "ab").send(2, "cd").ack(2, 30).read(0, "ab xx cd"),
            later().send(8, "a").ack(8, 109).read(50, "b"),
            History().read(3, b"abcdefghijk"),
            History().read(8, bytes(4)).read(0, "\0" * 8).read(12, bytes(4)).read(50, b"abcdefghijk"),
            History().set_up().send(1, "a").ack(1, 109).read(0, b"abcdefghijk").read(100, "a"),
            new().read(MOST, "a", end=True),
        ],
    ),
    "inconsistent-offsets": (
        [
            History().read(0, "a b").read(0, "a c"),
            History().read(0, "a b c").read(4, events("a b x")[4:]),
            new().set_up(writer="v").send(1, "a").send(1, "b", "v").ack(1, 9).ack(1, 18, "v").read(0, "b a"),
        ],
        [History().read(0, "a b").read(9, "b c").read(0, "a b c")],
        [],
    ),
    "aborted-read": (
        [
            ab(new()).change("deleted", T1).read(0, "a b"),
            ab(new()).step(str(ONE), "aborted").read(0, "a"),
            ab(new()).change("deleted", T1).send(2, "a b").ack(2, 36).read(0, "a b a b"),
            merge(ab(new()).step(str(ONE), "aborting"), T1, 18).read(0, "a b"),
        ],
        [
            ab(new()).change("deleted", T1).send(1, "x").ack(1, 9).read(0, "x"),
            ab(new()).change("deleted", T1).send(1, "a").ack(1, 9).read(0, "a"),
        ],
        [ab(later()).step(str(ONE), "aborted").read(0, "a")],
    ),
    "precommitted-read": (
        [merge(ab(new()).read(0, "a b"), T1, 18), ab(new()).read(0, "a b").step(str(ONE), "committing")],
        [merge(ab(new()), T1, 18).read(0, "a b"), ab(new()).step(str(ONE), "committing").read(0, "a b")],
        [ab(new()).read(0, "a b")],
    ),
    "truncated-read": (
        [
            new().send(1, "a").ack(1, 9).change("truncated", offset=9).read(0, "a"),
            History().change("described", start=9, offset=9).read(0, "a"),
        ],
        [History().change("truncated", offset=9).read(9, b""), History().read(0, b"").change("truncated", offset=9)],
        [],
    ),
    "partial-transaction": (
        [
            merge(ab(new()), T1, 18).send(1, "x").ack(1, 27).read(0, "a x"),
            ab(new()).step(str(ONE), "committing").send(1, "x").ack(1, 18).read(0, "a x"),
            merge(ab(new()), T1, 9).read(0, "b"),
            ab(new()).step(str(ONE), "committing").change("described", offset=9).read(0, "a"),
        ],
        [
            merge(ab(new()), T1, 18).send(1, "x").ack(1, 27).read(0, "a b x"),
            merge(ab(new()), T1, 18).read(0, "a"),
            ab(new()).step(str(ONE), "committing").read(0, "a"),
        ],
        [merge(ab(later()), T1, 118).read(0, "a x")],
    ),
    "commit-order": (
        [cd(ab(new())).step(str(ONE), "committing", "w").step(str(TWO), "committing", "w").read(0, "c d a b")],
        [
            cd(ab(new())).step(str(ONE), "committing", "w").step(str(TWO), "committing", "w").read(0, "a b c d"),
            cd(ab(new())).step(str(ONE), "committing", "w").step(str(TWO), "committing", "v").read(0, "c d a b"),
            cd(ab(new()))
            .step(str(ONE), "committing")
            .step(str(TWO), "committing", "w")
            .step(str(ONE), "committing", "w")
            .read(0, "a b c d"),
        ],
        [],
    ),
    "partial-large-event": (
        [large(new(), L1, LARGE[:9], LARGE[9:], merged=13).send(1, "x").ack(1, 22).read(0, LARGE[:9] + event("x"))],
        [
            large(new(), L1, LARGE[:9], LARGE[9:], merged=13).send(1, "x").ack(1, 22).read(0, "large x"),
            large(new(), L1, LARGE[:9], LARGE[9:], merged=None).send(1, "x").ack(1, 9).read(0, "x"),
        ],
        [],
    ),
    "append-after-seal": (
        [
            new().change("sealed").send(1, "a").ack(1, 9),
            new().read(0, b"", end=True).send(1, "a").ack(1, 9),
            new().send(2, "a b").ack(2, 18).read(0, "a b", end=True).read(18, "a"),
            merge(ab(new()).change("sealed"), T1, 18),
        ],
        [new().send(1, "a").change("sealed").ack(1, 9, asked=2), new().send(1, "a").ack(1, 9).read(0, "a", end=True)],
        [],
    ),
    "truncation-too-far": (
        [new().change("truncated", offset=9).change("described", start=18, offset=18)],
        [
            new().change("truncated", offset=9).change("described", start=9, offset=18),
            new()
            .change("truncated", offset=9)
            .change("truncating", offset=18)
            .change("described", start=18, offset=18),
        ],
        [History().change("truncated", offset=9).change("described", start=18, offset=18)],
    ),
    "merge-scattered": (
        [merge(ab(new()), T1, 18).send(1, "x").ack(1, 27).read(0, "a x b")],
        [merge(ab(new()), T1, 18).send(1, "x").ack(1, 27).read(0, "a b x")],
        [],
    ),
    "length-shrinks": (
        [
            new().send(1, "a").ack(1, 9).send(2, "b").ack(2, 8),
            new().send(1, "a").ack(1, 9).change("described", offset=0),
            merge(new().send(1, "a").ack(1, 9), T1, 8),
            new().send(2, "a b").ack(2, 18).read(0, "a", end=True),
        ],
        [new().send(1, "a").ack(1, 9).send(2, "b").ack(2, 18).change("described", offset=18)],
        [],
    ),
    "two-owners": (
        [
            new().set_up(writer="v").send(1, "a").send(1, "b", "v").ack(1, 9).ack(1, 9, "v", store="b:1"),
            new().send(1, "a").ack(1, 9).send(2, "b").ack(2, 8, store="b:1"),
        ],
        [new().send(1, "a").ack(1, 9).set_up(1, on=2).send(2, "b", on=2).ack(2, 18, on=2, store="b:1")],
        [],
    ),
    "false-conditional-append": (
        [new().send(1, "a", at=9).ack(1, 9), new().send(1, "a", at=0).send(2, "b", at=0).ack(2, 18)],
        [new().send(1, "a", at=0).send(2, "b", at=9).ack(2, 18), new().send(1, "a", at=9).refuse(1)],
        [],
    ),
}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_is_broken_alone_kept_or_open(rule: str) -> None:
    assert rule in RULES
    broken, right, undecided = CASES[rule]
    for number, history in enumerate(broken):
        assert history.verdicts()[0] == {rule}, f"broken {number}"
    for number, history in enumerate(right):
        assert history.verdicts()[0] == set(), f"right {number}"
    for number, history in enumerate(undecided):
        rules, unknown = history.verdicts()
        assert not rules, f"undecided {number}"
        assert unknown, f"undecided {number}"


def test_a_segment_that_may_have_been_deleted_begins_again() -> None:
    """Its deletion is confirmed, fails, or is not answered; an unrecorded peer creates it again."""
    for steps in (("deleting", "deleted"), ("deleting", "not deleted"), ("deleting",)):
        history = new().change("created").send(1, "a").ack(1, 9).send(2, "b").ack(2, 18)
        for step in steps:
            history.change(step)
        history.set_up(on=2, writer="v").send(1, "x", "v", on=2).ack(1, 9, "v", on=2).read(0, "x")
        assert history.verdicts() == (set(), {"lost-write"}), steps
    again = new().change("deleted").change("created").set_up().send(1, "a").ack(1, 9).send(2, "b").ack(2, 18)
    assert again.read(0, "a x").verdicts()[0] == {"garbage-read"}
