"""Bytes without event headers: what is read is what was appended, wherever reads and appends are cut."""

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
        history, changed = appended(data, chance), chance.randrange(len(data))
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
    assert sent().ack(1, 3).verdicts() == (set(), {"lost-write"})
