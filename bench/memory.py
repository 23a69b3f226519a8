"""Is a payload of 1 MB copied on its way through the codec? Bytes that Python allocates meanwhile, by tracemalloc."""

from __future__ import annotations

import tracemalloc
import uuid
from collections.abc import Callable
from typing import Final

from bench.harness import Effort, Figure, Report
from segstore.wire import AppendBlock, FrameDecoder, SegmentRead, decode, encode, encode_parts

__all__ = ["PAYLOAD_BYTES", "peak_bytes", "run"]

PAYLOAD_BYTES: Final = 1 << 20


def run(effort: Effort) -> Report:
    report = Report("Memory", question="Is a payload of 1 MB copied on its way through the codec?")
    data = bytes(PAYLOAD_BYTES)
    read = SegmentRead("examples/orders/0.#epoch.0", 0, False, False, data, 7)
    block = AppendBlock(uuid.UUID(int=7), data)
    for value in (read, block):
        frame = encode(value)
        name = value.type_name
        cases: list[tuple[str, Callable[[], object]]] = [
            ("decode", lambda frame=frame: decode(frame)),  # type: ignore[misc]  # the loop's variable, bound now
            ("feed", lambda frame=frame: FrameDecoder().feed(frame)),  # type: ignore[misc]
            ("encode_parts", lambda value=value: encode_parts(value)),  # type: ignore[misc]
        ]
        for what, call in cases:
            share = peak_bytes(call) / PAYLOAD_BYTES
            said = f"{what} of {name}: allocated, of its 1 MB payload"
            report.figures.append(Figure(said, share, 0.01, at_most=True))
    most = max(figure.value for figure in report.figures)
    report.says = f"No: at most {most:.2%} of the payload's size is allocated (by tracemalloc)."
    if most > 0.5:
        report.says = f"Yes: {most:.2f} of the payload's size is allocated (by tracemalloc)."
    return report


def peak_bytes(call: Callable[[], object]) -> int:
    """The most bytes that a call had allocated at a time, its result included; measured on the second call."""
    call()
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()
