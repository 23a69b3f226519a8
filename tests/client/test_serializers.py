"""Serializers: values survive, what is none is refused, and an event without a value is named and can be skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from segstore.client import Deserialized, GroupEvent, JsonSerializer, MsgspecSerializer, Serializer, StreamEvent
from segstore.client.errors import BadEvent
from segstore.wire.names import segment_id
from tests.looped import looped


class Order(msgspec.Struct, frozen=True):
    table: int
    drink: str


JSON = MsgspecSerializer(msgspec.json.Encoder(), msgspec.json.Decoder(Order))
MESSAGE_PACK = MsgspecSerializer(msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Order))
ORDER = Order(7, "thé")


@looped(
    ("serializer", "value", "data"),
    [
        (JsonSerializer(), {"drink": "thé", "table": [7, None]}, '{"drink":"thé","table":[7,null]}'.encode()),
        (JSON, ORDER, '{"table":7,"drink":"thé"}'.encode()),
        (MESSAGE_PACK, ORDER, b"\x82\xa5table\x07\xa5drink\xa4th\xc3\xa9"),
    ],
)
def test_a_value_survives(serializer: Serializer[Any], value: Any, data: bytes) -> None:
    assert serializer.serialize(value) == data
    assert serializer.deserialize(data) == value


@looped(
    ("serializer", "data", "says"),
    [
        (JsonSerializer(), b"{", "line 1 column 2"),
        (JsonSerializer(), b"\xff", "invalid start byte"),
        (JsonSerializer(), b"[" * 100_000, "nested too deeply"),
        (JSON, b'{"table":"7"}', r"Expected `int`, got `str` - at `\$.table`"),
        (JSON, b"", "Input data was truncated"),
        (MESSAGE_PACK, b"\x01", "Expected `object`, got `int`"),
    ],
)
def test_data_without_a_value_is_refused(serializer: Serializer[Any], data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        serializer.deserialize(data)


@looped("write", [lambda: JsonSerializer().serialize(float("nan")), lambda: JsonSerializer().serialize(b"bytes")])
def test_a_value_that_json_has_not_is_refused(write: Callable[[], bytes]) -> None:
    with pytest.raises((ValueError, TypeError), match="JSON"):
        write()


class Events:
    """An iterator over given events, as a reader is one."""

    def __init__(self, *events: Any) -> None:
        self._left = list(events)

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Any:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)


@looped(
    ("bad", "segment"),
    [
        (StreamEvent(b"tea", 17, segment_id(2, 3)), "3.#epoch.2"),
        (GroupEvent(b"tea", 17, "a/s/3.#epoch.2"), "a/s/3.#epoch.2"),
    ],
)
async def test_an_event_without_a_value_is_named_and_reading_continues_after_it(bad: Any, segment: str) -> None:
    good = StreamEvent(b"5", 28, 0)
    values = Deserialized(Events(bad, good), JsonSerializer())
    with pytest.raises(BadEvent, match="cannot be deserialized: Expecting value") as found:
        await anext(values)
    assert found.value.facts() == {"segment": segment, "actual": 3, "offset": 17}
    assert [value async for value in values] == [(good, 5)]
