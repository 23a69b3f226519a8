"""Commands as JSON lines, there and back."""

import json
from pathlib import Path
from typing import Any

import pytest

from segstore.wire import BadField, Hello, Unknown, decode
from segstore.wire.inspect import command_named, from_line, to_line
from tests.looped import looped

VECTORS = Path(__file__).parents[3] / "fixtures" / "vectors"


def test_every_recorded_command_comes_back_from_its_line() -> None:
    lines = [json.loads(line) for line in (VECTORS / "commands.jsonl").read_text("utf-8").split("\n") if line]
    assert len(lines) > 300
    for what in lines:
        if what.get("decodable", True):
            command = decode(bytes.fromhex(what["hex"]))
            line = to_line(command)
            assert line.isascii()
            assert "\n" not in line
            assert from_line(line) == command


def test_type_or_code_is_enough() -> None:
    fields = {"high_version": 17, "low_version": 5}
    assert json.loads(to_line(Hello(17, 5))) == {"type": "HELLO", "code": -127, "fields": fields}
    assert from_line(json.dumps({"type": "HELLO", "fields": fields})) == Hello(17, 5)
    assert from_line(json.dumps({"code": -127, "fields": fields})) == Hello(17, 5)
    assert from_line('{"type": "KEEP_ALIVE"}') == command_named("KEEP_ALIVE")()


def test_an_unknown_command_comes_back_too() -> None:
    assert from_line(to_line(Unknown(6, b"ab"))) == Unknown(6, b"ab")


@looped(
    ("found", "says"),
    [
        ([], "an object is needed, not list"),
        ({}, "type or code is missing"),
        ({"type": "HELLO", "field": {}}, "field: there is no such key"),
        ({"type": "HOLA", "fields": {}}, "type: no command is called 'HOLA'"),
        ({"type": ["HELLO"], "fields": {}}, "no command is called"),
        ({"code": 6, "fields": {}}, "code: no command has the code 6"),
        ({"code": True, "fields": {}}, "no command has the code True"),
        ({"type": "HELLO", "code": 1, "fields": {}}, "HELLO has the code -127, not 1"),
        ({"type": "HELLO", "fields": []}, "fields: an object is needed"),
        ({"type": "HELLO", "fields": {"high_version": 1}}, "HELLO.low_version: the field is missing"),
        ({"type": "UNKNOWN", "fields": {}}, "UNKNOWN.type_code: the field is missing"),
        ({"type": "UNKNOWN", "fields": {"type_code": 1 << 31, "data": ""}}, "UNKNOWN.type_code: 2147483648 is outside"),
        ({"type": "UNKNOWN", "code": 5, "fields": {"type_code": 6, "data": ""}}, "type_code is 6, not 5"),
        ({"type": "UNKNOWN", "fields": {"type_code": 6, "data": "x"}}, "UNKNOWN.data: not hex"),
        ({"type": "UNKNOWN", "fields": {"type_code": 6, "data": 7}}, "UNKNOWN.data: a str is needed"),
    ],
)
def test_an_invalid_object_is_refused_with_the_key(found: Any, says: str) -> None:
    with pytest.raises(BadField) as caught:
        from_line(json.dumps(found))
    assert says in str(caught.value)


@looped("line", ["", "{", "[" * 100_000])
def test_what_is_not_json_is_refused(line: str) -> None:
    with pytest.raises(BadField, match="not JSON"):
        from_line(line)


def test_a_key_that_appears_twice_is_refused() -> None:
    with pytest.raises(BadField, match="low_version: the key appears twice"):
        from_line('{"type": "HELLO", "fields": {"high_version": 1, "low_version": 1, "low_version": 2}}')
