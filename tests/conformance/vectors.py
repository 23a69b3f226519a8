"""Codec vectors: the reference codec's results for commands, bytes, strings and segment names.

Each function takes one line's object and yields disagreements. Both codecs, generated and construct, are checked, with
bytes and with a memoryview.
"""

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from segstore.wire import COMMANDS, Command, FrameDecoder, WireError, decode, encode, encode_parts
from segstore.wire.codec import CODECS, Codec
from segstore.wire.commands import AppendBlock
from segstore.wire.inspect import command_named, describe
from segstore.wire.names import container_of
from segstore.wire.schema import FieldType, Nested, Rows, encode_mutf8, types
from tests.conformance import blocks
from tests.conformance.deviations import deviation_of
from tests.conformance.encoder_cases import refused_command
from tests.conformance.recorded import Kind, Line, snake
from tests.conformance.report import Verdict, byte_difference, field_differences, refusal_difference, shown

_READ_CODE: Final = struct.Struct(">i").unpack_from

Found = Iterator[str]


def check(line: Line) -> Verdict:
    """Checks one line of a vector file."""
    frame = line.what.get("hex")
    try:
        differences = tuple(_CHECKS[line.kind](line.what))
    except (WireError, KeyError, TypeError, ValueError, AttributeError) as error:
        # A record's expectation may be malformed: then it disagrees in any case.
        differences = (f"cannot be compared: {type(error).__name__}: {shown(error)}",)
    if differences and line.kind is Kind.FRAME and line.what.get("ok") is False:
        excuse = deviation_of(bytes.fromhex(frame or ""))
        if excuse is not None:
            return Verdict(line.name, deviations=(excuse,))
    return Verdict(line.name, differences)


def _command(what: dict[str, Any]) -> Found:
    frame = bytes.fromhex(what["hex"])
    cls = command_named(what["type"])
    yield from _class(cls, what)
    fields = snake(what["fields"])
    value = cls.from_dict(fields)
    for codec in CODECS:
        written = encode(value, codec=codec)
        if written != frame:
            yield f"encode ({codec}): {byte_difference(frame, written)}"
    if (written := b"".join(encode_parts(value))) != frame:
        yield f"encode_parts: {byte_difference(frame, written)}"
    if what.get("decodable", True):
        yield from _decodes(frame, what["type"], snake(what.get("decoded", what["fields"])), what)
        read = decode(frame)
        if "equals" in what and (read.to_dict() == fields) is not what["equals"]:
            yield f"equals: expected {what['equals']}, found {not what['equals']}"
        if "reencodes" in what and (encode(read) == frame) is not what["reencodes"]:
            yield f"reencodes: expected {what['reencodes']}, found {not what['reencodes']}"
    else:
        yield from _refused(frame)
    if "ops" in what and what.get("decodable", True):
        yield from _writes(frame, what["ops"])


def _class(cls: type[Command], what: dict[str, Any]) -> Found:
    found = {
        "code": cls.code,
        "class": cls.__name__,
        "isRequest": cls.is_request,
        "isReply": cls.is_reply,
        "isFailure": cls.is_failure,
    }
    for key, value in found.items():
        if key in what and what[key] != value:
            yield f"{key}: expected {what[key]!r}, found {value!r}"


def _frame(what: dict[str, Any]) -> Found:
    frame = bytes.fromhex(what["hex"])
    if not what.get("ok", True):
        yield from _refused(frame)
        return
    code = _READ_CODE(frame)[0] if len(frame) >= 8 else None
    name = what.get("type") or (COMMANDS[code].type_name if code in COMMANDS else "")
    yield from _decodes(frame, name, snake(what["decoded"]), what)


def _refused(frame: bytes) -> Found:
    for codec in CODECS:
        for buffer in (frame, memoryview(frame)):
            try:
                found = decode(buffer, codec=codec)
            except WireError:
                continue
            yield f"decode ({codec}): expected a refusal, found {shown(found)}"
            break


def _decodes(frame: bytes, name: str, fields: Any, what: dict[str, Any]) -> Found:
    for codec in CODECS:
        readings: dict[str, Callable[[], Command]] = {
            codec: lambda codec=codec: decode(frame, codec=codec),  # type: ignore[misc]
            f"{codec}, memoryview": lambda codec=codec: decode(memoryview(frame), codec=codec),  # type: ignore[misc]
            f"{codec}, framing": lambda codec=codec: _only(FrameDecoder(codec=codec).feed(frame)),  # type: ignore[misc]
        }
        for way, read in readings.items():
            try:
                found = read()
            except WireError as error:
                yield f"decode ({way}): expected {name}, found {shown(error)}"
                break
            differences = [f"type: expected {name}, found {found.type_name}"] if found.type_name != name else []
            differences += field_differences(fields, found.to_dict())
            if "code" in what and what["code"] != found.code:
                differences.append(f"code: expected {what['code']}, found {found.code}")
            request_id = getattr(found, "request_id", None)
            if "requestId" in what and what["requestId"] != request_id:
                differences.append(f"requestId: expected {what['requestId']}, found {request_id}")
            if differences:
                yield from (f"decode ({way}): {difference}" for difference in differences)
                break


