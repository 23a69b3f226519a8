"""Ids are found in texts and paired one to one."""

from __future__ import annotations

from uuid import UUID

from segstore.wire.names import transaction_name, transient_name
from segstore.wire.trace import Pairing, put_ids, take_ids
from tests.looped import looped

ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


@looped(
    ("text", "rest", "ids"),
    [
        ("scope/stream/0", "scope/stream/0", 0),
        (str(ID), "*", 1),
        (str(ID).upper(), "*", 1),
        (transaction_name("s/t/0", ID), "s/t/0#transaction.*", 1),
        (transient_name("s/t/0", ID, ID.hex), "s/t/0#transient.*.*", 2),
        (f"reader {ID}!", "reader *!", 1),
        (ID.hex[:-1], ID.hex[:-1], 0),
    ],
)
def test_ids_are_taken_out_of_a_text(text: str, rest: str, ids: int) -> None:
    assert take_ids(text) == (rest, [ID.hex] * ids)


def test_a_key_stands_for_one_key_of_the_other_run_both_ways() -> None:
    pairing: Pairing[str] = Pairing()
    assert pairing.fits("a", "x")
    pairing.pair("a", "x")
    assert pairing.fits("a", "x")
    assert not pairing.fits("a", "y")
    assert not pairing.fits("b", "x")
    assert pairing.fits("b", "y")
    assert (pairing.right, pairing.left) == ({"a": "x"}, {"x": "a"})


def test_ids_in_a_text_are_replaced_in_their_form() -> None:
    one, other = "0123456789abcdef" * 2, "f" * 32
    dashed = str(UUID(one))
    text = f"a/{one}.{dashed.upper()}/{'0' * 32}"
    assert put_ids(text, {one: other}) == f"a/{other}.{UUID(other)}/{'0' * 32}"
