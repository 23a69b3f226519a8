"""Fixtures (`.jsonl`): human-readable traces, one JSON object per line, with named fields.

    {"segstore_trace": 2, "wire_version": 17, "recorder": "segstore 0.1", "start_ns": 17…, "values": {}}
    {"at_ns": 0, "conn": 1, "open": {"peer": "127.0.0.1:4711"}}
    {"at_ns": 1200, "conn": 1, "dir": "request", "type": "HELLO", "fields": {"high_version": 17, "low_version": 5}}
    {"at_ns": 1900, "conn": 1, "dir": "reply", "hex": "0000…", "note": "why there are no fields"}
    {"at_ns": 2500, "conn": 1, "dir": "request", "bytes": "0000", "note": "…"}
    {"at_ns": 2600, "conn": 1, "dir": "reply", "close": {"reason": "…"}}
    {"at_ns": 2700, "conn": 0, "dir": "request", "rpc": "createScope", "call": 1, "fields": {"scope": "s"}}
    {"at_ns": 2800, "conn": 0, "dir": "reply", "rpc": "createScope", "call": 1, "status": "OK", "fields": {}}

`at_ns` counts from `start_ns`. `hex` is a frame that the codec does not know or would not write back unchanged: a
malformed frame or an older, shorter form. `bytes` form no frame. `open` and `close` hold hex if another recorder wrote
their data in a form of its own. `rpc` is a controller call, `fields` has the fields of its message; `message` has the
message in hex if fields would not represent it. A request has no `status`, an answer has a status of gRPC. Any other
call, or a call on another connection, is `rpc` with its data in hex. `note` is for human readers and is ignored.

Invariant: `from_line` restores the record of each line that `to_line` writes, byte for byte; this is checked when the
line is written. An invalid line raises a `FixtureError` with line and field, a header of another version a
`TraceVersionError`.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segstore.wire.codec import decode, encode
from segstore.wire.errors import BadField, WireError
from segstore.wire.inspect import command_named
from segstore.wire.printable import printable
from segstore.wire.schema import Command, Unknown
from segstore.wire.trace.blocks import (
    Direction,
    Metadata,
    Record,
    RecordKind,
    TraceError,
    TraceVersionError,
    event_data,
)
from segstore.wire.trace.calls import CONTROLLER, Call, message_of
from segstore.wire.validation import json_object, refuse_others

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FIXTURE_VERSION: Final = 2
LONGEST_LINE: Final = 1 << 26
"""Maximum length of a line in bytes: more than the longest frame needs in hex."""

_FIRST_KEY: Final = "segstore_trace"
_HEADER_KEYS: Final = (_FIRST_KEY, "wire_version", "recorder", "start_ns", "values")
_OF_CALL: Final = ("call", "status", "details", "metadata", "peer", "omitted")
_CONTENTS: Final[dict[str, tuple[str, ...]]] = {
    "type": ("fields",),
    "rpc": ("fields", "message", *_OF_CALL),
    **dict.fromkeys(("hex", "bytes", "open", "close"), ()),
}
"""The key of a line's content → the keys that may be beside it."""
_EVENTS: Final = {RecordKind.OPEN: "open", RecordKind.CLOSE: "close"}
_DIRECTIONS: Final = {"request": Direction.REQUEST, "reply": Direction.REPLY}
_WORDS: Final = {int: "a whole number", str: "a text", dict: "an object"}
_INT64: Final = 1 << 63


class FixtureError(TraceError):
    """An invalid line of a fixture. Attributes: line (from 1), field (its path, None for the whole line)."""

    def __init__(self, message: str, *, line: int, field: str | None = None, actual: Any = None) -> None:
        super().__init__(message, field=field, actual=actual)
        self.line = line

    def __str__(self) -> str:
        return f"line {self.line}: {super().__str__()}"


class FixtureHeader(NamedTuple):
    """The first line: the trace's metadata, and the time that its lines count from."""

    metadata: Metadata
    start_ns: int = 0


# --- writing ----------------------------------------------------------------------------------------------------


def header_line(header: FixtureHeader) -> str:
    """Formats the first line, without a line end."""
    metadata = header.metadata
    first = {_FIRST_KEY: FIXTURE_VERSION, "wire_version": metadata.wire_version, "recorder": metadata.recorder}
    return json.dumps({**first, "start_ns": header.start_ns, "values": metadata.values})


