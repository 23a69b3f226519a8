"""Which filters can match: a filter that no record of a kind can match is a mistake, which `check_possible` names.

A filter is tried on all types of frames and all methods of the controller, with the properties that all requests, or
replies, of a type have in common. A part that reads another property may match.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal

from segstore.wire.commands import AppendBlock, Hello, KeepAlive
from segstore.wire.inspect import has_payload
from segstore.wire.printable import SHOWN, printable
from segstore.wire.schema import COMMANDS, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from segstore.wire.schema import Command
    from segstore.wire.trace.filters import Filter

Among = Literal["request", "reply", "log", "trace"]
"""The records that a filter selects from: the requests of a fault rule, whose outcome is not known yet, or its replies;
the log of requests, which take the outcome of their replies; the records of a trace."""

_ON_REPLIES: Final = "a fault rule matches replies with on: reply"
_OF_BOTH: Final = (Hello, KeepAlive)
"""The commands that are requests and replies."""
_APPENDS: Final = "an append is APPEND_BLOCK_END here, or CONDITIONAL_APPEND if it has a condition"
_INSIDE: Final = frozenset({"EVENT", "PARTIAL_EVENT", "PADDING"})
"""The frames that only append blocks contain."""
_PARTS_OF_APPENDS: Final = _INSIDE | {"APPEND_BLOCK", "CONDITIONAL_BLOCK_END"}
_NO_OUTCOME: Final = {"failure": False, "status": None, "latency_ns": None}
_NO_FRAME: Final = {"code": None, "segments": (), "request_id": None, "writer_id": None, "payloads": ()}


def check_possible(match: Filter, among: Among) -> None:
    """Raises ValueError for a filter that no record of a kind can match."""
    if possible(match, among):
        return
    subjects = list(subjects_of(match, among))
    never = [
        part for part in match.parts if not any(_may_match([part], subject) for subject in subjects)
    ] or match.parts
    what = "record of a trace" if among == "trace" else "reply" if among == "reply" else "request"
    if match.about_calls and among != "trace":
        what += " of a controller call"
    shown = printable(" and ".join(text for text, _ in never), SHOWN)
    raise ValueError(f"{shown}: no {what} can match this{_hint(match, never, among)}")


def _hint(match: Filter, never: Sequence[tuple[str, Callable[[Any], bool]]], among: Among) -> str:
    """Returns what may be meant by the parts that never match, to be added to an error."""
    if among == "trace":
        return ""
    if not match.types.isdisjoint(_PARTS_OF_APPENDS):
        return f"; {_APPENDS}"
    other: Among = "request" if among == "reply" else "reply"
    if not any(_may_match(never, subject) for subject in subjects_of(match, other)):
        return ""
    return f"; {_ON_REPLIES}" if among == "log" else f"; with on: {other} one may"


def possible(match: Filter, among: Among) -> list[SimpleNamespace]:
    """The types, or methods, that a filter may match: all that no part of it always excludes."""
    return [subject for subject in subjects_of(match, among) if _may_match(match.parts, subject)]


def subjects_of(match: Filter | None, among: Among) -> Iterator[SimpleNamespace]:
    """Yields the facts about all requests or replies of a type, or all calls of a method, as the only attributes.

    A rule matches either frames or calls; other filters match frames and calls.
    """
    about_calls = match is not None and match.about_calls
    for reply in (False, True) if among == "trace" else (among == "reply",):
        every: dict[str, Any] = {"direction": int(reply)}
        if among == "trace":
            nothing = every | _NO_OUTCOME | _NO_FRAME | {"type_name": None, "call": None}
            for kind in ("open", "close", "bytes"):
                yield SimpleNamespace(kind=kind, malformed=kind == "bytes", **nothing)
        else:
            every |= {"malformed": False, "broken": ()}
        if among == "request":
            every |= _NO_OUTCOME
        if among in ("log", "trace") or not about_calls:
            for cls in _commands(among, reply=reply):
                yield SimpleNamespace(**every | _facts(cls, reply=reply))
        if among in ("log", "trace") or about_calls:
            from segstore.wire.controller_api import METHODS  # imports protobuf, which only filters of calls need

            of_calls = every | _NO_FRAME | {"kind": "call"}
            for rpc in METHODS:
                yield SimpleNamespace(**of_calls, call=SimpleNamespace(rpc=rpc))
            yield SimpleNamespace(**of_calls, call=SimpleNamespace())  # a method that no controller has


def _commands(among: Among, *, reply: bool) -> Iterator[type[Command]]:
    yield Unknown
    hidden = _INSIDE if among == "trace" else _PARTS_OF_APPENDS
    for cls in COMMANDS.values():
        if (cls.is_reply == reply or cls in _OF_BOTH) and cls.type_name not in hidden:
            yield cls


def _facts(cls: type[Command], *, reply: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": "frame", "call": None, "status": None, "type_name": cls.type_name}
    if not has_payload(cls.parts):
        facts["payloads"] = ()
    if cls in _OF_BOTH:
        facts["segments"] = ()
    if cls is AppendBlock:  # its end is answered
        facts |= _NO_OUTCOME
    if cls is not Unknown:
        facts["code"] = cls.code
        if reply:
            facts["failure"] = cls.is_failure
    return facts


def _may_match(parts: Iterable[tuple[str, Callable[[Any], bool]]], subject: SimpleNamespace) -> bool:
    return all(_may_hold(holds, subject) for _, holds in parts)


def _may_hold(holds: Callable[[Any], bool], subject: SimpleNamespace) -> bool:
    try:
        return holds(subject)
    except AttributeError:  # it depends on the record
        return True
