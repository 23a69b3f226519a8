"""Controller calls in traces: the data of CALL records, one for the request of a call and one for its answer.

The data is a JSON object. Messages are kept as bytes, so a trace does not depend on the version of the controller's
API; for methods that `segstore.wire.controller_api` declares, they are decoded on demand. Calls are on connection
`CONTROLLER`, because gRPC shares connections between callers; `Call.number` pairs an answer with its request.

Invariant: `Call.unpack` restores what `pack` wrote; anything else is None. Protobuf is imported only to decode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from segstore.wire.printable import printable
from segstore.wire.trace.blocks import Direction, event_data

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

CONTROLLER: Final = 0
"""The connection number of controller calls; connections to stores count from 1."""
MOST_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Longer messages are not kept, only their size."""
_OK: Final = "OK"
_DONE: Final = frozenset({"SUCCESS", "SCALE_SUCCESS"})
_OUTCOMES: Final = ("status", "result", "state")
_GOES_WELL: Final = frozenset({"", "OK", "STARTED", "IN_PROGRESS"})
"""Outcomes of calls that have not failed; "" of a request."""
_ANSWERS: Final = {
    "checkTransactionState": frozenset({"OPEN", "COMMITTING", "COMMITTED", "ABORTING", "ABORTED"}),
    "pingTransaction": frozenset({"COMMITTED", "ABORTED"}),
}
"""By method, the outcomes that are states of a transaction, which the reference's client returns to its caller."""
TOKEN: Final = "delegationToken"
"""The name of the field of a delegation token in all messages."""
_SHOWN_TEXT: Final = 96
_SHOWN_PARTS: Final = 4
"""Characters of a text, and elements of a list, that a summary shows."""
_SECRET_KEYS: Final = ("auth", "token", "secret", "passw", "cookie", "key", "credential", "session")


class Call(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, dict=True):
    """The request or the answer of a controller call.

    number: from 1; the same for a request and its answer. rpc: the method's name. message: the protobuf message; empty
    for a call that failed. metadata: of the request or the trailing metadata of the answer; values of repeated keys are
    joined with ", ". peer: gRPC's name of the client, of a request. status: gRPC's status code by name, of an answer;
    "" for a request. details: of the status. omitted: size of a message longer than `MOST_MESSAGE_BYTES`.
    """

    number: int = msgspec.field(name="call")
    rpc: str
    message: bytes = b""
    metadata: Mapping[str, str] = {}
    peer: str = ""
    status: str = ""
    details: str = ""
    omitted: int = 0

    def pack(self) -> bytes:
        """Returns the data of a CALL record."""
        size = len(self.message)
        recorded = self if size <= MOST_MESSAGE_BYTES else replace(self, message=b"", omitted=size)
        return event_data(**{"message": "", **msgspec.to_builtins(recorded)})

    @classmethod
    def unpack(cls, data: bytes) -> Call | None:
        """Reads the data of a CALL record; None if it is not that."""
        try:
            return _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    @cached_property
    def content(self) -> Message | None:
        """The decoded message; None if its method is not known or it does not decode."""
        from google.protobuf.message import DecodeError

        from segstore.wire.controller_api import METHODS

        method = METHODS.get(self.rpc)
        if method is None or self.omitted or (self.status and self.status != _OK):
            return None
        kind = method.response if self.status else method.request
        try:
            return kind.FromString(self.message)
        except DecodeError:
            return None

    @property
    def fields(self) -> dict[str, Any] | None:
        """The message's fields as JSON values, with the names of the `.proto` file, if they represent it fully."""
        from google.protobuf.json_format import Error, MessageToDict, ParseDict

        if self.content is None:
            return None
        fields = MessageToDict(self.content, preserving_proto_field_name=True)
        try:
            again = ParseDict(fields, type(self.content)()).SerializeToString(deterministic=True)
        except Error:
            return None  # it has unknown values of an enum
        return fields if again == self.message else None

    @property
    def outcome(self) -> str:
        """The status of an answer; if gRPC's status is OK, the answer's own, such as STREAM_EXISTS.

        OK for success, or if the answer has no status of its own. "" for a request.
        """
        if self.status != _OK or self.content is None:
            return self.status
        field = _status_field(self.content)
        value = None if field is None else field.enum_type.values_by_number.get(getattr(self.content, field.name))
        return _OK if value is None or value.name in _DONE else value.name

    @property
    def failed(self) -> bool:
        """Whether it is the answer of a call that failed; the state of a transaction is no failure."""
        is_state = self.status == _OK and self.outcome in _ANSWERS.get(self.rpc, ())
        return self.outcome not in _GOES_WELL and not is_state

    @cached_property
    def streams(self) -> tuple[tuple[str, str], ...]:
        """Scope and stream of everything that the message names, in order; an empty stream where it names a scope."""
        return () if self.content is None else tuple(dict.fromkeys(_named(self.content)))

    @property
    def named(self) -> tuple[str, ...]:
        """The names in the message: streams as scope/stream, and scopes alone."""
        return tuple(f"{scope}/{stream}" if stream else scope for scope, stream in self.streams)

    def __str__(self) -> str:
        return self.summary()

    def summary(self, *, full: bool = False) -> str:
        """Returns one line: method, fields, and of an answer its outcome.

        full: whether long texts and lists are shown whole.
        """
        fields, size = self.fields, len(self.message) or self.omitted
        details = self.details
        if not full:
            fields, details = _shortened(fields), _shortened(details)
        shown = _flat(fields) if fields is not None else f"{size} bytes" if size else ""
        return " ".join(part for part in (self.rpc, self.outcome, details, shown) if part)


