"""Fault files: what they say becomes rules; what does not fit is named with line and path."""

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from segstore.server.clock import LoopClock
from segstore.server.faults import FaultFileError, Faults, FaultSettings, Rule, read_faults
from segstore.server.faults.file import parse_faults
from segstore.server.faults.rules import Close, Delay, Error, Ok
from segstore.wire import COMMANDS, InvalidEventNumber, NoSuchSegment, WrongHost, encode
from tests.looped import looped

WHOLE = """
seed: 7
round_trip_ms: {0: 5, 1: 20}
rules:
  - name: lost ack
    match: type = APPEND_BLOCK_END and segment ~ "scope/*"
    nth: 3
    do: close after
  - match: type = READ_SEGMENT
    do: [WrongHost, {error: NO_SUCH_SEGMENT, fields: {offset: 9}}, ok, close]
"""


def test_a_yaml_file_has_seed_round_trips_and_rules() -> None:
    settings = parse_faults(WHOLE)
    assert (settings.seed, settings.round_trip_ms) == (7, {0: 5, 1: 20})
    lost, reads = settings.rules
    assert (lost.name, lost.nth, lost.do, lost.times) == ("lost ack", (3,), (Close(close="after"),), None)
    assert reads.do == (
        Error(error="WrongHost"),
        Error(error="NO_SUCH_SEGMENT", fields={"offset": 9}),
        Ok(),
        Close(close="before"),
    )
    assert reads.times == 4


