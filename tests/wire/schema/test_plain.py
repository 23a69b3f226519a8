"""Commands as JSON values: there and back, and refusals that name what does not fit."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import (
    COMMANDS,
    AuthTokenCheckFailed,
    BadField,
    Command,
    SegmentRead,
    SegmentsBatchMerged,
    SetupAppend,
    encode,
)
from tests.looped import looped
from tests.strategies import as_read, command_of, commands, examples, refused_of
from tests.wire.agreement import refusal

CLASSES = looped("cls", COMMANDS.values())


def shown(value: Command) -> dict[str, Any]:
    return json.loads(json.dumps(value.to_dict()))  # type: ignore[no-any-return]


@CLASSES
def test_a_command_comes_back_from_its_json(cls: type[Command]) -> None:
    @examples(15)
    @given(command_of(cls))
    def holds(value: Command) -> None:
        plain = shown(value)
        assert list(plain) == list(cls.__struct_fields__)
        again = cls.from_dict(plain)
        assert type(again) is cls
        assert as_read(again) == as_read(value)
        assert shown(again) == plain
        assert encode(again) == encode(value)

    holds()


def places(plain: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Every place in a JSON value: its path, what holds it, its key."""
    found = []
    items = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, value in items:
        here = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}".lstrip(".")
        found.append((here, plain, key))
        found += places(value, here)
    return found


@given(commands(), st.data())
def test_a_value_of_the_wrong_type_is_refused_by_its_path(value: Command, data: st.DataObject) -> None:
    plain = shown(value)
    if not plain:
        return
    path, holder, key = data.draw(st.sampled_from(places(plain)))
    was = holder[key]
    wrong = data.draw(st.sampled_from([1.5, {"odd": 1}, b"bytes", *([5] if isinstance(was, (str, bool)) else ["zz"])]))
    if isinstance(was, str) and wrong == "zz":
        return
    holder[key] = wrong
    with pytest.raises(BadField) as caught:
        type(value).from_dict(plain)
    error = caught.value
    assert error.field == path or error.field.startswith((path + ".", path + "["))
    assert (error.code, error.type_name) == (value.code, value.type_name)


@given(commands(), st.data())
def test_a_field_too_many_or_too_few_is_named(value: Command, data: st.DataObject) -> None:
    plain = shown(value)
    inner = [(path + ".", holder[key]) for path, holder, key in places(plain) if isinstance(holder[key], dict)]
    path, chosen = data.draw(st.sampled_from([("", plain), *inner]))
    chosen["novel"] = 1
    with pytest.raises(BadField, match="there is no such field") as caught:
        type(value).from_dict(plain)
    assert caught.value.field == path + "novel"
    del chosen["novel"]
    if chosen:
        name = data.draw(st.sampled_from(sorted(chosen)))
        del chosen[name]
        error = refusal(lambda: type(value).from_dict(plain))
        if error is not None:  # a tail has a default
            assert error.field == path + name
            assert "missing" in str(error)


@given(st.data())
def test_what_no_json_field_can_hold_is_a_bad_field_and_nothing_else(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from([cls for cls in COMMANDS.values() if not refused_of(cls).is_empty]))
    bad = data.draw(refused_of(cls))
    fields = {name: getattr(bad, name) for name in cls.__struct_fields__}
    error = refusal(lambda: cls.from_dict(fields))
    assert error is None or (type(error) is BadField and error.field)


@looped("plain", [None, [], "text", 5, [("request_id", 1)]])
def test_what_is_no_object_is_refused(plain: Any) -> None:
    with pytest.raises(BadField, match="an object is needed"):
        SetupAppend.from_dict(plain)


def test_null_text_and_data_read_as_empty() -> None:
    value = SegmentRead.from_dict(
        {"segment": None, "offset": 0, "at_tail": False, "end_of_segment": True, "data": None, "request_id": 1}
    )
    assert (value.segment, value.data) == ("", b"")


@looped("code", ["NONE_SUCH", 1, None, [], {}, 1.0])
def test_an_enum_is_given_by_name(code: Any) -> None:
    assert AuthTokenCheckFailed.from_dict({"request_id": 1, "error_code": "TOKEN_EXPIRED"}).error_code == 1
    with pytest.raises(BadField, match="is not one of UNSPECIFIED, TOKEN_CHECK_FAILED, TOKEN_EXPIRED"):
        AuthTokenCheckFailed.from_dict({"request_id": 1, "error_code": code})


def test_tails_may_be_left_out_and_take_their_defaults() -> None:
    empty: dict[str, Any] = {"request_id": 1, "target": "t", "sources": [], "new_target_write_offset": []}
    value = SegmentsBatchMerged.from_dict(empty)
    assert value == SegmentsBatchMerged(1, "t", (), ())
    assert AuthTokenCheckFailed.from_dict({"request_id": 1}) == AuthTokenCheckFailed(1)
