"""Near misses: the requests that come nearest to a filter that none matched, and why they do not match.

Pure. Invariants: at most `MOST_LOOKED_AT` requests, the latest, are examined; a request counts as near if it matches,
or if a part of a conjunction matches it. To a filter of one part about segments, streams or scopes, the requests with
the most similar names are near, one for each.

A filter that no request, or no reply, can match is a mistake, which `check_possible` names: it is tried on all types of
frames and all methods of the controller, with what is the same for each of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal

from segstore.wire import COMMANDS, Hello, KeepAlive
from segstore.wire.printable import printable
from segstore.wire.schema import Unknown

if TYPE_CHECKING:
    from segstore.server.faults.observe import Seen
    from segstore.wire.trace import Filter

What = Literal["request", "reply"]

MOST_LOOKED_AT: Final = 1_000
_MOST_NEAR: Final = 3
_LONGEST: Final = 300
_MOST_SHOWN: Final = 100
_ON_REPLIES: Final = "a fault rule matches replies with on: reply"
_OF_BOTH: Final = (Hello, KeepAlive)
"""The commands that are requests and replies."""
_APPENDS: Final = "an append is APPEND_BLOCK_END here, or CONDITIONAL_APPEND if it has a condition"
_PARTS_OF_APPENDS: Final = frozenset({"APPEND_BLOCK", "CONDITIONAL_BLOCK_END", "EVENT", "PARTIAL_EVENT", "PADDING"})
_REPLIES: Final = frozenset(each.type_name for each in COMMANDS.values() if each.is_reply)
_BOTH: Final = frozenset({*(each.type_name for each in _OF_BOTH), Unknown.type_name})


def check_types(match: Filter, *, replies: bool = False) -> None:
    """Raises ValueError if a filter of requests, or of replies, names a type that none of them has."""
    for name in sorted(match.types - _BOTH):
        if name in _PARTS_OF_APPENDS:
            raise ValueError(f"type = {name}: no {'reply' if replies else 'request'} has this type; {_APPENDS}")
        if name in _REPLIES and not replies:
            raise ValueError(
                f"type = {name}: it is a reply and no request has this type; name the request's type; {_ON_REPLIES}"
            )
        if name not in _REPLIES and replies:
            raise ValueError(f"type = {name}: it is a request and no reply has this type; without on: reply it matches")


def check_possible(match: Filter, on: What, *, recorded: bool = False) -> None:
    """Raises ValueError for a filter that no request, or no reply, can match.

    recorded: the filter is of requests in the log, which also know how they ended.
    """
    check_types(match, replies=on == "reply")
    if any(_may_match(match.parts, each) for each in _subjects(match, on, recorded=recorded)):
        return
    subjects = list(_subjects(match, on, recorded=recorded))
    never = [part for part in match.parts if not any(_may_match([part], each) for each in subjects)] or match.parts
    other: What = "reply" if on == "request" else "request"
    hint = ""
    if any(_may_match(never, each) for each in _subjects(match, other)):
        hint = f"; {_ON_REPLIES}" if recorded else f"; with on: {other} one may"
    what = f"{on} of a controller call" if match.about_calls else on
    raise ValueError(
        f"{printable(' and '.join(text for text, _ in never), _MOST_SHOWN)}: no {what} can match this{hint}"
    )


def possible(match: Filter, on: What) -> list[SimpleNamespace]:
    """The types, or methods, that a filter may match: all that no part of it excludes whatever the request."""
    return [each for each in _subjects(match, on) if _may_match(match.parts, each)]


def _subjects(match: Filter, on: What, *, recorded: bool = False) -> Iterable[SimpleNamespace]:
    """What is true of all requests or replies of a type, or of all calls of a method; they have no other attributes.

    A rule matches either frames or calls, before their outcome is known; a filter of recorded requests matches both.
    """
    reply = on == "reply"
    every: dict[str, Any] = {"direction": int(reply), "malformed": False}
    if not reply and not recorded:
        every |= {"failure": False, "status": None, "latency_ns": None}
    if recorded or not match.about_calls:
        of_frames = every | {"kind": "frame", "call": None, "status": None}
        yield SimpleNamespace(**of_frames, type_name=Unknown.type_name)
        for cls in COMMANDS.values():
            if cls.is_reply == reply or cls in _OF_BOTH:
                failure = {"failure": cls.is_failure} if reply else {}
                yield SimpleNamespace(**of_frames, **failure, type_name=cls.type_name, code=cls.code)
    if recorded or match.about_calls:
        from segstore.wire.controller_api import METHODS  # imports protobuf, which only filters of calls need

        every |= {"kind": "call", "code": None, "segments": (), "request_id": None, "writer_id": None}
        for rpc in METHODS:
            yield SimpleNamespace(**every, call=SimpleNamespace(rpc=rpc))
        yield SimpleNamespace(**every, call=SimpleNamespace())  # a method that no controller has


def _may_match(parts: Iterable[tuple[str, Callable[[Any], bool]]], subject: SimpleNamespace) -> bool:
    return all(_may_hold(holds, subject) for _, holds in parts)


def _may_hold(holds: Callable[[Any], bool], subject: SimpleNamespace) -> bool:
    try:
        return holds(subject)
    except AttributeError:  # it depends on the request
        return True


def line_of(seen: Seen) -> str:
    """A request as one line: number, type, segments, position, connection, and what became of it."""
    said = [f"request {seen.number}: {seen.type_name}"]
    if seen.segments:
        said.append(f"of {', '.join(seen.segments)}")
    if seen.call is not None and seen.call.named:
        said.append(f"of {', '.join(seen.call.named)}")
    if seen.event_number >= 0:
        first = seen.event_number - seen.event_count + 1
        said.append(f"events {first} to {seen.event_number}" if seen.event_count > 1 else f"event {seen.event_number}")
    if seen.offset >= 0:
        said.append(f"offset {seen.offset}")
    if seen.call is None:
        said.append(f"on connection {seen.connection}" + (f" of store {seen.store}" if seen.store else ""))
    return printable(f"{' '.join(said)}: {outcome_of(seen)}", _LONGEST)


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