def test_a_json_file_with_tabs_has_the_same_content(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text('{\n\t"seed": 3,\n\t"rules": [\n\t\t{"do": "drop reply", "probability": 1e-1}\n\t]\n}\n')
    settings = read_faults(path)
    assert (settings.seed, settings.rules[0].probability) == (3, 0.1)


@looped(
    ("text", "line", "path", "says"),
    [
        ("seed: 1\nrules:\n  - do: ok\n    mtch: x\n", 4, "rules[0].mtch", "no such key (match?)"),
        ("rules:\n  - do: ok\n  - match: type = REED\n    do: ok\n", 3, "rules[1].match", "column 8"),
        ("rules:\n  - do:\n      close: after\n      rest: true\n", 4, "rules[0].do.rest", "no such key (reset?)"),
        (
            "rules:\n  - do:\n      - ok\n      - WrngHost\n",
            4,
            "rules[0].do[1]",
            "'WrngHost' is not a reply (WrongHost?)",
        ),
        ("round_trip_ms:\n  a: 5\n", 2, "round_trip_ms.a", "a key is the number of a store, from 0"),
        ("rules:\n  - do: {clos: after}\n", 2, "rules[0].do", "answer, not 'clos' (close?)"),
        (
            "rules: [{match: rpc = createStream, do: close}]\n",
            1,
            "rules[0]",
            "use status, answer, delay_ms, hold, drop or ok",
        ),
        ("rules:\n  - do: {close: before, reply_bytes: 3}\n", 2, "rules[0].do", "no reply before"),
        ("rules:\n  - match: failure\n", 2, "rules[0].do", "required"),
        ("rules:\n  - do: ok\n    do: close\n", 3, "", "the key 'do' appears twice"),
        ("round_trip_ms: {1: 2, '1': 3}\n", 1, "", "the key '1' appears twice"),
        ("rules:\n  - {do: ok, name: x}\n  - {do: ok, name: x}\n", 1, "rules", "two rules have the name 'x'"),
        ("rules: [\n", 2, "", "not YAML"),
        ("- do: ok\n", 1, "", "an object is needed"),
        ("seed: 1\nrules: &a []\n", 2, "", "anchors and aliases are not allowed"),
        ("seed: !!int abc\n", 1, "", "tags are not allowed"),
        ("<<: {seed: 1}\n", 1, "<<", "there is no such key"),
        ("seed: 1:30\n", 1, "seed", "a whole number is needed"),
        ('"\\ud800": 1\n', 1, "", "unicode"),
    ],
)
def test_what_does_not_fit_is_named_with_its_line_and_path(text: str, line: int, path: str, says: str) -> None:
    with pytest.raises(FaultFileError) as caught:
        parse_faults(text, "faults.yaml")
    assert (caught.value.source, caught.value.line, caught.value.path) == ("faults.yaml", line, path)
    assert says in caught.value.reason
    assert str(caught.value).startswith(f"faults.yaml: line {line}: ")


UNREADABLE = {
    "latin.yaml": b"seed: 1 # \xff\n",
    "deep.yaml": b"[" * 2_000,
    "deep.json": b"[" * 200_000,
    "large.json": b'{"seed": 1}' + b" " * (256 * 1024),
}


@looped("name", UNREADABLE)
def test_a_file_that_is_too_large_or_deep_or_no_text_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(UNREADABLE[name])
    with pytest.raises(FaultFileError) as caught:
        read_faults(path)
    assert (caught.value.source, caught.value.path) == (str(path), "")


def test_errors_in_json_are_named_with_their_lines() -> None:
    with pytest.raises(FaultFileError, match="line 2: this is not JSON"):
        parse_faults('{"seed": 1,\n}', form="json")
    with pytest.raises(FaultFileError, match="line 2: this is not JSON: the key 'seed' appears twice"):
        parse_faults('{"seed": 1,\n"seed": 2}', form="json")
    with pytest.raises(FaultFileError) as caught:
        parse_faults('{\n\t"rules": [\n\t\t{\n\t\t\t"doo": 1, "do": "ok"\n\t\t}\n\t]\n}', form="json")
    assert (caught.value.line, caught.value.path) == (4, "rules[0].doo")


@looped(
    ("rule", "said"),
    [
        ({"match": "type = APPEND_BLOCK_END and failure"}, "failure: no request can match this; with on: reply"),
        ({"match": "direction = request", "on": "reply"}, "direction = request: no reply can match this"),
        ({"match": "rpc = createStream and type = HELLO"}, "type = HELLO: no request of a controller call"),
        ({"match": "type = EVENT"}, "no request can match this; an append is APPEND_BLOCK_END here"),
        ({"match": "rpc = createStream", "store": 1}, "store: controller calls"),
        ({"nth": [2, 3], "skip": 3}, "nth: skip 3 and every 1 leave none"),
        ({"nth": 3, "every": 2}, "nth: skip 0 and every 2 leave none"),
    ],
)
def test_a_rule_that_can_never_match_is_refused(rule: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Faults(LoopClock()).add(**{"do": "ok", **rule})


@looped(
    "given",
    [
        {"rules": [{"do": "ok", "nth": ["3"]}]},
        {"rules": [{"do": "ok", "probability": True}]},
        {"rules": [{"do": {"delay_ms": "5"}}]},
        {"seed": True},
        {"round_trip_ms": {"0": 5, "00": 6}},
        {"round_trip_ms": {True: 5}},
    ],
)
def test_texts_and_truth_values_are_no_numbers(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"valid (number|integer)|number of a store"):
        FaultSettings.model_validate(given)


def test_scalars_of_yaml_are_those_of_its_core_schema() -> None:
    settings = parse_faults(
        "seed: 08\nround_trip_ms: {0: .5, 01: +.5e+1, 2: 5., 3: 1E1}\n"
        "rules:\n- {do: {delay_ms: 5}, nth: 010}\n- {do: ok, on: reply, nth: [1, 02], probability: .5}\n"
    )
    assert settings.seed == 8
    assert settings.round_trip_ms == {0: 0.5, 1: 5.0, 2: 5.0, 3: 10.0}
    first, second = settings.rules
    assert (first.nth, first.do) == ((10,), (Delay(delay_ms=5.0),))
    assert (second.on, second.nth, second.probability) == ("reply", (1, 2), 0.5)
    assert parse_faults("") == FaultSettings()


@looped("number", [".", "1e", "0x1", "1_000", "'5'", ".nan"])
def test_other_plain_scalars_of_yaml_are_texts(number: str) -> None:
    with pytest.raises(FaultFileError, match=r"line 1: round_trip_ms: .*number"):
        parse_faults(f"round_trip_ms: {number}\n")


@looped("cls", [command for command in COMMANDS.values() if command.is_failure])
def test_every_failure_reply_can_be_made_out_of_a_request(cls: type) -> None:
    error = Error(error=cls.__name__)
    reply = error.reply(request_id=5, segment="a/b/0", writer_id=UUID(int=1), number=8, message="X")
    assert type(reply) is cls
    assert reply.request_id == 5  # type: ignore[attr-defined]  # every failure has one
    assert encode(reply)


def test_an_error_takes_from_the_request_what_it_has_and_the_rest_from_the_rule() -> None:
    made = Error(error="WRONG_HOST", fields={"correct_host": "other:1"})
    assert made.reply(request_id=1, segment="a/b/0", writer_id=None, number=-1, message="") == WrongHost(
        1, "a/b/0", "other:1", ""
    )
    missing = Error(error="NoSuchSegment").reply(request_id=1, segment="a/b/0", writer_id=None, number=4, message="")
    assert missing == NoSuchSegment(1, "a/b/0", "", 4)
    writer = UUID(int=3)
    number = Error(error="InvalidEventNumber").reply(request_id=1, segment="", writer_id=writer, number=9, message="")
    assert number == InvalidEventNumber(writer, 1, "", 9)


def test_what_is_no_reply_cannot_be_an_error() -> None:
    with pytest.raises(ValidationError, match=r"SEGMENT_READ\.at_tail: the field is missing"):
        Rule(match="", do={"error": "SEGMENT_READ"})


@looped(
    ("given", "says"),
    [
        ({"do": "clos"}, r"do\[0\]: 'clos' is not a reply \(close\?\)"),
        ({"do": "close", "nht": 3}, r"nht: there is no such key \(nth\?\)"),
        ({}, r"do: the list must not be empty"),
        ({"do": "ok", "name": b"x"}, r"name: text is needed$"),
        ({"match": Rule(match="", do="ok"), "do": "drop"}, r"do: a whole rule is given, which has its own fields$"),
    ],
)
def test_a_rule_from_python_is_refused_in_one_sentence_too(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}") as caught:
        Faults(LoopClock()).add(**given)
    assert len(str(caught.value).splitlines()) == 1
