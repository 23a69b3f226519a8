"""Are the codecs faster than what one would write by hand, and by how much than construct?

Two are measured: the generated Python, and the extension in C where it is built. Commands of up to 1 KB, whole frames
through the public functions. Every figure is a ratio of times in the same round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from bench.baselines import handwritten
from bench.baselines.msgpack import Msgpack
from bench.harness import Effort, Figure, Report, Table, Times, geometric_mean, measure
from bench.pictures import Bars
from bench.samples import COLD, WARM, samples
from segstore.wire.codec import codec as wire

__all__ = ["run"]

F = TypeVar("F", bound="Callable[..., object]")

C, PYTHON, HAND, CONSTRUCT, MSGPACK = "c", "python", "by hand", "construct", "msgpack"
CODECS: Final = (PYTHON,) if wire.SPEED is None else (C, PYTHON)


GROUPS: Final = (*CODECS, HAND, CONSTRUCT, MSGPACK)
GOALS: Final = {
    ("decode", C): (0.25, 0.5),
    ("encode", C): (0.35, 0.5),
    ("decode", PYTHON): (1.5, 5),
    ("encode", PYTHON): (1, 2),
}
"""Of hand-written: the mean and the worst command. Python is the fallback, which is simple and not fast."""
COLD_GOALS: Final = {"decode": 0.35, "encode": 0.45}


def run(effort: Effort) -> Report:
    report = Report(
        "Codec",
        question="Are the codecs, in C and in generated Python, faster than handwritten code with the same checks, "
        "and how much faster than the schema that they are generated from?",
    )
    decode, encode = _compare(effort, WARM, slow=True)
    means, shown = dict[tuple[str, str], float](), dict[str, list[float]]()
    for what, found in (("decode", decode), ("encode", encode)):
        for codec in CODECS:
            ratios = {name: times.ratio(codec, HAND) for name, times in found.items()}
            worst = max(ratios, key=lambda name: ratios[name])
            mean = means[what, codec] = geometric_mean(ratios.values())
            goal, bound = GOALS[what, codec]
            name = f"{what}{_in_c(codec)}, of hand-written"
            report.figures.append(Figure(f"{name}, geometric mean", mean, goal, at_most=True))
            report.figures.append(Figure(f"{name}, worst ({worst})", ratios[worst], bound, at_most=True))
        slow = geometric_mean(times.ratio(CONSTRUCT, PYTHON) for times in found.values())
        verb, goal = ("parse", 15) if what == "decode" else ("build", 30)
        report.figures.append(Figure(f"{what}, times as fast as construct's {verb}", slow, goal, at_most=False))
        shown[what] = [geometric_mean(times.ratio(each, HAND) for times in found.values()) for each in GROUPS]
    report.tables.append(_table(decode, encode))
    report.says = (
        "Relative to handwritten code, "
        + ", ".join(
            f"decoding {'in C' if codec == C else 'in Python'} takes {means['decode', codec]:.2f} of the time and "
            f"encoding {means['encode', codec]:.2f}"
            for codec in CODECS
        )
        + f"; interpreting the schema takes {shown['decode'][-2]:.0f} and {shown['encode'][-2]:.0f} times as long."
    )
    report.pictures.append(
        Bars(
            "codec-times",
            "Whole frames up to 1 KB, mean over commands: time, of code by hand",
            "",
            "× by hand",
            shown,
            log=True,
            groups=list(GROUPS),
            decimals=2,
        )
    )
    report.notes.append(
        "by hand: `bench/baselines/handwritten.py`, with struct; msgpack: values of the same shape by msgspec, a codec "
        f"in C with a format of its own, for scale; values are spread over {WARM[1]} writers and segments, as on a "
        "store's connection; C remembers writers that it has seen lately, which the code by hand does not"
    )
    cold_decode, cold_encode = _compare(effort, COLD, slow=False)
    for what, found in (("decode", cold_decode), ("encode", cold_encode)):
        for codec in CODECS:
            mean = geometric_mean(times.ratio(codec, HAND) for times in found.values())
            report.notes.append(
                f"{what}{_in_c(codec)} with a writer and a segment never seen before in every frame: {mean:.2f} of "
                f"hand-written (geometric mean; {means[what, codec]:.2f} where {WARM[1]} of each take turns, as above)"
            )
            if codec == C:
                name = f"{what} in C, of hand-written, names never seen before"
                report.figures.append(Figure(name, mean, COLD_GOALS[what], at_most=True))
    return report


def _compare(effort: Effort, kind: tuple[int, int], *, slow: bool) -> tuple[dict[str, Times], dict[str, Times]]:
    decode: dict[str, Times] = {}
    encode: dict[str, Times] = {}
    found = samples(*kind)
    twins = Msgpack([type(values[0]) for values in found.values()])
    for name, values in found.items():
        frames = [wire.encode(value) for value in values]
        reading = {PYTHON: _over(_in_python(wire.decode), frames), HAND: _over(handwritten.decode, frames)}
        writing = {PYTHON: _over(_in_python(wire.encode), values), HAND: _over(handwritten.encode, values)}
        if wire.SPEED is not None:
            reading[C] = _over(wire.SPEED.shortcut(_in_python(wire.decode)), frames)
            writing[C] = _over(wire.SPEED.shortcut(_in_python(wire.encode)), values)
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
    return Times({name: [each / items for each in seconds] for name, seconds in times.seconds.items()})


def _table(decode: dict[str, Times], encode: dict[str, Times]) -> Table:
    heading = ["command"]
    for verb in ("decode", "encode"):
        heading += [f"{verb} ns" + " in C" * (C in CODECS), *(f"of by hand: {each}" for each in CODECS)]
        heading += ["construct", "msgpack"]
    rows: list[Sequence[str]] = []
    for name, both in zip(decode, zip(decode.values(), encode.values(), strict=True), strict=True):
        row = [name]
        for times in both:
            row.append(f"{times.median(CODECS[0]) * 1e9:.0f}")
            row += [f"{times.ratio(each, HAND):.2f}" for each in (*CODECS, CONSTRUCT, MSGPACK)]
        rows.append(row)
    means = ["geometric mean"]
    for found in (decode, encode):
        means.append("")
        means += [
            f"{geometric_mean(times.ratio(each, HAND) for times in found.values()):.2f}"
            for each in (*CODECS, CONSTRUCT, MSGPACK)
        ]
    return heading, [*rows, means]
