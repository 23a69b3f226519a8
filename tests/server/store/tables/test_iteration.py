"""Continuation tokens of tables, byte by byte, and the order of their keys."""

import pytest

from segstore.server.store.errors import IllegalArgument, Unmapped
from segstore.server.store.tables.iteration import fixed_key_token, hash_of_token, hash_order, hash_token
from tests.looped import looped

KEYS = [b"%d" % number for number in range(200)]


@looped(
    ("size", "head"),
    [
        (1, "00000100 00000002 01"),
        (127, "00000100 00000080 7f"),
        (128, "00000100 00000082 8080"),
        (256, "00000100 00000102 8100"),
    ],
)
def test_the_token_of_a_fixed_key_table_is_its_last_key_behind_its_length(size: int, head: str) -> None:
    key = bytes([7]) * size
    assert fixed_key_token(key) == bytes.fromhex(head) + key


def test_the_token_of_a_hash_table_brings_back_the_order_of_its_key() -> None:
    for key in KEYS:
        order = hash_order(key)
        token = hash_token(order)
        assert len(token) == 24
        assert token[:8] == bytes.fromhex("00000100 00000010")
        assert hash_of_token(token) == order
    assert len({hash_order(key) for key in KEYS}) == len(KEYS)


def test_hashes_are_ordered_as_signed_numbers() -> None:
    tokens = [hash_token(order)[8:] for order in sorted(map(hash_order, KEYS))]
    pairs = [tuple(int.from_bytes(token[at : at + 8], signed=True) for at in (0, 8)) for token in tokens]
    assert pairs == sorted(pairs)
    assert pairs[0][0] < 0 < pairs[-1][0]


WHOLE = hash_token(hash_order(b"key"))


@looped("at", range(len(WHOLE)))
def test_a_token_that_is_cut_off_closes_the_connection(at: int) -> None:
    with pytest.raises(Unmapped):
        hash_of_token(WHOLE[:at])


@looped(
    ("token", "kind", "said"),
    [
        (b"\x01" + WHOLE[1:], Unmapped, "not one of a hash table"),
        (b"\x00\x01" + WHOLE[2:], Unmapped, "not one of a hash table"),
        (b"\x00\x00\x00" + WHOLE[3:], Unmapped, "not one of a hash table"),
        (b"\x00\x00\x80" + WHOLE[3:], Unmapped, "not one of a hash table"),
        (WHOLE + b"trailing", Unmapped, "not one of a hash table"),
        (WHOLE[:8] + b"\x80" + bytes(15), IllegalArgument, "keyHash must be at least"),
        (WHOLE[:8] + b"\x7f" + b"\xff" * 15, IllegalArgument, "keyHash must be at least"),
    ],
)
def test_a_token_of_something_else_is_refused(token: bytes, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        hash_of_token(token)
