"""Verdicts on single cases, and the per-file report that collects them.

Invariant: a case agrees, deviates on purpose, or disagrees; `Report.ok` is False once any case disagrees.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from segstore.wire import WireError
from segstore.wire.inspect import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN = 160


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on one case: its disagreements, each of one or more lines, and its deliberate differences by id."""

    case: str
    differences: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()


class Report(msgspec.Struct):
    """Verdicts on the cases of one file.

    left_out: number of racy dialogues, which vary in the reference itself. failure: the reason why the file could not
    be run to its end.
    """

    name: str
    cases: int = 0
    agreed: int = 0
    deviated: int = 0
    left_out: int = 0
    deviations: Counter[str] = msgspec.field(default_factory=Counter)
    disagreements: list[Verdict] = []
    failure: str | None = None

    def add(self, verdict: Verdict) -> None:
        """Adds one case."""
        self.cases += 1
        if verdict.differences:
            self.disagreements.append(verdict)
        elif verdict.deviations:
            self.deviated += 1
        else:
            self.agreed += 1
        self.deviations.update(verdict.deviations)

    @property
    def ok(self) -> bool:
        """Whether all cases agree or deviate on purpose."""
        return not self.disagreements and self.failure is None

    def lines(self) -> Iterator[str]:
        """Formats the report: one line of counts, then each disagreement."""
        line = f"{self.name}: {self.agreed} of {self.cases} agree"
        if self.deviated:
            line += f", {self.deviated} {'deviation' if self.deviated == 1 else 'deviations'}"
            line += f" ({', '.join(f'{name} {count}' for name, count in sorted(self.deviations.items()))})"
        if self.left_out:
            line += f", {self.left_out} racy left out"
        yield line
        for verdict in self.disagreements:
            yield f"  {verdict.case}"
            for difference in verdict.differences:
                yield from (f"    {row}" for row in difference.splitlines())
        if self.failure is not None:
            yield f"  {self.failure}"


def shown(value: Any) -> str:
    """Formats a value for a report, shortened."""
    text = str(value) if isinstance(value, WireError) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def refusal_difference(step: dict[str, Any], error: WireError | None) -> Iterator[str]:
    """Yields the disagreement if only one of the reference and this codec refuses a step."""
    if ("exception" in step) is not (error is not None):
        wanted = f"a refusal ({step['exception']})" if "exception" in step else "no error"
        yield f"expected {wanted}, found {shown(error) if error else 'none'}"


def field_differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yields differences of two JSON values by field. `x_len` and `x_sha256` in a record replace a long payload `x`."""
    if isinstance(expected, dict) and isinstance(found, dict):
        seen = set()
        for key, value in expected.items():
            for suffix, measure in _MEASURES.items():
                name = key.removesuffix(suffix)
                if name != key and key not in found and isinstance(found.get(name), str):
                    seen.add(name)
                    yield from field_differences(value, measure(bytes.fromhex(found[name])), _join(path, key))
                    break
            else:
                seen.add(key)
                if key not in found:
                    yield f"{_join(path, key)}: expected {shown(value)}, found no such field"
                else:
                    yield from field_differences(value, found[key], _join(path, key))
        for key in found:
            if key not in seen:
                yield f"{_join(path, key)}: expected no such field, found {shown(found[key])}"
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            yield f"{path or 'list'}: expected {len(expected)} elements, found {len(found)}"
        for index, (one, other) in enumerate(zip(expected, found, strict=False)):
            yield from field_differences(one, other, f"{path}[{index}]")
    elif type(expected) is not type(found) or expected != found:
        yield f"{path or 'value'}: expected {shown(expected)}, found {shown(found)}"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_MEASURES: Final[dict[str, Callable[[bytes], Any]]] = {"_len": len, "_sha256": _sha256}


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def byte_difference(expected: bytes, found: bytes) -> str:
    """Describes the first difference of two frames, with the field of that byte."""
    at = next((at for at, (one, other) in enumerate(zip(expected, found, strict=False)) if one != other), None)
    if at is None:
        return f"expected {len(expected)} bytes, found {len(found)}; they agree up to the shorter's end"
    field = next((span.field for span in describe(expected).spans if span.offset <= at < span.offset + span.length), "")
    near = slice(max(0, at - 4), at + 12)
    return (
        f"byte {at} ({field or 'no field'}): expected …{expected[near].hex(' ')}…, found …{found[near].hex(' ')}… "
        f"({len(expected)} and {len(found)} bytes)"
    )