def _only(commands: list[Command]) -> Command:
    if len(commands) != 1:
        raise ValueError(f"one frame gave {len(commands)} commands")
    return commands[0]


_OPS: Final = {"i64": ">q", "i32": ">i", "i8": ">b", "bool": ">?"}


def _writes(frame: bytes, ops: list[list[Any]]) -> Found:
    """Checks that the recorded writes make up the body and that each field begins where a write does."""
    body, starts = bytearray(), set()
    for kind, value in ops:
        starts.add(8 + len(body))
        if kind == "utf":
            data = encode_mutf8(value)
            body += len(data).to_bytes(2, "big")
            starts.add(8 + len(body))
            body += data
        elif kind == "bytes":
            body += bytes.fromhex(value)
        else:
            body += struct.pack(_OPS[kind], int(value))
    # The block after an AppendBlock is written by its sender, not by the command.
    written = frame[8 : 8 + len(body)] if _READ_CODE(frame)[0] == AppendBlock.code else frame[8:]
    if body != written:
        yield f"ops: {byte_difference(frame[:8] + written, frame[:8] + bytes(body))}"
        return
    for span in describe(frame).spans:
        if span.length and 8 <= span.offset < 8 + len(body) and span.offset not in starts:
            yield f"ops: {span.field} begins at byte {span.offset}, where the reference begins no write"


_JAVA: Final = {"b": "byte", "i": "int", "q": "long", "?": "boolean", "16s": "UUID"}


def _schema(what: dict[str, Any]) -> Found:
    cls = command_named(what["type"])
    yield from _class(cls, what)
    recorded = what["fields_in_class_order"]
    expected = list(snake({field["name"]: None for field in recorded}))
    if expected != list(cls.__struct_fields__):
        yield f"fields: expected {expected}, found {list(cls.__struct_fields__)}"
        return
    java_types = dict(type_ for node in cls.parts for type_ in _java_types(node))
    for name, field in zip(expected, recorded, strict=True):
        java = field["java_type"].removeprefix("java.lang.").removeprefix("java.util.")
        short = re.sub(r"(?<![\w.])[\w.]+\$|java\.lang\.|io\.netty\.buffer\.", "", java).replace("$", ".")
        if java_types[name].replace("List<long>", "List<Long>") != short.rpartition(".")[2]:
            yield f"{name}: expected {java}, found {java_types[name]}"
    if "requestId" in what and not hasattr(cls, "request_id"):
        yield f"requestId: expected {what['requestId']}, found none"
    elif "requestId" in what and "request_id" not in cls.__struct_fields__:
        found = getattr(cls(*(0 for _ in cls.__struct_fields__)), "request_id", None)
        if found != what["requestId"]:
            yield f"requestId: expected {what['requestId']}, found {found}"


def _java_types(node: FieldType) -> Iterator[tuple[str, str]]:
    """Yields each attribute with its type as in the reference's classes; nested types are in brackets."""
    match node:
        case types.Fixed():
            yield node.name, _JAVA[node.format]
        case types.Zeros():
            yield node.name, "int"
        case types.Text():
            yield node.name, "String"
        case types.Blob() | types.Rest() | types.SizedData():
            yield node.name, "ByteBuf"
        case types.EnumCode():
            yield node.name, "ErrorCode"
        case Nested():
            yield node.name, node.record.__name__
        case types.Counted():
            ((_, element),) = _java_types(node.element)
            yield node.name, f"List<{element}>"
        case Rows():
            for column in node.columns:
                ((name, element),) = _java_types(column)
                yield name, f"List<{element}>"
        case types.Tail():
            yield from _java_types(node.inner)


_CREATED: Final = command_named("SEGMENT_CREATED")


