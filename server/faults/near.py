"""Near misses: the requests nearest to a filter without matches, and the reasons why they do not match.

Pure. Invariants: at most `MOST_LOOKED_AT` requests, the latest, are examined; a request counts as near if it matches,
or if a part of a conjunction matches it. For a filter that only names segments, streams or scopes, the requests with
the most similar names are near, one request per name.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from itertools import islice
from typing import TYPE_CHECKING, Final

from segstore.wire.printable import printable

if TYPE_CHECKING:
    from segstore.server.faults.observe import Seen
    from segstore.wire.trace import Filter

MOST_LOOKED_AT: Final = 1_000
_MOST_NEAR: Final = 3
_LONGEST: Final = 300


def line_of(seen: Seen) -> str:
    """Returns a request as one line: number, type, segments, position, connection, and outcome."""
    words = [f"request {seen.number}: {seen.type_name}"]
    if seen.segments:
        words.append(f"of {', '.join(seen.segments)}")
    if seen.call is not None and seen.call.named:
        words.append(f"of {', '.join(seen.call.named)}")
    if seen.event_number >= 0:
        first = seen.event_number - seen.event_count + 1
        words.append(f"events {first} to {seen.event_number}" if seen.event_count > 1 else f"event {seen.event_number}")
    if seen.offset >= 0:
        words.append(f"offset {seen.offset}")
    if seen.call is None:
        words.append(f"on connection {seen.connection}" + (f" of store {seen.store}" if seen.store else ""))
    return printable(f"{' '.join(words)}: {outcome_of(seen)}", _LONGEST)


def outcome_of(seen: Seen) -> str:
    """The outcome of a request: its reply and latency, or the last stage reached; then the rules that fired."""
    if seen.reply is None:
        outcome = "applied, no reply" if seen.applied_s is not None else "no reply"
    elif seen.latency_ns is None:
        outcome = f"{seen.reply}, not sent"
    else:
        outcome = f"{seen.reply} after {seen.latency_ns / 1e6:.1f} ms"
    return "; ".join([outcome, *seen.faults])


def near_misses(
    seen: Iterable[Seen], match: Filter | None, *, missing: str = "", store: int | None = None
) -> Iterator[str]:
    """The requests nearest to a filter, with the parts that do not hold: at most three lines, the latest first.

    seen: the latest first. missing: the text for a request that matches. store: of a rule that is about one store.
    Frames are never near a filter that names `rpc` or `status`.
    """
    parts, about_calls = (() if match is None else match.parts), match is not None and match.about_calls
    near: list[tuple[int, float, int, str]] = []
    known: set[tuple[str, ...]] = set()
    for at, each in enumerate(islice(seen, MOST_LOOKED_AT)):
        if about_calls and each.call is None:
            continue
        failing = [text for text, holds in parts if not holds(each)]
        unlike = 0.0
        if match is not None and len(failing) == len(parts):
            names = match.texts(each) if len(parts) == 1 else ()
            if not names or names in known:
                continue
            known.add(names)
            unlike = -max(SequenceMatcher(None, match.text[:_LONGEST], name[:_LONGEST]).ratio() for name in names)
        if store is not None and each.store != store:
            failing.append(f"store = {store}")
        if not failing and not missing:
            continue
        why = f"not {', not '.join(failing)}" if failing else missing
        near.append((len(failing), unlike, at, f"near: {line_of(each)}: {why}"))
    for _, _, _, line in heapq.nsmallest(_MOST_NEAR, near):
        yield printable(line, 2 * _LONGEST)
