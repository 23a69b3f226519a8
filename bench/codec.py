"""Is the generated codec faster than what one would write by hand, and by how much than construct?

Commands of up to 1 KB, whole frames through the public functions. Every figure is a ratio of times in the same round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.baselines import handwritten
from bench.baselines.msgpack import Msgpack
from bench.harness import Effort, Figure, Report, Table, Times, geometric_mean, measure
from bench.pictures import Bars
from bench.samples import COLD, WARM, samples
from segstore.wire.codec import codec as wire

__all__ = ["run"]

CODEC, HAND, CONSTRUCT, MSGPACK = "generated", "by hand", "construct", "msgpack"


def run(effort: Effort) -> Report:
    report = Report(
        "Codec",
        question="Is the generated codec faster than code written by hand with the same checks, and by how much faster "
        "than the schema that it is generated from?",
    )
    decode, encode = _compare(effort, WARM, slow=True)
    means, shown = {}, dict[str, list[float]]()
    for what, found in (("decode", decode), ("encode", encode)):
        ratios = {name: times.ratio(CODEC, HAND) for name, times in found.items()}
        worst = max(ratios, key=lambda name: ratios[name])
        means[what] = geometric_mean(ratios.values())
        goal = 0.85 if what == "decode" else 0.90
        report.figures.append(Figure(f"{what}, of hand-written, geometric mean", means[what], goal, at_most=True))
        report.figures.append(Figure(f"{what}, of hand-written, worst ({worst})", ratios[worst], 1.15, at_most=True))
        slow = geometric_mean(times.ratio(CONSTRUCT, CODEC) for times in found.values())
        verb, goal = ("parse", 25) if what == "decode" else ("build", 30)
        report.figures.append(Figure(f"{what}, times as fast as construct's {verb}", slow, goal, at_most=False))
        shown[what] = [
            geometric_mean(times.ratio(each, HAND) for times in found.values())
            for each in (CODEC, HAND, CONSTRUCT, MSGPACK)
        ]
    report.tables.append(_table(decode, encode))
    report.says = (
        f"Decoding takes {means['decode']:.2f} of the time that the code by hand takes and encoding "
        f"{means['encode']:.2f}; "
        f"by the schema itself they take {shown['decode'][2]:.0f} and {shown['encode'][2]:.0f} times as "
        "long as by hand."
    )
    report.pictures.append(
        Bars(
            "codec-times",
            "Whole frames up to 1 KB, mean over commands: time, of code by hand",
            "",
            "× by hand",
            shown,
            log=True,
            groups=[CODEC, HAND, CONSTRUCT, MSGPACK],
            decimals=2,
        )
    )
    report.notes.append(
        "by hand: `bench/baselines/handwritten.py`, with struct; msgpack: values of the same shape by "
        "msgspec, a codec in "
        f"C with a format of its own, for scale; values are spread over {WARM[1]} writers and segments, as "
        "on a store's "
        "connection, and the codec remembers names that it has seen lately, which the code by hand does not"
    )
    cold_decode, cold_encode = _compare(effort, COLD, slow=False)
    for what, found in (("decode", cold_decode), ("encode", cold_encode)):
        mean = geometric_mean(times.ratio(CODEC, HAND) for times in found.values())
        report.notes.append(
            f"{what} with a writer and a segment never seen before in every frame: {mean:.2f} of hand-written "
            f"(geometric mean; {means[what]:.2f} where {WARM[1]} of each take turns, as above)"
        )
    return report


def _compare(effort: Effort, kind: tuple[int, int], *, slow: bool) -> tuple[dict[str, Times], dict[str, Times]]:
    decode: dict[str, Times] = {}
    encode: dict[str, Times] = {}
    found = samples(*kind)
    twins = Msgpack([type(values[0]) for values in found.values()])
    for name, values in found.items():
        frames = [wire.encode(value) for value in values]
        reading = {CODEC: _over(wire.decode, frames), HAND: _over(handwritten.decode, frames)}
        writing = {CODEC: _over(wire.encode, values), HAND: _over(handwritten.encode, values)}
        if slow:
            mirrored = [twins.twin(value) for value in values]
            packed = [twins.encode(value) for value in mirrored]
            reading[CONSTRUCT] = _over(lambda frame: wire.decode(frame, codec="construct"), frames)
            reading[MSGPACK] = _over(twins.decode, packed)
            writing[CONSTRUCT] = _over(lambda value: wire.encode(value, codec="construct"), values)
            writing[MSGPACK] = _over(twins.encode, mirrored)
        decode[name] = _per_item(measure(reading, effort), len(values))
        encode[name] = _per_item(measure(writing, effort), len(values))
    return decode, encode


def _over(function: Callable[[Any], object], items: Iterable[Any]) -> Callable[[], None]:
    def once() -> None:
        for item in items:
            function(item)

    return once


def _per_item(times: Times, items: int) -> Times:
    return Times({name: [each / items for each in seconds] for name, seconds in times.seconds.items()})


def _table(decode: dict[str, Times], encode: dict[str, Times]) -> Table:
    heading = ["command"]
    for verb in ("decode", "encode"):
        heading += [f"{verb} ns", "of by hand", "construct", "msgpack"]
    rows: list[Sequence[str]] = []
    for name, both in zip(decode, zip(decode.values(), encode.values(), strict=True), strict=True):
        row = [name]
        for times in both:
            row.append(f"{times.median(CODEC) * 1e9:.0f}")
            row += [f"{times.ratio(each, HAND):.2f}" for each in (CODEC, CONSTRUCT, MSGPACK)]
        rows.append(row)
    means = ["geometric mean"]
    for found in (decode, encode):
        means.append("")
        means += [
            f"{geometric_mean(times.ratio(each, HAND) for times in found.values()):.2f}"
            for each in (CODEC, CONSTRUCT, MSGPACK)
        ]
    return heading, [*rows, means]