def to_line(record: Record, start_ns: int) -> str:
    """Formats a record as a line of ASCII, without a line end."""
    line: dict[str, Any] = {"at_ns": record.ts_ns - start_ns, "conn": record.connection}
    if record.kind in _EVENTS:
        if record.direction is not Direction.REQUEST:
            line["dir"] = record.direction.name.lower()
        line[_EVENTS[record.kind]] = _event(record.data)
        return json.dumps(line)
    line["dir"] = record.direction.name.lower()
    if record.kind is RecordKind.CALL:
        return json.dumps(line | _call_keys(record))
    if record.kind is RecordKind.BYTES:
        line["bytes"] = record.data.hex()
        return json.dumps(line)
    command, note = _named(record.data)
    if command is None:
        line["hex"], line["note"] = record.data.hex(), note
    else:
        line["type"], line["fields"] = command.type_name, command.to_dict()
    return json.dumps(line)


def _event(data: bytes) -> Any:
    """Returns the facts of an OPEN or CLOSE if writing them again gives the same bytes, else their hex."""
    try:
        facts = json.loads(data)
        if isinstance(facts, dict) and event_data(**facts) == data:
            return facts
    except (ValueError, RecursionError):
        pass  # written by another recorder: kept unchanged
    return data.hex()


def _call_keys(record: Record) -> dict[str, Any]:
    """Returns the keys of a call; its data in hex if another recorder wrote it in a form of its own, or with a flaw."""
    call = Call.unpack(record.data)
    if call is None or call.pack() != record.data or record.connection != CONTROLLER or _flaw(call, record.direction):
        return {"rpc": record.data.hex()}
    facts: dict[str, Any] = {"rpc": call.rpc, "call": call.number}
    facts |= {name: value for name in _OF_CALL[1:] if (value := getattr(call, name))}
    fields = call.fields
    if fields:
        facts["fields"] = fields
    elif call.message:
        facts["message"] = call.message.hex()
    return facts


def _flaw(call: Call, direction: Direction) -> str:
    """Returns the problem with the status of a call; "" if it is valid."""
    if direction is Direction.REQUEST:
        return "a request has no status" if call.status else ""
    from segstore.wire.controller_api import STATUSES  # imports protobuf

    known = ("OK", *STATUSES)
    if call.status in known:
        return ""
    return f"an answer has one of {', '.join(known)}, not {printable(call.status, 40)!r}"


def _named(frame: bytes) -> tuple[Command | None, str]:
    """Returns the command of a frame if its fields represent it fully, else None and the reason."""
    try:
        command = decode(frame, unknown="keep")
        if isinstance(command, Unknown):
            return None, f"no command has the type code {command.type_code}"
        if encode(type(command).from_dict(command.to_dict())) == frame:
            return command, ""
    except WireError as error:
        return None, str(error)
    return None, f"{command.type_name} in a form that is not written any more"


def write_lines(metadata: Metadata, records: Iterable[Record]) -> Iterator[str]:
    """Yields the lines of a whole fixture, with line ends; times count from the first record's."""
    start_ns: int | None = None
    for record in records:
        if start_ns is None:
            start_ns = record.ts_ns
            yield header_line(FixtureHeader(metadata, start_ns)) + "\n"
        yield to_line(record, start_ns) + "\n"
    if start_ns is None:
        yield header_line(FixtureHeader(metadata)) + "\n"


# --- reading ----------------------------------------------------------------------------------------------------


def is_fixture(head: bytes) -> bool:
    """Whether bytes from the start of a file look like a fixture, and not like a capture."""
    return head.removeprefix(BOM_UTF8).lstrip()[:1] == b"{"


def read_lines(lines: Iterable[str]) -> Iterator[FixtureHeader | Record]:
    """Yields the header of a fixture, then its records. Skips empty lines. Raises FixtureError."""
    header: FixtureHeader | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if header is None:
            header = header_from_line(line, number)
            yield header
        else:
            yield from_line(line, header, number)
    if header is None:
        raise FixtureError("the fixture is empty: its first line says what it is", line=1)


def decode_line(line: bytes, number: int) -> str:
    """Decodes a line of a fixture file; drops a byte-order mark. Raises FixtureError if it is too long or not UTF-8."""
    if len(line) > LONGEST_LINE:
        raise FixtureError(f"a line exceeds {LONGEST_LINE} bytes", line=number)
    try:
        return line.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError as cause:
        raise FixtureError(f"not UTF-8 at byte {cause.start} of the line", line=number) from cause


def header_from_line(line: str, number: int = 1) -> FixtureHeader:
    """Reads the first line. Raises FixtureError, TraceVersionError."""
    with _numbered(number):
        values = json_object(line)
        version = values.get(_FIRST_KEY)
        if type(version) is not int:
            raise BadField(f"the first line of a fixture has a number under {_FIRST_KEY!r}")
        if version != FIXTURE_VERSION:
            raise TraceVersionError(
                f"the fixture has version {version}; this release reads version {FIXTURE_VERSION}",
                limit=FIXTURE_VERSION,
                actual=version,
            )
        refuse_others(values, _HEADER_KEYS)
        named = _value(values, "values", dict, {})
        for name, value in named.items():
            if type(value) is not str:
                raise BadField("a text is needed", field=f"values.{name}", actual=value)
        metadata = Metadata(_value(values, "wire_version", int, 0), _value(values, "recorder", str, ""), named)
        return FixtureHeader(metadata, _int64(values, "start_ns", default=0))


