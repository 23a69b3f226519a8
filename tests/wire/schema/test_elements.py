"""Long lists: read lazily, they are what they would be as tuples, and are refused for the same reasons.

The bound from which a list is long is lowered here, so that small frames take the way of long ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import COMMANDS, HEADER_BYTES, Command, TableEntriesUpdated, decode, encode
from segstore.wire.codec.generate import REFUSALS, compiler, decoder
from segstore.wire.schema import EAGER_ELEMENTS, Elements, schema, types
from segstore.wire.schema import lowering as low
from tests.looped import looped
from tests.strategies import as_read, command_of, examples, framed, mutated
from tests.wire.agreement import EACH, outcome

LISTED = [cls for cls in COMMANDS.values() if any(kind in repr(low.lower(cls.parts)) for kind in ("Many(", "Table("))]
CLASSES = looped("cls", LISTED)


@pytest.fixture(scope="module", autouse=True)
def lists_are_soon_long() -> Iterator[None]:
    with mock.patch.object(types, "EAGER_ELEMENTS", 1), mock.patch.object(decoder, "EAGER_ELEMENTS", 1):
        yield


def eagerly(read: Callable[[], Any]) -> Any:
    with mock.patch.object(types, "EAGER_ELEMENTS", 1 << 31):
        return read()


def lists_of(value: Any) -> list[Any]:
    found = []
    for name in value.__struct_fields__:
        each = getattr(value, name)
        if isinstance(each, (tuple, Elements)):
            found.append(each)
        elif isinstance(each, schema.WireStruct):
            found += lists_of(each)
    return found


def generated(cls: type[Command]) -> list[Callable[[bytes], Any]]:
    decode = compiler.make_decoder(cls)
    return [
        lambda frame: decode(memoryview(b"<" + frame + b">" * 40), 9, 1 + len(frame)),
        lambda frame: decode(memoryview(frame), HEADER_BYTES, len(frame)),
    ]


@CLASSES
def test_a_long_list_is_what_a_short_one_is(cls: type[Command]) -> None:
    ways = [lambda frame: schema.parse(cls, frame[HEADER_BYTES:]), *generated(cls)]

    @examples(15)
    @given(command_of(cls))
    def holds(value: Command) -> None:
        frame = encode(value)
        for read in ways:
            found = read(frame)
            assert found == as_read(value)
            assert as_read(value) == found
            assert found.to_dict() == as_read(value).to_dict()
            assert encode(found) == encode(found, codec="construct") == encode(as_read(value))
            for each in lists_of(found):
                assert isinstance(each, Elements) == (len(each) > 1)

    holds()


@CLASSES
def test_a_long_list_is_refused_where_and_why_a_short_one_is(cls: type[Command]) -> None:
    ways = generated(cls)

    def agrees(body: bytes) -> None:
        expected = eagerly(lambda: outcome(lambda: schema.parse(cls, body)))
        found = outcome(lambda: schema.parse(cls, body))
        assert found == expected, body.hex()
        for read in ways:
            try:
                value = read(framed(cls.code, body))
            except REFUSALS:
                continue
            assert ("is", value) == expected, body.hex()
            assert value.to_dict() == expected[1].to_dict()

    @examples(30)
    @given(command_of(cls).flatmap(lambda value: mutated(encode(value)[HEADER_BYTES:])))
    def any_mutation(body: bytes) -> None:
        agrees(body)

    @examples(5)
    @given(command_of(cls).filter(lambda value: len(encode(value)) < 250))
    def any_truncation(value: Command) -> None:
        body = encode(value)[HEADER_BYTES:]
        for cut in range(len(body)):
            agrees(body[:cut])

    any_mutation()
    any_truncation()


def elements(items: list[int]) -> Elements[int]:
    return Elements(lambda: ((item, at + 1) for at, item in enumerate(items)), len(items), len(items))


@given(st.lists(st.integers(0, 5), max_size=9), st.data())
def test_elements_behave_as_a_tuple(items: list[int], data: st.DataObject) -> None:
    lazy, eager = elements(items), tuple(items)
    assert (len(lazy), list(lazy), list(lazy)) == (len(items), items, items)
    assert lazy == eager
    assert eager == lazy
    assert lazy == items
    assert lazy == elements(items)
    assert lazy != (*items, 1)
    assert lazy != "text"
    assert hash(lazy) == hash(eager)
    assert list(reversed(lazy)) == items[::-1]
    assert (3 in lazy, lazy.count(3)) == (3 in items, items.count(3))
    cut = data.draw(st.slices(len(items)))
    assert tuple(lazy[cut]) == eager[cut]
    for index in range(-len(items), len(items)):
        assert lazy[index] == eager[index]
    for index in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            lazy[index]


@given(st.lists(st.tuples(st.integers(), st.text()), max_size=5))
def test_columns_of_rows_are_elements_of_their_own(rows: list[tuple[int, str]]) -> None:
    lazy: Elements[tuple[int, str]] = Elements(lambda: ((row, 0) for row in rows), len(rows), 0)
    assert (list(lazy.column(0)), list(lazy.column(1))) == ([row[0] for row in rows], [row[1] for row in rows])


def test_a_list_becomes_long_above_the_bound() -> None:
    with (
        mock.patch.object(types, "EAGER_ELEMENTS", EAGER_ELEMENTS),
        mock.patch.object(decoder, "EAGER_ELEMENTS", EAGER_ELEMENTS),
    ):
        for codec in EACH:
            for count, kind in ((EAGER_ELEMENTS, tuple), (EAGER_ELEMENTS + 1, Elements)):
                frame = encode(TableEntriesUpdated(1, tuple(range(count))))
                found = decode(frame, codec=codec)
                assert isinstance(found, TableEntriesUpdated)
                assert type(found.updated_versions) is kind
                assert len(found.updated_versions) == count
                assert found.updated_versions == tuple(range(count))
                assert encode(found) == frame
