"""Order, continuation tokens and page sizes of table iteration.

A hash table is iterated in the order of its keys' hashes: the first 16 bytes of SHA-256, compared as two *signed*
64-bit numbers, so 0x80… comes first and 0x7f… last. A continuation token contains the hash of the last returned key:
`00 00 01 00 00000010` and the 16 bytes. A fixed-key table is iterated in the order of its keys' bytes; it refuses
tokens, although each page has one (the last key), and is resumed by range.

Source: `KeyHasher`, `TableIterator`, the two `IteratorStateImpl` and `PravegaRequestProcessor`. Refused: a
malformed token closes the connection (`Unmapped`), a token with an impossible hash is an `IllegalArgument`.
Deliberate differences: the reference also visits hashes of removed keys until its background indexer has seen the
removal, so its last token can name a removed key; here tokens name existing keys. Tokens have no other form here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from hashlib import sha256
from struct import Struct

from sortedcontainers import SortedList

from segstore.server.store.errors import IllegalArgument, Unmapped

PAGE_BYTES = 2 * 1024 * 1024
"""A page ends once its size on the wire reaches this (`PravegaRequestProcessor.MAX_READ_SIZE`)."""

# Overhead of a key, a value and a reply on the wire, used to compute the size of a page.
KEY_OVERHEAD = 16
VALUE_OVERHEAD = 8
REPLY_OVERHEAD = 8

HASH_BYTES = 16
_SIGN = 0x80_00_00_00_00_00_00_00
_TOP = (1 << 64) - 1
_PAIR = Struct(">QQ")
_LENGTH = Struct(">i")
_MANY = 16_384
_HASH_TOKEN_HEADER = bytes.fromhex("0000010000000010")
HASH_TOKEN_BYTES = len(_HASH_TOKEN_HEADER) + HASH_BYTES


def hash_order(key: bytes) -> bytes:
    """Returns 16 bytes whose byte order is the order in which the reference iterates over hashes of keys."""
    high, low = _PAIR.unpack_from(sha256(key).digest())
    high ^= _SIGN
    # The lowest and the highest upper half are reserved for attributes of the segment itself.
    if high == 0:
        high = 1
    elif high == _TOP:
        high = _TOP - 1
    return _PAIR.pack(high, low ^ _SIGN)


def hash_token(order: bytes) -> bytes:
    """Returns the continuation token after a key, given its `hash_order`."""
    high, low = _PAIR.unpack(order)
    return _HASH_TOKEN_HEADER + _PAIR.pack(high ^ _SIGN, low ^ _SIGN)


def hash_of_token(token: bytes) -> bytes:
    """Returns the `hash_order` in a token. Raises `Unmapped`, or `IllegalArgument` for an impossible hash."""
    if len(token) != HASH_TOKEN_BYTES or not token.startswith(_HASH_TOKEN_HEADER):
        raise Unmapped("the continuation token is not one of a hash table")
    high, low = _PAIR.unpack_from(token, len(_HASH_TOKEN_HEADER))
    order = _PAIR.pack(high ^ _SIGN, low ^ _SIGN)
    if not b"\x00" * 7 + b"\x01" <= order[:8] <= b"\xff" * 7 + b"\xfe":
        raise IllegalArgument("keyHash must be at least IteratorState.MIN_HASH and at most IteratorState.MAX_HASH.")
    return order


def fixed_key_token(last_key: bytes) -> bytes:
    """Returns the token of a fixed-key table's page that ends with `last_key` (1 to 256 bytes)."""
    size = len(last_key)
    prefix = bytes((size,)) if size <= 0x7F else (size | 0x8000).to_bytes(2, "big")
    return b"\x00\x00\x01\x00" + _LENGTH.pack(len(prefix) + size) + prefix + last_key


class SortedKeys:
    """The keys of a table in iteration order, maintained from the first iteration on. A table that grows beyond
    `_MANY` keys is sorted then, because otherwise a single later request would have to sort millions of keys.

    keys: the table's keys; the caller changes them and reports each change.
    """

    __slots__ = ("_items", "_keys", "_prefix", "_prefix_size")

    def __init__(self, keys: Collection[bytes], prefix: Callable[[bytes], bytes] | None = None) -> None:
        self._keys = keys
        self._prefix = prefix
        self._prefix_size = len(prefix(b"")) if prefix is not None else 0
        self._items: SortedList[bytes] | None = None  # `prefix(key) + key` of each key
        if len(keys) >= _MANY:
            self._sorted()

    def add(self, key: bytes) -> None:
        """Reports a new key. Must be called before the key is added to the table."""
        if self._items is not None:
            self._items.add(self._item(key))
        elif len(self._keys) >= _MANY:
            self._sorted().add(self._item(key))

    def discard(self, key: bytes) -> None:
        """Reports the removal of a key that was in the table."""
        if self._items is not None:
            self._items.remove(self._item(key))

    def walk(self, start: bytes) -> Iterator[bytes]:
        """Yields the keys at or after `start` in order. start: begins with the prefix, if the table has prefixes.

        The table must not change during the iteration.
        """
        cut = self._prefix_size
        for item in self._sorted().irange(start):
            yield item[cut:]

    def _sorted(self) -> SortedList[bytes]:
        if self._items is None:
            self._items = SortedList(map(self._item, self._keys))
        return self._items

    def _item(self, key: bytes) -> bytes:
        return key if self._prefix is None else self._prefix(key) + key