def from_line(line: str, header: FixtureHeader, number: int) -> Record:
    """Reads a line after the first. Raises FixtureError."""
    with _numbered(number):
        values = json_object(line)
        contents = [key for key in _CONTENTS if key in values]
        if len(contents) != 1:
            given = ", ".join(contents or values) or "no key"
            raise BadField(f"exactly one of {', '.join(_CONTENTS)} is needed, not {given}")
        (content,) = contents
        refuse_others(values, ("at_ns", "conn", "dir", content, *_CONTENTS[content], "note"))
        at_ns, connection = _int64(values, "at_ns", header.start_ns), _int64(values, "conn")
        way = _value(values, "dir", str, "request" if content in ("open", "close") else None)
        if way not in _DIRECTIONS:
            raise BadField(f"{way!r} is neither request nor reply", field="dir", actual=way)
        kind, data = _content(content, values, _DIRECTIONS[way])
        return Record(at_ns, connection, _DIRECTIONS[way], kind, data)


@contextmanager
def _numbered(line: int) -> Iterator[None]:
    """Turns errors about a line into errors that have its number."""
    try:
        yield
    except BadField as cause:
        raise FixtureError(cause.message, line=line, field=cause.field, actual=cause.actual) from cause


def _value(values: dict[str, Any], key: str, kind: type, default: Any = None) -> Any:
    value = values.get(key, default)
    if value is None and key not in values:
        raise BadField("the key is missing", field=key)
    if type(value) is not kind:
        raise BadField(f"{_WORDS[kind]} is needed, not {value!r:.40}", field=key, actual=value)
    return value


def _int64(values: dict[str, Any], key: str, more: int = 0, default: int | None = None) -> int:
    value: int = _value(values, key, int, default) + more
    if not -_INT64 <= value < _INT64:
        # The message omits the value, because the sum may have more digits than Python converts.
        raise BadField("the number exceeds 64 bits", field=key)
    return value


def _bytes(values: dict[str, Any], key: str) -> bytes:
    text = _value(values, key, str)
    try:
        return bytes.fromhex(text)
    except ValueError as cause:
        raise BadField(f"not hex: {cause}", field=key) from cause


def _content(content: str, values: dict[str, Any], direction: Direction) -> tuple[RecordKind, bytes]:
    match content:
        case "rpc":
            return RecordKind.CALL, _call(values, direction)
        case "type":
            return RecordKind.FRAME, _frame(values)
        case "hex":
            return RecordKind.FRAME, _bytes(values, "hex")
        case "bytes":
            return RecordKind.BYTES, _bytes(values, "bytes")
    kind = RecordKind.OPEN if content == "open" else RecordKind.CLOSE
    if isinstance(values[content], str):
        return kind, _bytes(values, content)
    return kind, event_data(**_value(values, content, dict))


def _frame(values: dict[str, Any]) -> bytes:
    cls = command_named(_value(values, "type", str))
    fields = _value(values, "fields", dict, {})
    try:
        return encode(cls.from_dict(fields))
    except WireError as cause:
        field = f"fields.{cause.field}" if cause.field else "fields"
        raise BadField(f"{cls.type_name}: {cause.message}", field=field, actual=cause.actual) from cause


def _call(values: dict[str, Any], direction: Direction) -> bytes:
    rpc = _value(values, "rpc", str)
    if "call" not in values:
        return _bytes(values, "rpc")
    number, metadata = _value(values, "call", int), _value(values, "metadata", dict, {})
    peer, status, details = (_value(values, key, str, "") for key in ("peer", "status", "details"))
    if "message" in values:
        message = _bytes(values, "message")
    else:
        fields = _value(values, "fields", dict, {})
        try:
            message = message_of(rpc, direction, fields) if fields else b""
        except ValueError as cause:
            raise BadField(f"{rpc}: {cause}", field="fields") from cause
    call = Call(number, rpc, message, metadata, peer, status, details, _value(values, "omitted", int, 0))
    if values["conn"] != CONTROLLER:
        raise BadField(f"calls are on connection {CONTROLLER}", field="conn", actual=values["conn"])
    if flaw := _flaw(call, direction):
        raise BadField(flaw, field="status", actual=call.status)
    packed = call.pack()
    if Call.unpack(packed) is None:
        raise BadField("a text in valid Unicode is needed for each key", field="metadata")
    return packed
