"""The synchronous classes of `segstore.client.serializers`.

Written by tools/make_sync.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Generic, Self, TypeVar

from segstore.client import Deserialized as AsyncDeserialized
from segstore.client.serializers import Serializer
from segstore.client.stream import FramedEvent, StreamEvent
from segstore.client.sync.proxies import Proxy, parts_of, step

E = TypeVar("E", bound=FramedEvent | StreamEvent)
T = TypeVar("T")


class Deserialized(Proxy[AsyncDeserialized[E, T]], Generic[E, T]):
    """Iterates over a reader's events with their values.

    Iteration raises BadEvent for an event without a value; iterating again continues after it.
    """

    def __init__(self, events: Proxy[AsyncIterator[E]], serializer: Serializer[T]) -> None:
        inner, lease = parts_of(events)
        super().__init__(AsyncDeserialized(inner, serializer), lease)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[E, T]:
        return step(self._inner, self._lease)
