"""Reads trace files and writes their page: packed traces in the page of `segstore.server.page`.

Text from a trace is only in compressed sections, and the script shows it as text.
"""

from __future__ import annotations

import base64
import itertools
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segstore.server.page import trace_page
from segstore.traces import TraceFile, judged, replacing
from segstore.view.pack import Sections, deflated, pack
from segstore.view.schema import specification
from segstore.wire.history import RULES
from segstore.wire.trace import CONTROLLER, VARYING_FIELDS, Translation, differences

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from segstore.wire.history import Verdicts
    from segstore.wire.trace import Damage, Difference

SHARE: Final = 0.32
"""Of the size of a trace, what its sections may take in base64."""
LEAST_BYTES: Final = 4 << 20
"""The sections of a small trace may take as much, whatever its size: all its bytes are then on the page."""
MOST_DIFFERENCES: Final = 10_000
_LONGEST_VALUE: Final = 2_000


class WrittenPage(NamedTuple):
    """A page that was written: its size in bytes, and the damage found in each trace."""

    size: int
    damages: tuple[tuple[Path, Damage], ...]


def write_page(
    target: Path,
    sources: Sequence[Path],
    against: Path | None = None,
    *,
    ignore: frozenset[str] = VARYING_FIELDS,
    exact: bool = False,
) -> WrittenPage:
    """Writes the page of traces, replacing an existing file.

    against: a trace that the only source is compared with, as two runs of one program. ignore: fields that may differ.
    exact: whether ids and KeepAlives are compared too, and no field is ignored.

    Raises UnreadableTrace, TracesTooFarApart and OSError; an existing file is then unchanged.
    """
    packed: list[Sections] = []
    damages: list[tuple[Path, Damage]] = []
    for source in sources if against is None else (*sources, against):
        sections, source_damages = _packed(source)
        packed.append(sections)
        damages += ((source, damage) for damage in source_damages)
    compared = None if against is None else _compared(sources[0], against, None if exact else Translation(ignore))
    size = 0
    with replacing(target) as file:
        for text in html(packed, compared):
            size += file.write(text.encode())
    return WrittenPage(size, tuple(damages))


def html(traces: Sequence[Sections], differences: list[Any] | None = None) -> Iterator[str]:
    """Yields the parts of the page. differences: of the two traces, as JSON values, if they are compared."""
    head, tail, _ = trace_page(specification())
    yield head
    for number, sections in enumerate(traces):
        for name, packed in sections.items():
            yield _section(f"{number}-{name}", packed)
    if differences is not None:
        yield _section("differences", deflated(json.dumps(differences).encode()))
    yield tail


def _section(name: str, packed: bytes) -> str:
    return f'<script type="text/plain" id="{name}">{base64.b64encode(packed).decode()}</script>\n'


def _packed(path: Path) -> tuple[Sections, list[Damage]]:
    with TraceFile(path) as first, TraceFile(path) as opened, TraceFile(path) as again:
        broken = _broken(judged(first.records(), first.damages))
        readings = iter((opened, again))

        def describe() -> dict[str, Any]:
            facts = opened.metadata
            named = {"file": path.name, "form": opened.form, "bytes": opened.size, "recorder": facts.recorder}
            return {**named, "broken": broken}

        most = max(int(opened.size * SHARE * 3 / 4), LEAST_BYTES)
        return pack(lambda: next(readings).records(), opened.damages, most, describe), opened.damages


def _broken(verdicts: Verdicts) -> dict[str, Any]:
    """The sentence and the verdicts of each broken rule; records count from 0."""
    return {
        rule: {
            "sentence": RULES[rule].text,
            "verdicts": [
                {
                    "rule": rule,
                    "text": verdict.text,
                    "expected": _value(verdict.expected),
                    "actual": _value(verdict.actual),
                    "records": list(dict.fromkeys(place.record for place in verdict.places)),
                }
                for verdict in broken
            ],
        }
        for rule, broken in verdicts.by_rule.items()
    }


def _compared(left: Path, right: Path, translation: Translation | None) -> list[dict[str, Any]]:
    with TraceFile(left) as one, TraceFile(right) as other:
        found = differences(one.records(), other.records(), translation=translation)
        return [_difference(difference) for difference in itertools.islice(found, MOST_DIFFERENCES)]


def _difference(difference: Difference) -> dict[str, Any]:
    fields = [
        {"field": field.field, "left": _value(field.left), "right": _value(field.right)} for field in difference.fields
    ]
    return {
        "direction": int(difference.direction),
        "places": difference.places,
        "fields": fields,
        "text": _text(difference),
    }


def _text(difference: Difference) -> str:
    """How the traces differ in a stream or a method."""
    if all(difference.places):
        names = ", ".join(field.field or "bytes not read" for field in difference.fields) or "kind of record"
        return "; ".join(filter(None, (difference.more_text, names)))
    if difference.connection != CONTROLLER:
        return difference.more_text
    side, over = ("A", difference.left_over) if difference.places[0] else ("B", difference.right_over)
    return f"only {side} has it" + (f", and {over} more of its method" if over else "")


def _value(value: Any) -> str | None:
    """A value as text, because JavaScript's numbers do not hold 64 bits."""
    text = value if isinstance(value, str) or value is None else str(value)
    if text is None or len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[:_LONGEST_VALUE]}… ({len(text)} characters)"
