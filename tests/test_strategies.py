"""The strategies cover the schema: every command, every kind of node, both sides of every bound."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from segstore.wire import COMMANDS, Command, encode
from segstore.wire.schema import encode_mutf8
from segstore.wire.schema import lowering as low
from segstore.wire.schema.modified_utf8 import MAX_STRING_BYTES
from tests import strategies

UNSAVED = settings(database=None)


@pytest.mark.parametrize("cls", COMMANDS.values(), ids=lambda cls: cls.type_name)
def test_every_command_can_be_drawn_and_what_is_drawn_can_be_encoded(cls: type[Command]) -> None:
    @settings(max_examples=10)
    @given(strategies.command_of(cls))
    def drawn(value: Command) -> None:
        assert type(value) is cls
        assert encode(value)[:4] == cls.code.to_bytes(4, "big", signed=True)

    drawn()


def test_a_kind_of_node_that_has_no_strategy_is_an_error() -> None:
    class Novel(low.Node, frozen=True):
        pass

    for strategy_of in (strategies._taken, strategies._refused):
        with pytest.raises(TypeError, match="no strategy for Novel"):
            strategy_of(Novel("novel"))


@pytest.mark.parametrize(
    "wanted",
    [
        lambda text: text == "",
        lambda text: "\0" in text,
        lambda text: any("\ud800" <= each <= "\udfff" for each in text),
        lambda text: any(each > "\uffff" for each in text),
        lambda text: len(encode_mutf8(text)) == MAX_STRING_BYTES,
    ],
    ids=["empty", "NUL", "lone surrogate", "supplementary character", "longest"],
)
def test_texts_reach_every_corner(wanted: Callable[[str], bool]) -> None:
    found: list[str] = []

    @settings(max_examples=500, database=None)
    @given(strategies.texts())
    def draw(text: str) -> None:
        if wanted(text):
            found.append(text)

    draw()
    assert found


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_payloads_come_in_every_kind_of_buffer(kind: type) -> None:
    found = find(strategies.buffers(), lambda data: type(data) is kind and len(data) > 0, settings=UNSAVED)
    assert type(found) is kind


def test_integers_stay_in_their_range_and_reach_its_ends() -> None:
    for bits in (7, 31, 63):
        for bound in (-(1 << bits), (1 << bits) - 1):
            assert find(strategies.integers(bits), lambda n, bound=bound: n == bound, settings=UNSAVED)
            with pytest.raises(NoSuchExample):
                find(
                    strategies.integers(bits),
                    lambda n, bits=bits: not -(1 << bits) <= n < 1 << bits,
                    settings=settings(max_examples=200, database=None),
                )


@given(st.data(), st.binary(min_size=1, max_size=60))
def test_a_mutation_gives_bytes(data: st.DataObject, original: bytes) -> None:
    assert isinstance(data.draw(strategies.mutated(original)), bytes)
