"""Bytes without event headers: reads return the appended bytes, wherever reads and appends are cut."""

import random
from itertools import pairwise

from tests.wire.history.segments.support import History


def cut(data: bytes, chance: random.Random) -> list[tuple[int, bytes]]:
    """Returns pieces of some bytes, and their offsets."""
    ends = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(chance.randrange(6)))})
    return [(start, data[start:end]) for start, end in pairwise(ends)]


def appended(data: bytes, chance: random.Random, writers: int = 1) -> History:
    """Returns appends of some bytes, whose acknowledgements come late."""
    history = History().change("created")
    numbers, late = [0] * writers, list[tuple[int, int, int, int]]()
    for offset, piece in cut(data, chance):
        writer = chance.randrange(writers)
        numbers[writer] += 1
        history.send(numbers[writer], piece, writer=f"w{writer}", on=writer)
        late = [ack for ack in late if ack[0] != writer]
        late.append((writer, numbers[writer], offset + len(piece), len(history.facts) - 1))
        if writers > 1 or chance.random() < 0.5:
            history.ack(numbers[writer], offset + len(piece), writer=f"w{writer}", on=writer)
            late = []
    for writer, number, length, asked in late:
        history.ack(number, length, writer=f"w{writer}", on=writer, asked=asked)
    return history


def test_bytes_that_are_read_as_they_were_appended_break_no_rule() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        data = b"x" + chance.randbytes(chance.randrange(1, 60))
        history = appended(data, chance, writers=chance.choice((1, 2)))
        for reader in range(3):
            for offset, piece in cut(data, chance)[chance.randrange(2) :]:
                history.read(offset, piece, on=9 + reader)
        assert history.verdicts()[0] == set(), seed


def test_a_changed_byte_is_garbage() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        data = b"x" + chance.randbytes(chance.randrange(1, 60))
        history, changed = appended(data, chance, writers=chance.choice((1, 2))), chance.randrange(len(data))
        read = data[:changed] + bytes([data[changed] ^ 1 << chance.randrange(8)]) + data[changed + 1 :]
        for offset, piece in cut(read, chance):
            history.read(offset, piece)
        assert history.verdicts() == ({"garbage-read"}, set()), seed


def test_bytes_in_another_order_are_garbage() -> None:
    history = History().send(1, b"one").ack(1, 3).send(2, b"two").ack(2, 6)
    assert history.read(0, b"twoone").verdicts()[0] == {"garbage-read"}


def test_a_refused_append_is_not_read() -> None:
    history = History().send(1, b"one").send(2, b"two").refuse(2).send(3, b"three").ack(3, 8)
    assert history.read(0, b"onethree").verdicts() == (set(), set())


def test_what_is_not_known_is_open() -> None:
    def sent() -> History:
        return History().send(1, b"one")

    assert sent().ack(1, 9).send(2, b"two").ack(2, 15).read(0, b"garbage").verdicts() == (set(), {"garbage-read"})
    assert sent().ack(1, 3).read(1, b"ne").verdicts() == (set(), {"garbage-read"})
    assert sent().send(2, b"two").ack(2, 9).read(0, b"xyz").read(3, b"xyztwo").verdicts() == (set(), {"garbage-read"})
    assert sent().ack(1, 3).read(0, b"onetwo").verdicts() == (set(), {"garbage-read"})
    assert sent().ack(1, 3).read(0, b"one").read(3, b"XYZ").verdicts() == (set(), {"garbage-read"})
    assert History().send(1, bytes(8)).ack(1, 8).send(2, b"x").read(0, b"garbage!").verdicts()[1] == {"garbage-read"}
    assert History().read(0, b"garbage!!").send(1, b"x").verdicts() == (set(), {"garbage-read"})
    assert sent().ack(1, 3).verdicts() == (set(), {"lost-write"})


def test_what_is_lost_or_sent_again_breaks_no_rule() -> None:
    def lost() -> History:
        return History().send(1, b"one").send(2, b"two").set_up(1, on=2)

    for history, read in (
        (lost().send(1, b"six", "v", on=3).send(3, b"ten", on=2).ack(3, 9, on=2), b"onesixten"),
        (lost().send(2, b"two", on=2).ack(2, 6, on=2).refuse(2), b"onetwo"),
        (lost().change("described", offset=9).send(2, b"t", on=2).ack(2, 6, asked=1), b"onetwo"),
        (History().send(1, b"one").send(1, b"two", "v").ack(1, 6, "v").send(2, b"ten").ack(2, 12), b"onetwosixten"),
        (History().send(1, b"one").refuse(1).send(1, b"three").ack(1, 5).send(2, b"x").ack(2, -(1 << 63)), b"three"),
        (History().send(1, b"a").ack(1, 1).send(1, b"", "v").ack(1, 1, "v", store="b:1"), b"a"),
        (History().send(1, b"one", at=9).send(1, b"six", "v").send(2, b"two").ack(2, 6), b"sixtwo"),
        (History().send(2, b"").send(1, b"", count=-1).send(1, b""), b""),
        (History().send(1, b"x").send(1, b"y").ack(1, 1), b"y"),
    ):
        for offset in range(len(read)):
            history.read(offset, read[offset : offset + 1])
        assert history.verdicts()[0] == set(), read
    history = History().send(3, b"onetwo", count=3).set_up(on=2).send(2, b"on", on=2, count=2).send(3, b"etwo", on=2)
    assert history.ack(3, 6, on=2).set_up(writer="idle").read(0, b"onetwo").verdicts() == (set(), set())