_decode: Final = msgspec.json.Decoder(Call).decode


@cache
def outcomes() -> frozenset[str]:
    """Returns all outcomes of answers: gRPC's statuses, and statuses in the answers' messages."""
    from segstore.wire.controller_api import METHODS, STATUSES

    fields = [field for method in METHODS.values() if (field := _status_field(method.response)) is not None]
    named = {name for field in fields for name in field.enum_type.values_by_name}
    return frozenset({_OK, *STATUSES, *named} - _DONE)


def _status_field(answer: Message | type[Message]) -> Any:
    """Returns the descriptor of the field with an answer's status, or None."""
    fields = (answer.DESCRIPTOR.fields_by_name.get(name) for name in _OUTCOMES)
    return next((field for field in fields if field is not None and field.enum_type is not None), None)


def message_of(rpc: str, direction: Direction, fields: Mapping[str, Any]) -> bytes:
    """Encodes the message of a method from its fields, as `Call.fields` gives them. Raises ValueError."""
    from segstore.wire.controller_api import METHODS

    method = METHODS.get(rpc)
    if method is None:
        raise ValueError(f"the controller has no method {rpc!r}")
    return with_fields((method.request if direction is Direction.REQUEST else method.response)(), fields)


def with_fields(message: Message, fields: Mapping[str, Any]) -> bytes:
    """Encodes a message after replacing fields, given as JSON values. Raises ValueError."""
    from google.protobuf.json_format import Error, ParseDict

    for name in fields:
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    try:
        encoded: bytes = ParseDict(dict(fields), message).SerializeToString(deterministic=True)
    except (Error, SystemError) as cause:  # SystemError for surrogates
        raise ValueError(" ".join(str(cause).split())) from cause
    return encoded


def redacted_call(call: Call) -> Call:
    """Returns the call without secrets: delegation tokens and values of such metadata become asterisks.

    A message that does not decode is left out, because it may hold a token.
    """
    metadata = {key: "*" * len(value) if _is_secret(key) else value for key, value in call.metadata.items()}
    if call.content is None:
        return replace(call, message=b"", metadata=metadata, omitted=call.omitted or len(call.message))
    shown = type(call.content)()
    shown.CopyFrom(call.content)
    size = shown.ByteSize()
    shown.DiscardUnknownFields()  # a newer version's token may be among them
    if not _hide(shown) and shown.ByteSize() == size:
        return replace(call, metadata=metadata)
    return replace(call, message=shown.SerializeToString(deterministic=True), metadata=metadata)


def _is_secret(key: str) -> bool:
    return any(word in key.casefold() for word in _SECRET_KEYS)


def _hide(message: Message) -> bool:
    """Overwrites tokens; returns whether there are any."""
    hidden = False
    for field, value in message.ListFields():
        if field.name == TOKEN:
            setattr(message, TOKEN, "*" * len(value))
            hidden = True
        for inner in messages_in(field, value):
            hidden = _hide(inner) or hidden
    return hidden


def messages_in(field: Any, value: Any) -> Iterator[Message]:
    """Yields the messages in the value of a message's field."""
    return (element for _, element in values_in(field, value) if is_message(element))


def values_in(field: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the values of a message's field, each with its place in a list or a map, "" for a single value."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        yield from ((f"[{key}]", value[key]) for key in sorted(value))
    elif isinstance(value, str | bytes | bool | int | float) or is_message(value):
        yield "", value
    else:
        yield from ((f"[{number}]", element) for number, element in enumerate(value))


def is_message(value: Any) -> bool:
    """Whether a value of a field is a message."""
    return hasattr(value, "ListFields")


def _named(message: Message) -> Iterator[tuple[str, str]]:
    fields = message.DESCRIPTOR.fields_by_name
    if "scope" in fields and fields["scope"].message_type is None:
        stream = next((getattr(message, name) for name in ("stream", "streamName") if name in fields), "")
        yield str(message.scope), str(stream)  # type: ignore[attr-defined]  # checked
    for field, value in message.ListFields():
        for inner in messages_in(field, value):
            yield from _named(inner)


def _shortened(value: Any) -> Any:
    match value:
        case str() if len(value) > _SHOWN_TEXT:
            return f"{value[:_SHOWN_TEXT]}… ({len(value)} characters)"
        case dict():
            return {_shortened(name): _shortened(element) for name, element in value.items()}
        case list():
            more = [f"… {len(value)} in all"] if len(value) > _SHOWN_PARTS else []
            return [*map(_shortened, value[:_SHOWN_PARTS]), *more]
    return value


def _flat(fields: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={printable(json.dumps(value, ensure_ascii=False))}" for name, value in fields.items())
