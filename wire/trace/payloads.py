"""Payloads as filters see them: the events of appends and reads, the keys and values of tables.

`data ~ "order 17"` tests each of them, `data[0]` the first one, `data.city` the field `city` of JSON documents. A
pattern may match anywhere, numbers are compared as doubles, and objects and arrays have no value.

Invariant: at most the first `MOST_BYTES` of a payload are examined.
"""

from __future__ import annotations

import json
import re
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import msgspec

from segstore.wire.codec import HEADER_BYTES
from segstore.wire.commands import PartialEvent
from segstore.wire.inspect import payload_parts
from segstore.wire.schema import Elements
from segstore.wire.schema import lowering as low

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from segstore.wire.blocks import Append
    from segstore.wire.commands import AppendBlock, AppendBlockEnd
    from segstore.wire.schema import Buffer, Command

MOST_BYTES: Final = 1 << 20
"""More than writers put into one append block."""
TERMS: Final = 100
"""Terms as which a comparison of payloads counts, because it takes longer than others."""
SIGNS: Final = ("=", "!=", "~", "!~")
SIGNS_OF_VALUES: Final = (*SIGNS, "<", "<=", ">", ">=")
_PATH: Final = re.compile(r"data(?:\[(\d{1,9})\])?((?:\.[^.\[\]]+|\[\d{1,9}\])*)", re.IGNORECASE | re.ASCII)
_KEY: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]", re.ASCII)
_LITERAL: Final = re.compile(r"[^*?\[]*")
_HEX: Final = re.compile(r"0x((?:[0-9a-f]{2})+)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_WORDS: Final = {True: "true", False: "false", None: "null"}


class Payload:
    """A copy of the payload of a command or an append. size: in bytes."""

    __slots__ = ("_data", "_values", "size")

    def __init__(self, item: Command | Append | None = None, block: AppendBlock | None = None) -> None:
        data: Any = getattr(item, "data", None) if block is None else joined(block, item)  # type: ignore[arg-type]
        self._data = b"" if data is None else bytes(data if len(data) <= MOST_BYTES else memoryview(data)[:MOST_BYTES])
        self._values = tuple(bytes(each) for each in _bounded(_nested(item))) if data is None else ()
        self.size = len(self._data) + sum(map(len, self._values))

    def parts(self) -> tuple[bytes, ...]:
        """The events, or the bytes that are none, and the keys and values."""
        events = (each.data for each in payload_parts(self._data) if each.kind != "padding")
        return (*(bytes(each) for each in events if each), *self._values)

    def __repr__(self) -> str:
        return f"<{self.size} bytes>"


def joined(block: AppendBlock, end: AppendBlockEnd) -> Buffer:
    """The data of an append: the whole events of its block, and the event that its end completes."""
    data, whole = memoryview(block.data), end.size_of_whole_events
    if not 0 <= whole <= len(data) - HEADER_BYTES:
        return data[: max(whole, 0)]
    code, size = struct.unpack_from(">ii", data, whole)
    if code != PartialEvent.code:
        return data[:whole]
    start = whole + HEADER_BYTES
    return b"".join((data[:whole], data[start : start + max(size, 0)], end.data))


def _nested(item: Any) -> Iterator[Buffer]:
    """The fields `data` within fields of a command, such as those of keys and values."""
    for name in item.__struct_fields__ if isinstance(item, msgspec.Struct) else ():
        value = getattr(item, name)
        for each in value if isinstance(value, (tuple, list, Elements)) else (value,):
            if isinstance(each, msgspec.Struct):
                data = getattr(each, "data", b"")
                if len(data):
                    yield data
                yield from _nested(each)


def _bounded(values: Iterable[Buffer]) -> Iterator[Buffer]:
    left = MOST_BYTES
    for each in values:
        yield memoryview(each)[:left]
        left -= len(each)
        if left <= 0:
            return


NO_PAYLOAD: Final = Payload()


def has_payload(nodes: Iterable[low.Node]) -> bool:
    """Whether commands with these fields may have a payload."""
    for node in nodes:
        if node.name == "data" and isinstance(node, low.Data | low.Remainder | low.Sized):
            return True
        match node:
            case low.Structure(nodes=inside) if has_payload(inside):
                return True
            case low.Many(element=element) if has_payload((element,)):
                return True
    return False


class Path(NamedTuple):
    """Part of a payload. event: its number, None for all. keys: the way into a JSON document; empty for all bytes."""

    event: int | None
    keys: tuple[str | int, ...]

    @property
    def signs(self) -> tuple[str, ...]:
        """The operators that may follow."""
        return SIGNS_OF_VALUES if self.keys else SIGNS


def path_of(word: str) -> Path | None:
    """Parses `data`, `data[0]` or `data.city`; None for another word."""
    found = _PATH.fullmatch(word)
    if found is None:
        return None
    keys = tuple(each[1] if each[2] is None else int(each[2]) for each in _KEY.finditer(found[2]))
    return Path(None if found[1] is None else int(found[1]), keys)


def bytes_of(word: str) -> bytes | None:
    """The bytes of `0x0aff`; None for another word."""
    found = _HEX.fullmatch(word)
    return None if found is None else bytes.fromhex(found[1])


def number_of(text: str) -> float | None:
    """The number of a text in JSON; None for another text."""
    return float(text) if _NUMBER.fullmatch(text) else None


def has_value(path: Path, holds: Callable[[Any], bool], *, negated: bool) -> Callable[[Any], bool]:
    """Tests whether a payload, or a value in it, holds; or whether there are some and none does."""

    def test(subject: Any) -> bool:
        payloads: Sequence[bytes] = subject.payloads
        if path.event is not None:
            payloads = payloads[path.event : path.event + 1]
        values = list(_values(payloads, path.keys)) if path.keys else payloads
        return bool(values) and any(map(holds, values)) != negated

    return test


def is_text(text: str) -> Callable[[Any], bool]:
    """Compares a payload, or a value of a JSON document, with a text."""
    data, number = text.encode("utf-8", "surrogatepass"), number_of(text)

    def holds(value: Any) -> bool:
        if isinstance(value, float):
            return value == number
        return bool((_WORDS[value] if value is None or isinstance(value, bool) else value) in (text, data))

    return holds


def contains(text: str, matches: Callable[[str], bool]) -> Callable[[Any], bool]:
    """Looks for a text as it is, and for the glob that it may be."""
    data, is_glob, as_glob = text.encode("utf-8", "surrogatepass"), not _LITERAL.fullmatch(text), matching(matches)

    def holds(value: Any) -> bool:
        is_there = data in value if isinstance(value, bytes) else isinstance(value, str) and text in value
        return is_there or (is_glob and as_glob(value))

    return holds


def matching(matches: Callable[[str], bool]) -> Callable[[Any], bool]:
    """Looks for a pattern."""

    def holds(value: Any) -> bool:
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return isinstance(text, str) and matches(text)

    return holds


def _refused(constant: str) -> NoReturn:
    """Refuses NaN and infinities, which JSON does not have."""
    raise ValueError(constant)


def _values(payloads: Iterable[bytes], keys: tuple[str | int, ...]) -> Iterator[Any]:
    for each in payloads:
        try:
            value = json.loads(each.decode(), parse_int=float, parse_constant=_refused)
        except (ValueError, RecursionError):
            continue
        for key in keys:
            if isinstance(value, list) and isinstance(key, int) and key < len(value):
                value = value[key]
            elif isinstance(value, dict) and key in value:
                value = value[str(key)]
            else:
                break
        else:
            if not isinstance(value, dict | list):
                yield value
