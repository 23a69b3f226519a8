"""Converts values to events and back.

    orders = MsgspecSerializer(msgspec.json.Encoder(), msgspec.json.Decoder(Order))
    await writer.write(orders.serialize(order), routing_key=order.table)
    async for event, order in Deserialized(events, orders):
        ...

A serializer is any object with the two methods of `Serializer`; readers and writers themselves know only bytes.

Invariant: an event that cannot be deserialized is named by segment and offset, and the reader can continue after it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import msgspec

from segstore.client.errors import BadEvent
from segstore.client.stream import FramedEvent, StreamEvent
from segstore.wire.names import split_segment_id

T = TypeVar("T")
E = TypeVar("E", bound=FramedEvent | StreamEvent)


class Serializer(Protocol[T]):
    """Converts values of one type to bytes and back."""

    def serialize(self, value: T) -> bytes:
        """Returns the content of an event."""
        ...

    def deserialize(self, data: bytes) -> T:
        """Returns the value. Raises ValueError if the data has no value."""
        ...


class JsonSerializer:
    """JSON in UTF-8 without whitespace, for values that `json` can write: lists, dicts, text, numbers, None."""

    def serialize(self, value: Any) -> bytes:
        """Raises TypeError or ValueError for values that JSON cannot represent."""
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    def deserialize(self, data: bytes) -> Any:
        """Raises ValueError."""
        try:
            return json.loads(data)
        except RecursionError as cause:
            raise ValueError("the JSON is nested too deeply") from cause


class MsgspecSerializer(Generic[T]):
    """JSON or MessagePack of typed values, checked against their type, by an encoder and a decoder of msgspec.

    The caller creates them, best when a module is imported, because msgspec inspects a type at its first use.
    """

    def __init__(
        self,
        encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder,
        decoder: msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T],
    ) -> None:
        self._encoder: Final = encoder
        self._decoder: Final = decoder

    def serialize(self, value: T) -> bytes:
        """Raises TypeError for values that msgspec cannot encode."""
        return self._encoder.encode(value)

    def deserialize(self, data: bytes) -> T:
        """Raises ValueError, also for data of another type."""
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError) as cause:
            raise ValueError(f"{cause}") from cause


class Deserialized(Generic[E, T]):
    """Iterates over a reader's events with their values.

    Iteration raises BadEvent for an event without a value; iterating again continues after it.
    """

    def __init__(self, events: AsyncIterator[E], serializer: Serializer[T]) -> None:
        self._events: Final = events
        self._serializer: Final = serializer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[E, T]:
        event = await anext(self._events)
        try:
            return event, self._serializer.deserialize(event.data)
        except ValueError as cause:
            segment = _segment_of(event)
            raise BadEvent(
                f"the event at {event.offset} of {segment} cannot be deserialized: {cause}",
                segment=segment,
                offset=event.offset,
                actual=len(event.data),
            ) from cause


def _segment_of(event: FramedEvent | StreamEvent) -> str:
    if isinstance(event, FramedEvent):
        return event.segment
    epoch, number = split_segment_id(event.segment_id)
    return f"{number}.#epoch.{epoch}"
