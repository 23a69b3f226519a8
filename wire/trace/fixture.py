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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segstore.wire.codec import decode, encode
from segstore.wire.errors import BadField, WireError
from segstore.wire.inspect import command_named
from segstore.wire.printable import printable
from segstore.wire.schema import Command, Unknown
from segstore.wire.trace.blocks import Direction, Metadata, Record, RecordKind, TraceError, TraceVersionError
from segstore.wire.trace.calls import CONTROLLER, Call, message_of
from segstore.wire.trace.writer import event_data
from segstore.wire.validation import DuplicateKey, unique

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FIXTURE_VERSION: Final = 2
LONGEST_LINE: Final = 1 << 26
"""Maximum length of a line in bytes: more than the longest frame needs in hex."""

_FIRST_KEY: Final = "segstore_trace"
_HEADER_KEYS: Final = (_FIRST_KEY, "wire_version", "recorder", "start_ns", "values")
_CONTENTS: Final = ("type", "hex", "bytes", "open", "close", "rpc")
_OF_CALL: Final = ("call", "status", "details", "metadata", "peer", "omitted")
_KEYS: Final = ("at_ns", "conn", "dir", *_CONTENTS, "fields", "note", *_OF_CALL, "message")
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
    said = header.metadata
    first = {_FIRST_KEY: FIXTURE_VERSION, "wire_version": said.wire_version, "recorder": said.recorder}
    return json.dumps({**first, "start_ns": header.start_ns, "values": said.values})


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
        found = json.loads(data)
        if isinstance(found, dict) and event_data(**found) == data:
            return found
    except (ValueError, RecursionError):
        pass  # written by another recorder: kept unchanged
    return data.hex()


def _call_keys(record: Record) -> dict[str, Any]:
    """Returns the keys of a call; its data in hex if another recorder wrote it in a form of its own, or with a flaw."""
    call = Call.unpack(record.data)
    if call is None or call.pack() != record.data or record.connection != CONTROLLER or _flaw(call, record.direction):
        return {"rpc": record.data.hex()}
    facts: dict[str, Any] = {"rpc": call.rpc, "call": call.number}
    given = {name: getattr(call, name) for name in _OF_CALL[1:]}
    facts |= {name: value for name, value in given.items() if value}
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
    found = _object(line, number)
    version = found.get(_FIRST_KEY)
    if type(version) is not int:
        raise FixtureError(f"the first line of a fixture has a number under {_FIRST_KEY!r}", line=number)
    if version != FIXTURE_VERSION:
        raise TraceVersionError(
            f"the fixture has version {version}; this release reads version {FIXTURE_VERSION}",
            limit=FIXTURE_VERSION,
            actual=version,
        )
    _only(found, _HEADER_KEYS, number)
    values = _expect(found, "values", dict, number, {})
    for name, value in values.items():
        if type(value) is not str:
            raise FixtureError("a text is needed", line=number, field=f"values.{name}", actual=value)
    metadata = Metadata(
        _expect(found, "wire_version", int, number, 0), _expect(found, "recorder", str, number, ""), values
    )
    return FixtureHeader(metadata, _int64(_expect(found, "start_ns", int, number, 0), "start_ns", number))


def from_line(line: str, header: FixtureHeader, number: int) -> Record:
    """Reads a line after the first. Raises FixtureError."""
    found = _object(line, number)
    _only(found, _KEYS, number)
    contents = [key for key in _CONTENTS if key in found]
    if len(contents) != 1:
        raise FixtureError(f"exactly one of {', '.join(_CONTENTS)} is needed, not {len(contents)}", line=number)
    (content,) = contents
    if content not in ("type", "rpc") and "fields" in found:
        raise FixtureError(f"fields belong to a type, not to {content}", line=number, field="fields")
    if content != "rpc" and (extra := next((key for key in (*_OF_CALL, "message") if key in found), None)):
        raise FixtureError(f"{extra} belongs to an rpc, not to {content}", line=number, field=extra)
    at_ns = _int64(_expect(found, "at_ns", int, number) + header.start_ns, "at_ns", number)
    connection = _int64(_expect(found, "conn", int, number), "conn", number)
    said = _expect(found, "dir", str, number, "request" if content in ("open", "close") else None)
    if said not in _DIRECTIONS:
        raise FixtureError(f"{said!r} is neither request nor reply", line=number, field="dir", actual=said)
    kind, data = _content(content, found, number, _DIRECTIONS[said])
    return Record(at_ns, connection, _DIRECTIONS[said], kind, data)


