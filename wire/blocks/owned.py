"""Copies values that view a shared buffer, so that they outlive it."""

from __future__ import annotations

from typing import Any

import msgspec

_ITEM_BYTES = 64


def owned(value: Any) -> tuple[Any, int]:
    """A copy of a command, an append or a field whose payloads are `bytes`; the size of its payloads and names in
    bytes. Values without a view are returned as they are."""
    if isinstance(value, memoryview):
        return bytes(value), value.nbytes
    if isinstance(value, tuple | list):
        items = [owned(element) for element in value]
        return type(value)(copy for copy, _ in items), sum(size + _ITEM_BYTES for _, size in items)
    if isinstance(value, msgspec.Struct):
        fields = [owned(getattr(value, name)) for name in value.__struct_fields__]
        return type(value)(*(copy for copy, _ in fields)), sum(size for _, size in fields)
    return value, len(value) if isinstance(value, (str, bytes)) else 0
