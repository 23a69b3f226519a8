"""Where two values differ, for people: the paths of JSON documents, or the text or bytes around the first difference.

Invariants: a text is one line without control characters; it has at most a few hundred characters, and at most
`MOST_PLACES` places are found, however long the payloads.
"""

from __future__ import annotations

import json
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from segstore.wire.inspect.payloads import payload_parts, readable
from segstore.wire.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_PLACES: Final = 2_000
_BEFORE: Final = 24
_SHOWN: Final = 72
"""Number of characters shown: up to `_BEFORE` before the first difference, the rest after it."""
_document: Final = msgspec.json.Decoder().decode


class DifferingPlace(NamedTuple):
    """A place where two values differ. left, right: the values there, as text; None on a side that lacks the place."""

    path: str
    left: str | None
    right: str | None

    def text(self, of_left: str, of_right: str) -> str:
        """The place in words; the arguments say where each value is, such as "in A"."""
        path = self.path or "bytes not read"
        if self.left is not None and self.right is not None:
            return f"{path}: {self.left} {of_left}, {self.right} {of_right}"
        side, value = (of_right, self.right) if self.left is None else (of_left, self.left)
        return f"{path}: differs" if value is None else f"{path}: only {side} ({value})"


def differing_places(field: str, left: Any, right: Any) -> Iterator[DifferingPlace]:
    """The places in which two values of a field differ; None on a side without it. field: the start of their paths.

    Payloads, which are bytes, are compared event by event, and by path in two JSON documents, else by their first
    difference: as text in two texts, else in hex. So are texts. Other values are shown as JSON.
    """
    if isinstance(left, bytes) and isinstance(right, bytes):
        places = list(islice(_events_differ(field, left, right), MOST_PLACES))
        yield from places or _contents_differ(field, left, right)
    elif isinstance(left, str) and isinstance(right, str):
        yield DifferingPlace(field, *excerpts(left, right))
    else:
        yield DifferingPlace(field, *(None if side is None else _shown(side) for side in (left, right)))


def _shown(value: Any) -> str:
    return excerpts(value)[0] if isinstance(value, str | bytes) else _value(value)


def _events_differ(field: str, left: bytes, right: bytes) -> Iterator[DifferingPlace]:
    """Yields the differences of two payloads of framed events, event by event; nothing for other payloads."""
    sides = [list(payload_parts(payload)) for payload in (left, right)]
    if any(not parts or parts[0].kind == "data" for parts in sides):
        return
    for at, pair in enumerate(zip_longest(*sides)):
        one, other = (None if part is None else bytes(part.data) for part in pair)
        if one is None or other is None:
            yield DifferingPlace(f"{field}[{at}]", *(None if side is None else _shown(side) for side in (one, other)))
        elif one != other:
            yield from _contents_differ(f"{field}[{at}]", one, other)


def _contents_differ(field: str, left: bytes, right: bytes) -> list[DifferingPlace]:
    """Returns the differences of two payloads or events: by path in two JSON documents, else the first difference."""
    places = list(islice(_documents_differ(field, left, right), MOST_PLACES))
    return places or [DifferingPlace(field, *excerpts(left, right))]


def _documents_differ(field: str, left: bytes, right: bytes) -> Iterator[DifferingPlace]:
    """Yields the differences of two JSON objects or arrays; nothing for other values."""
    try:
        pending: list[tuple[str, Any, Any]] = [(field, _document(left), _document(right))]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if not all(isinstance(document, dict | list) for document in pending[0][1:]):
        return
    missing = object()
    while pending:
        path, one, other = pending.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            keys = reversed([*one, *(key for key in other if key not in one)])
            pending += [
                (f"{path}.{printable(key, 40)}", one.get(key, missing), other.get(key, missing)) for key in keys
            ]
        elif isinstance(one, list) and isinstance(other, list):
            both = range(max(len(one), len(other)) - 1, -1, -1)
            sides = [one + [missing] * len(other), other + [missing] * len(one)]
            pending += [(f"{path}[{at}]", sides[0][at], sides[1][at]) for at in both]
        elif one is missing or other is missing:
            yield DifferingPlace(path, *(None if side is missing else _value(side) for side in (one, other)))
        elif type(one) is not type(other) or one != other:
            long = isinstance(one, str) and isinstance(other, str) and max(len(one), len(other)) > _SHOWN
            yield DifferingPlace(path, *(excerpts(one, other) if long else map(_value, (one, other))))


def _value(value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return f"{'an object' if isinstance(value, dict) else 'an array'} of {len(value)}"
    return printable(json.dumps(value, ensure_ascii=False), _SHOWN)


def excerpts(*payloads: str | bytes) -> list[str]:
    """Formats one or two payloads: as text if all are text, else in hex; two payloads around their first difference."""
    texts: list[Any] = [payload if isinstance(payload, str) else readable(payload, whole=True) for payload in payloads]
    if None in texts:
        texts = list(payloads)
    shown = _SHOWN if isinstance(texts[0], str) else _SHOWN // 2
    start = 0
    if len(texts) > 1 and max(map(len, texts)) > shown:
        pairs = enumerate(zip(*texts, strict=False))
        common = next((at for at, (one, other) in pairs if one != other), min(map(len, texts)))
        start = max(0, common - _BEFORE)
    return [_excerpt(text, start, start + shown) for text in texts]


def _excerpt(text: Any, start: int, stop: int) -> str:
    piece = text[start:stop]
    shown = printable(piece) if isinstance(text, str) else piece.hex()
    before, after = "…" if start else "", "…" if start + len(piece) < len(text) else ""
    unit = "characters" if isinstance(text, str) else "bytes"
    return f"'{before}{shown}{after}'" + (f" ({len(text)} {unit})" if len(piece) < len(text) else "")