def _content(content: str, found: dict[str, Any], number: int, direction: Direction) -> tuple[RecordKind, bytes]:
    match content:
        case "rpc":
            return RecordKind.CALL, _call(found, number, direction)
        case "type":
            return RecordKind.FRAME, _frame(found, number)
        case "hex":
            return RecordKind.FRAME, _bytes(found, "hex", number)
        case "bytes":
            return RecordKind.BYTES, _bytes(found, "bytes", number)
    kind = RecordKind.OPEN if content == "open" else RecordKind.CLOSE
    if isinstance(found[content], str):
        return kind, _bytes(found, content, number)
    return kind, event_data(**_expect(found, content, dict, number))


def _frame(found: dict[str, Any], number: int) -> bytes:
    try:
        cls = command_named(_expect(found, "type", str, number))
    except BadField as cause:
        raise FixtureError(cause.message, line=number, field="type", actual=cause.actual) from cause
    fields = _expect(found, "fields", dict, number, {})
    try:
        return encode(cls.from_dict(fields))
    except WireError as cause:
        field = f"fields.{cause.field}" if cause.field else "fields"
        message = f"{cls.type_name}: {cause.message}"
        raise FixtureError(message, line=number, field=field, actual=cause.actual) from cause


def _call(found: dict[str, Any], number: int, direction: Direction) -> bytes:
    rpc = _expect(found, "rpc", str, number)
    if "call" not in found:
        return _bytes(found, "rpc", number)
    kinds: tuple[tuple[str, type, Any], ...] = (
        ("call", int, None),
        ("metadata", dict, {}),
        ("peer", str, ""),
        ("status", str, ""),
        ("details", str, ""),
    )
    given = {name: _expect(found, name, kind, number, default) for name, kind, default in kinds}
    if "message" in found:
        message = _bytes(found, "message", number)
    else:
        fields = _expect(found, "fields", dict, number, {})
        try:
            message = message_of(rpc, direction, fields) if fields else b""
        except ValueError as cause:
            raise FixtureError(f"{rpc}: {cause}", line=number, field="fields") from cause
    omitted = _expect(found, "omitted", int, number, 0)
    call = Call(given.pop("call"), rpc, message, omitted=omitted, **given)
    if found["conn"] != CONTROLLER:
        raise FixtureError(f"calls are on connection {CONTROLLER}", line=number, field="conn", actual=found["conn"])
    if flaw := _flaw(call, direction):
        raise FixtureError(flaw, line=number, field="status", actual=call.status)
    packed = call.pack()
    if Call.unpack(packed) is None:
        raise FixtureError("a text is needed for each key", line=number, field="metadata")
    return packed


def _bytes(found: dict[str, Any], key: str, number: int) -> bytes:
    text = _expect(found, key, str, number)
    try:
        return bytes.fromhex(text)
    except ValueError as cause:
        raise FixtureError(f"not hex: {cause}", line=number, field=key) from cause


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line, object_pairs_hook=unique)
    except json.JSONDecodeError as cause:
        raise FixtureError(f"not JSON at column {cause.colno}: {cause.msg}", line=number) from cause
    except DuplicateKey as cause:
        raise FixtureError("the key is duplicated", line=number, field=cause.key) from cause
    except (ValueError, RecursionError) as cause:
        raise FixtureError(f"not JSON of a trace: {cause}", line=number) from cause
    if not isinstance(found, dict):
        raise FixtureError(f"an object is needed, not {type(found).__name__}", line=number)
    return found


def _int64(value: int, field: str, number: int) -> int:
    if not -_INT64 <= value < _INT64:
        # The message omits the value, because the sum may have more digits than Python converts.
        raise FixtureError("the number exceeds 64 bits", line=number, field=field)
    return value


def _only(found: dict[str, Any], keys: tuple[str, ...], number: int) -> None:
    for key in found:
        if key not in keys:
            raise FixtureError(f"there is no such key; there are {', '.join(keys)}", line=number, field=key)


def _expect(found: dict[str, Any], key: str, kind: type, number: int, default: Any = None) -> Any:
    value = found.get(key, default)
    if value is None and key not in found:
        raise FixtureError("the key is missing", line=number, field=key)
    if type(value) is not kind:
        raise FixtureError(f"{_WORDS[kind]} is needed, not {value!r:.40}", line=number, field=key, actual=value)
    return value
