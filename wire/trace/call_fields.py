"""The fields of controller calls by path, so that the calls of two runs of one program can be compared.

Some fields differ from run to run: ids that clients and controllers choose, addresses of nodes, times, and delegation
tokens. Ids and addresses are compared by how they are paired (see `Pairing`), times only by their
sign, because 0 and negative times have a meaning of their own. Fields that this version does not know are not compared:
recordings leave them out.

Ids of writers and transactions, and random parts of transient segments' names, occur as fields, in names and in data of
frames, too, as text with or without dashes.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from segstore.wire.endpoint import Endpoint
from segstore.wire.trace.calls import TOKEN, is_message, messages_in, values_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

    from segstore.wire.trace.calls import Call

_CONTROLLERS: Final = "getControllerServerList"
_TIMES: Final = frozenset({"timestamp", "scaleTimestamp"})
_MASK: Final = (1 << 64) - 1


K = TypeVar("K")
_ID: Final = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def take_ids(text: str) -> tuple[str, list[str]]:
    """Splits a text into the text without its ids, and the ids, as 32 lower-case hexadecimal digits."""
    return _ID.sub("*", text), [match.replace("-", "").lower() for match in _ID.findall(text)]


def put_ids(text: str, ids: Mapping[str, str]) -> str:
    """Replaces the ids in a text and keeps their format. ids: old id → new id."""

    def other(match: re.Match[str]) -> str:
        there = match[0]
        replaced = ids.get(there.replace("-", "").lower())
        return there if replaced is None else str(UUID(replaced)) if "-" in there else replaced

    return _ID.sub(other, text)


class Pairing(Generic[K]):
    """One-to-one pairs of keys of two runs. Attributes: right, left: the key of that run for a key of the other run."""

    def __init__(self) -> None:
        self.right: dict[K, K] = {}
        self.left: dict[K, K] = {}

    def fits(self, left: K, right: K) -> bool:
        """Whether two keys are paired with each other, or neither with any."""
        return self.right.get(left, right) == right and self.left.get(right, left) == left

    def pair(self, left: K, right: K) -> None:
        """Pairs two keys that fit."""
        self.right[left], self.left[right] = right, left


class CallField(NamedTuple):
    """A field. value: a number, a text or a truth value. ids: the ids and addresses in it. rest: the value without
    them, which two runs have in common; of a time its sign. secret: whether it is a token.
    """

    value: Any
    ids: tuple[str, ...]
    rest: Any
    secret: bool = False


def fields_of(call: Call) -> dict[str, CallField]:
    """The fields of a call's message that are set, by path, such as `streamInfo.scope` or `segments[0].offset`.

    A transaction id is one field, and so is an address; values of enums are names. A message that is not known or does
    not decode is one field, its bytes in hex.
    """
    if call.content is None:
        text = call.message.hex()
        return {"message": CallField(text, (), text)} if text else {}
    return dict(_fields(call.content, ""))


def _fields(message: Message, path: str) -> Iterator[tuple[str, CallField]]:
    kind = message.DESCRIPTOR.name
    if kind == "TxnId":
        text = str(id_of(message))
        yield path or "txnId", CallField(text, tuple(take_ids(text)[1]), "*")
    elif kind == "NodeUri":
        text = str(Endpoint(message.endpoint, message.port))  # type: ignore[attr-defined]  # checked by its name
        yield path or "endpoint", CallField(text, (text,), "*")
    else:
        for field, value in message.ListFields():
            for at, element in values_in(field, value):
                name = f"{path}.{field.name}{at}" if path else f"{field.name}{at}"
                if is_message(element):
                    yield from _fields(element, name)
                else:
                    yield name, _scalar(field, element)


def _scalar(field: Any, value: Any) -> CallField:
    if field.name == TOKEN:
        return CallField(value, (), "*", secret=True)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        value = value if named is None else named.name
    if field.name in _TIMES:
        return CallField(value, (), (value > 0) - (value < 0))
    if isinstance(value, str):
        return text_field(value)
    if isinstance(value, float) and math.isnan(value):
        return CallField("NaN", (), "NaN")  # which equals itself
    return CallField(value, (), value)


def text_field(text: str) -> CallField:
    """A field of text, in which ids may differ."""
    rest, ids = take_ids(text)
    return CallField(text, tuple(ids), (rest, len(ids)) if ids else rest)


def facts_of(call: Call) -> dict[str, CallField]:
    """The compared facts of a call: method, status and details as gRPC names them, and the fields of its message."""
    facts = {"rpc": call.rpc, "grpc-status": call.status, "grpc-message": call.details}
    fields = {name: text_field(text) for name, text in facts.items() if text}
    if call.omitted:
        fields["omitted"] = CallField(call.omitted, (), call.omitted)
    return fields | fields_of(call)


def id_of(transaction: Any) -> UUID:
    """The UUID in a `TxnId`."""
    return UUID(int=(transaction.highBits & _MASK) << 64 | transaction.lowBits & _MASK)


def names_of_call_fields() -> set[str]:
    """The names of all fields of the controller's messages, and of a call's status and details."""
    from segstore.wire.controller_api import messages

    kinds = list(messages.ServerRequest.DESCRIPTOR.file.message_types_by_name.values())
    return {"grpc-status", "grpc-message", *(field.name for kind in kinds for field in _all_fields(kind))}


def _all_fields(kind: Any) -> Iterator[Any]:
    yield from kind.fields
    for type_ in kind.nested_types:
        yield from _all_fields(type_)


class CallKey(NamedTuple):
    """The key that matching calls share, apart from their ids: the method, and the rest of each field by path."""

    rpc: str
    fields: tuple[tuple[str, Any], ...]


def key_of_call(rpc: str, fields: dict[str, CallField]) -> tuple[CallKey, tuple[str, ...]]:
    """Returns the key of a call, and its ids, without tokens."""
    shown = {path: field for path, field in fields.items() if not field.secret}
    key = CallKey(rpc, tuple((path, field.rest) for path, field in shown.items()))
    return key, tuple(name for field in shown.values() for name in field.ids)


def translated_call(
    call: Call, ids: Mapping[str, str], store: Endpoint, controller: Endpoint, *, keep_tokens: bool = False
) -> bytes:
    """The message of a request or an answer for the other side of a replay, with other ids and addresses, and without
    tokens unless they are kept.

    ids: the trace's id → the other side's id. store, controller: the addresses of the replay.
    """
    if call.content is None:
        return call.message
    shown: Any = type(call.content)()
    shown.CopyFrom(call.content)
    is_of_controllers = call.rpc == _CONTROLLERS and bool(call.status)
    _translate(shown, ids, controller if is_of_controllers else store, keep_tokens)
    if is_of_controllers:
        del shown.nodeURI[1:]
    message: bytes = shown.SerializeToString(deterministic=True)
    return call.message if shown == call.content else message


def _translate(message: Any, ids: Mapping[str, str], node: Endpoint, keep_tokens: bool) -> None:
    kind = message.DESCRIPTOR.name
    if kind == "NodeUri":
        if message.endpoint:
            message.endpoint, message.port = node
        return
    if kind == "TxnId":
        known = ids.get(id_of(message).hex)
        if known is not None:
            message.highBits, message.lowBits = struct.unpack(">qq", bytes.fromhex(known))
        return
    for field, value in message.ListFields():
        if field.name == TOKEN:
            if not keep_tokens:
                message.ClearField(TOKEN)
        elif isinstance(value, str):
            setattr(message, field.name, put_ids(value, ids))
        elif field.type == field.TYPE_STRING:
            value[:] = [put_ids(text, ids) for text in value]
        for inner in messages_in(field, value):
            _translate(inner, ids, node, keep_tokens)
