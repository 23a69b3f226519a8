"""Histories as short text: one operation per line, `PROCESS OPERATION {value} [→ OUTCOME {value}]`, in their order."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable

from segstore.wire.history import Judge, Verdicts
from segstore.wire.history.lines import read_history

_OPERATION = re.compile(r"\s*(\w+) ([\w-]+) (\{.*?\})(?: → (ok|fail|info) ?(\{.*\})?)?\s*")


def lines_of(text: str) -> list[str]:
    """Returns the JSON lines of a history; an operation without an outcome ends at once, as ok."""
    lines = []
    for operation in filter(str.strip, text.splitlines()):
        match = _OPERATION.fullmatch(operation)
        assert match, operation
        process, name, value, outcome, more = match.groups()
        first = {"process": process, "f": name, "value": json.loads(value)}
        lines.append(json.dumps({"type": "invoke", **first}))
        lines.append(json.dumps({"type": outcome or "ok", **first, "value": json.loads(more or "{}")}))
    return lines


def judged(text: str) -> Verdicts:
    """Judges a history."""
    return judged_lines(map(json.loads, lines_of(text)))


def judged_lines(lines: Iterable[object]) -> Verdicts:
    """Judges a history of JSON values, for operations that run at the same time."""
    whole = Judge()
    for fact in read_history(map(json.dumps, lines)):
        whole.fact(fact)
    return whole.end()


def broken(text: str) -> Counter[str]:
    """Returns how often each rule is broken."""
    return Counter(verdict.rule for verdict in judged(text).broken)
