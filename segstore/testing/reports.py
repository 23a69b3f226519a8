"""The state of a failed test's server, as text: last requests, decisions of fault rules, open connections.

Pure. A report consists of parts, each with a title and lines. Invariant: a part has only the last `_MOST_LINES` lines;
their number is in its title.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from segstore.server.faults import line_of
from segstore.wire.printable import printable

if TYPE_CHECKING:
    from segstore.server.faults import WithFaults
    from segstore.server.replay import TraceServer

_MOST_LINES: Final = 20
_LONGEST: Final = 300


def report_of(server: WithFaults, connections: Iterable[str]) -> str:
    """The report about stores or a tap. Controller calls are among the requests. connections: one per line."""
    return _text([*_watched(server), _part("open connections", list(connections))])


def report_of_trace(server: TraceServer) -> str:
    """The report about a trace that answers clients."""
    requests = [str(each) for each in server.recent]
    problems = list(map(str, server.problems[-_MOST_LINES:]))
    left_out = list(map(str, server.left_out_calls[-_MOST_LINES:]))
    return _text(
        [
            _part("requests", requests, server.requests),
            *(
                [_part("records of controller calls left out", left_out, len(server.left_out_calls))]
                if left_out
                else ()
            ),
            _part("problems", problems, len(server.problems)),
            _part("open connections", [f"connection {number}" for number in server.open_connections]),
        ]
    )


def _watched(server: WithFaults) -> Iterator[tuple[str, Sequence[str]]]:
    observer, faults = server.observer, server.rules
    if observer is not None:
        requests = [line_of(line) for line in islice(observer.newest_first(), _MOST_LINES)]
        yield _part("requests", requests[::-1], observer.mark())
    if faults is not None and (tallies := faults.tallies()):
        counts = [f"{tally.name}: matched {tally.matched}, fired {tally.fired}" for tally in tallies[-_MOST_LINES:]]
        yield _part("fault rules", counts, len(tallies))
        yield _part("decisions", [str(decision) for decision in faults.decisions[-_MOST_LINES:]], len(faults.decisions))


def _part(title: str, lines: Sequence[str], total: int | None = None) -> tuple[str, Sequence[str]]:
    total = len(lines) if total is None else total
    shown = lines[-_MOST_LINES:]
    return f"{title} ({f'last {len(shown)} of ' if len(shown) < total else ''}{total})", shown


def _text(parts: Iterable[tuple[str, Sequence[str]]]) -> str:
    said: list[str] = []
    for title, lines in parts:
        said.append(title + (":" if lines else ""))
        said += [f"  {printable(line, _LONGEST)}" for text in lines for line in text.splitlines()]
    return "\n".join(said)