def _mutf8(what: dict[str, Any]) -> Found:
    """Checks a string as the name in a SEGMENT_CREATED, so that both codecs are used."""
    if what["op"] == "encode":
        text = _from_units(what["utf16"]) if "utf16" in what else what["string"]
        if "string" in what and _units(what["string"]) != _units(text):
            yield f"string: {shown(what['string'])} is not {shown(text)}"
        value = _CREATED(0, text)
        for codec in CODECS:
            try:
                found = encode(value, codec=codec)[16:].hex()
            except WireError as error:
                if what.get("ok", True):
                    yield f"encode ({codec}): expected {shown(what['hex'])}, found {shown(error)}"
                continue
            if not what.get("ok", True):
                yield f"encode ({codec}): expected a refusal, found {shown(found)}"
            elif found != what["hex"]:
                yield f"encode ({codec}): expected {shown(what['hex'])}, found {shown(found)}"
        return
    data = bytes.fromhex(what["hex"])
    frame = struct.pack(">iiq", _CREATED.code, 8 + len(data), 0) + data
    for codec in CODECS:
        try:
            read = decode(frame, codec=codec)
        except WireError as error:
            if what["ok"]:
                yield f"decode ({codec}): expected {what['utf16']}, found {shown(error)}"
            continue
        units = _units(read.to_dict()["segment"])
        if not what["ok"]:
            yield f"decode ({codec}): expected a refusal, found {units}"
        elif units != what["utf16"]:
            yield f"decode ({codec}): expected {what['utf16']}, found {units}"
        elif "reencodes" in what and (encode(read) == frame) is not what["reencodes"]:
            yield f"reencodes ({codec}): expected {what['reencodes']}, found {not what['reencodes']}"


def _units(text: str) -> list[int]:
    wide = text.encode("utf-16-be", "surrogatepass")
    return [wide[at] << 8 | wide[at + 1] for at in range(0, len(wide), 2)]


def _from_units(units: list[int]) -> str:
    return struct.pack(f">{len(units)}H", *units).decode("utf-16-be", "surrogatepass")


def _framing(what: dict[str, Any]) -> Found:
    """Checks framing up to a case's first error, where the reference closes the connection and this decoder stops."""
    for codec in CODECS:
        decoder = FrameDecoder(codec=codec)
        for number, step in enumerate(what["steps"]):
            try:
                found, error = decoder.feed(_piece(step)), None
            except WireError as caught:
                found, error = list(caught.decoded), caught
            expected = [{"type": each["type"], "fields": snake(each["fields"])} for each in step["decoded"]]
            commands = [{"type": each.type_name, "fields": each.to_dict()} for each in found]
            where = f"step {number} ({codec})"
            yield from (f"{where}: {difference}" for difference in field_differences(expected, commands))
            yield from (f"{where}: {each}" for each in refusal_difference(step, error))
            if error is not None or "exception" in step:
                break


def _piece(step: dict[str, Any]) -> bytes:
    """Returns the bytes of a step; a frame too long to record is PADDING, of which only the size was kept."""
    size = step["in_len"]
    if step["in"] is None:
        return struct.pack(">ii", -1, size - 8) + bytes(size - 8)
    data = bytes.fromhex(step["in"])
    if len(data) != size:
        raise ValueError(f"in_len is {size} but in has {len(data)} bytes")
    return data


def _container(what: dict[str, Any]) -> Found:
    for count, expected in what["container"].items():
        found = container_of(what["segment"], int(count))
        if found != expected:
            yield f"of {count} containers: expected {expected}, found {found}"


def _conversation(what: dict[str, Any]) -> Found:
    """Checks the commands that a recording has beside its frames' bytes, where they are complete."""
    for number, step in enumerate(what["steps"]):
        for reply in (each for each in step.get("replies", ()) if "fields" in each):
            frame = bytes.fromhex(reply["hex"])
            for codec in CODECS:
                found = decode(frame, codec=codec)
                expected = {"type": reply["type"], "fields": snake(reply["fields"])}
                differences = field_differences(expected, {"type": found.type_name, "fields": found.to_dict()})
                yield from (f"step {number}, decode ({codec}): {difference}" for difference in differences)
        named = step.get("sends") or [step.get("send", {})]
        if step["op"] == "send" and all("raw" in each or _is_whole(each.get("fields")) for each in named):
            sent = bytes.fromhex(step["send_hex"])
            for codec in CODECS:
                written = b"".join(_sent(each, codec) for each in named)
                if written != sent:
                    yield f"step {number}, encode ({codec}): {byte_difference(sent, written)}"


def _is_whole(fields: Any) -> bool:
    return isinstance(fields, dict) and not any(key.endswith(("_len", "_sha256")) for key in fields)


def _sent(what: dict[str, Any], codec: Codec) -> bytes:
    if "raw" in what:
        return bytes.fromhex(what["raw"])
    return encode(command_named(what["type"]).from_dict(snake(what["fields"])), codec=codec)


_CHECKS: Final[dict[Kind, Callable[[dict[str, Any]], Found]]] = {
    Kind.COMMAND: _command,
    Kind.FRAME: _frame,
    Kind.REFUSED_COMMAND: refused_command,
    Kind.SCHEMA: _schema,
    Kind.MUTF8: _mutf8,
    Kind.FRAMING: _framing,
    Kind.APPEND_STREAM: blocks.stream,
    Kind.APPEND_DECODE: blocks.decoding,
    Kind.CONTAINER: _container,
    Kind.CONVERSATION: _conversation,
}
