"""Are the codecs faster than handwritten code with the same checks, and by how much faster than construct?

Two codecs are measured: the generated Python, and the extension in C where it is built. Commands of up to 1 KB, whole
frames through the public functions. The code by hand is `bench/handwritten.py`.

`samples(count, names)` makes commands with so many different writers and segments. A store's connection repeats a few
of them all the time (WARM); COLD has a new one in every frame, more than any memo of the codec holds.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from bench import handwritten
from bench.harness import Effort, Report, Table, Times, geometric_mean, measure
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Command,
    CreateSegment,
    DataAppended,
    Hello,
    KeepAlive,
    NoSuchSegment,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
    TableEntries,
    TableEntry,
    TableKey,
    TableValue,
    UpdateSegmentAttribute,
    UpdateTableEntries,
)
from segstore.wire.codec import codec as wire

__all__ = ["COLD", "WARM", "run", "samples"]

WARM: Final = (64, 16)
"""(frames of each command, different names)"""
COLD: Final = (6000, 6000)

Samples = dict[str, list[Command]]

TOKEN: Final = "eyJhbGciOiJIUzUxMiJ9." + "c2VnbWVudHN0b3Jl" * 6 + ".c2ln"


def samples(count: int, names: int, seed: int = 1) -> Samples:
    """`count` values of each command under its type name, none above 1 KB on the wire."""
    chance = random.Random(seed)
    writers = [uuid.UUID(int=chance.getrandbits(128)) for _ in range(names)]
    segments = [f"examples/orders-{chance.randrange(10**6)}/{n}.#epoch.{n % 3}" for n in range(names)]

    def request() -> int:
        return chance.randrange(1 << 16) << 32 | chance.randrange(1 << 20)

    def offset() -> int:
        return chance.randrange(1 << 40)

    def entry() -> TableEntry:
        return TableEntry(TableKey(chance.randbytes(16), offset()), TableValue(chance.randbytes(64)))

    def of(n: int) -> list[tuple[str, Callable[[], Command]]]:
        writer, segment = writers[n % names], segments[n % names]
        return [
            ("HELLO", lambda: Hello(17, 5)),
            ("SETUP_APPEND", lambda: SetupAppend(request(), writer, segment, TOKEN)),
            ("APPEND_SETUP", lambda: AppendSetup(request(), segment, writer, offset())),
            ("APPEND_BLOCK", lambda: AppendBlock(writer, chance.randbytes(900))),
            ("APPEND_BLOCK_END", lambda: AppendBlockEnd(writer, 900, chance.randbytes(100), 1, offset(), request())),
            ("DATA_APPENDED", lambda: DataAppended(request(), writer, offset(), offset(), offset())),
            ("READ_SEGMENT", lambda: ReadSegment(segment, offset(), 65536, "", request())),
            ("SEGMENT_READ", lambda: SegmentRead(segment, offset(), False, False, chance.randbytes(900), request())),
            (
                "STREAM_SEGMENT_INFO",
                lambda: StreamSegmentInfo(request(), segment, True, False, False, offset(), offset(), 0),
            ),
            ("CREATE_SEGMENT", lambda: CreateSegment(request(), segment, 1, 100, TOKEN, offset())),
            ("SEGMENT_CREATED", lambda: SegmentCreated(request(), segment)),
            (
                "UPDATE_SEGMENT_ATTRIBUTE",
                lambda: UpdateSegmentAttribute(request(), segment, writer, offset(), offset(), ""),
            ),
            ("NO_SUCH_SEGMENT", lambda: NoSuchSegment(request(), segment, "", offset())),
            (
                "UPDATE_TABLE_ENTRIES",
                lambda: UpdateTableEntries(
                    request(), segment, "", TableEntries(tuple(entry() for _ in range(4))), offset()
                ),
            ),
            ("KEEP_ALIVE", KeepAlive),
        ]

    found: Samples = {}
    for n in range(count):
        for name, make in of(n):
            found.setdefault(name, []).append(make())
    return found


F = TypeVar("F", bound="Callable[..., object]")

C, PYTHON, HAND, CONSTRUCT = "c", "python", "by hand", "construct"
CODECS: Final = (PYTHON,) if wire.SPEED is None else (C, PYTHON)
GOALS: Final = {("decode", C): 0.25, ("encode", C): 0.35, ("decode", PYTHON): 2, ("encode", PYTHON): 2}
"""Of hand-written. Python is the fallback, which is simple and not fast."""


def run(effort: Effort) -> Report:
    report = Report("Codec")
    decode, encode = _compare(effort, WARM, slow=True)
    for what, times_of in (("decode", decode), ("encode", encode)):
        for codec in CODECS:
            ratios = {name: times.ratio(codec, HAND) for name, times in times_of.items()}
            name = f"{what}{_in_c(codec)}: time, of hand-written, geometric mean"
            report.add(name, geometric_mean(ratios.values()), GOALS[what, codec], at_most=True)
    report.tables.append(_table(decode, encode))
    if C in CODECS:
        for what, times_of in zip(("decode", "encode"), _compare(effort, COLD, slow=False), strict=True):
            mean = geometric_mean(times.ratio(C, HAND) for times in times_of.values())
            report.notes.append(f"{what} in C with names never seen before: {mean:.2f} of hand-written")
    return report


def _compare(effort: Effort, kind: tuple[int, int], *, slow: bool) -> tuple[dict[str, Times], dict[str, Times]]:
    decode: dict[str, Times] = {}
    encode: dict[str, Times] = {}
    found = samples(*kind)
    for name, values in found.items():
        frames = [wire.encode(value) for value in values]
        reading = {PYTHON: _over(_in_python(wire.decode), frames), HAND: _over(handwritten.decode, frames)}
        writing = {PYTHON: _over(_in_python(wire.encode), values), HAND: _over(handwritten.encode, values)}
        if wire.SPEED is not None:
            reading[C] = _over(wire.SPEED.shortcut(_in_python(wire.decode)), frames)
            writing[C] = _over(wire.SPEED.shortcut(_in_python(wire.encode)), values)
        if slow:
            reading[CONSTRUCT] = _over(lambda frame: wire.decode(frame, codec="construct"), frames)
            writing[CONSTRUCT] = _over(lambda value: wire.encode(value, codec="construct"), values)
        decode[name] = _per_item(measure(reading, effort), len(values))
        encode[name] = _per_item(measure(writing, effort), len(values))
    return decode, encode


def _in_c(codec: str) -> str:
    return " in C" if codec == C else ""


def _in_python(function: F) -> F:
    """The function without C in front of it."""
    python: F = getattr(function, "__wrapped__", function)
    return python


def _over(function: Callable[[Any], object], items: Iterable[Any]) -> Callable[[], None]:
    def once() -> None:
        for item in items:
            function(item)

    return once


def _per_item(times: Times, items: int) -> Times:
    return Times({name: [second / items for second in seconds] for name, seconds in times.seconds.items()})


def _table(decode: dict[str, Times], encode: dict[str, Times]) -> Table:
    heading = ["command"]
    for verb in ("decode", "encode"):
        heading += [f"{verb} ns" + " in C" * (C in CODECS), *(f"of by hand: {codec}" for codec in CODECS)]
        heading.append("construct")
    rows: list[Sequence[str]] = []
    for name, both in zip(decode, zip(decode.values(), encode.values(), strict=True), strict=True):
        row = [name]
        for times in both:
            row.append(f"{times.median(CODECS[0]) * 1e9:.0f}")
            row += [f"{times.ratio(each, HAND):.2f}" for each in (*CODECS, CONSTRUCT)]
        rows.append(row)
    means = ["geometric mean"]
    for found in (decode, encode):
        means.append("")
        means += [
            f"{geometric_mean(times.ratio(each, HAND) for times in found.values()):.2f}"
            for each in (*CODECS, CONSTRUCT)
        ]
    return heading, [*rows, means]
