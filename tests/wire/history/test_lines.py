from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from segstore.wire.history import Judge
from segstore.wire.history.lines import OPERATIONS, HistoryError, read_history
from tests.wire.history.support import broken, judged_lines

POLLED = {"type": "ok", "process": 0, "f": "poll"}
INVOKE = {"type": "invoke", "process": 0, "f": "send", "value": {"segment": "s", "event": "a"}}


@pytest.mark.parametrize(
    ("lines", "fact"),
    [
        (["nonsense"], "line 1"),
        ([b"\xff\xfe"], "line 1"),
        ([json.dumps(INVOKE).replace('"a"', "[" * 3000 + "]" * 3000)], "recursion"),
        ([{**INVOKE, "f": "poll", "value": {"segment": "s"}}, {**POLLED, "value": {"offsets": [1]}}], "1 offsets of 0"),
        ([{"type": "start", "process": 0, "f": "send"}], "type"),
        ([{**INVOKE, "type": "ok"}], "process 0 ends 'send'"),
        ([INVOKE, {**INVOKE, "type": "ok", "f": "poll"}], "ends 'poll'"),
        ([INVOKE, INVOKE], "has not ended another"),
        ([INVOKE, {**INVOKE, "type": "ok", "value": {"offset": "five"}}], "$.offset"),
        ([{**INVOKE, "f": "sent"}, {**INVOKE, "f": "sent", "type": "ok"}], "no operation 'sent'"),
        ([{**INVOKE, "value": {"segment": "s"}}, {**INVOKE, "type": "ok", "value": {}}], "required field `event`"),
        ([INVOKE, {**INVOKE, "type": "ok", "value": {"ofset": 1}}], "unknown field `ofset`"),
    ],
)
def test_a_wrong_line_is_refused_by_number_and_field(lines: list[object], fact: str) -> None:
    written = [line if isinstance(line, str | bytes) else json.dumps(line) for line in lines]
    with pytest.raises(HistoryError, match=r"line [12]: ") as refused:
        list(read_history(written))
    assert fact in str(refused.value)


def test_the_order_of_the_lines_decides_when_times_go_backwards() -> None:
    lines = [
        {**INVOKE, "time": 50},
        {**INVOKE, "type": "ok", "time": 20},
        {**INVOKE, "time": 10},
        {**INVOKE, "type": "ok"},
    ]
    times = [fact.place.time_ns for fact in read_history(map(json.dumps, lines))]
    assert times == sorted(times)
    assert len(times) == 2


def test_an_operation_that_never_ends_may_have_had_its_effect() -> None:
    (fact,) = read_history([json.dumps(INVOKE)])
    assert fact.value.outcome == "unknown"


def test_every_operation_is_judged() -> None:
    example = {
        "segment": "s",
        "event": "a",
        "segments": ["s"],
        "transaction": "t",
        "table": "t",
        "key": "k",
        "value": 1,
        "group": "g",
        "name": "c",
        "positions": {"s": 1},
        "stream": "x",
        "timestamp": 1,
        "lower": 1,
        "events": ["a"],
    }
    for name, operation in OPERATIONS.items():
        value = {field: example[field] for field in operation.__struct_fields__ if field in example}
        lines = [{"type": end, "process": 0, "f": name, "value": value} for end in ("invoke", "ok")]
        facts = list(read_history(map(json.dumps, lines)))
        assert facts, name
        judge = Judge()
        for fact in facts:
            judge.fact(fact)
        judge.end()


def test_a_value_may_be_null_and_lines_blank() -> None:
    lines = ["", json.dumps(INVOKE), " ", json.dumps({**INVOKE, "type": "ok", "value": None})]
    (fact,) = read_history(lines)
    assert fact.value.outcome == "ok"


def test_an_incomplete_last_line_is_reported_and_the_rest_is_judged() -> None:
    skipped: list[str] = []
    (fact,) = read_history([json.dumps(INVOKE) + "\n", '{"type": "o'], "h", skipped)
    assert fact.value.outcome == "unknown"
    assert skipped == ["h: line 2: it is incomplete"]
    with pytest.raises(HistoryError):
        list(read_history([json.dumps(INVOKE) + "\n", '{"type": "o\n'], "h", skipped))


def test_only_a_refusal_shows_that_a_condition_was_false() -> None:
    first = 'w put {"table": "t", "key": "k", "value": 1} → ok {"version": 10}\n'
    put = 'w put {"table": "t", "key": "k", "value": 2, "expected": 10} → fail'
    assert not broken(first + put)
    assert broken(first + put + ' {"refused": true}') == {"not-linearizable": 1}


def correct_history(random: Random) -> list[dict[str, Any]]:
    """A history of a log with two writers and a group of two readers, whose operations overlap and may be undecided."""
    lines: list[dict[str, Any]] = []
    stored: list[str] = ["old"] * random.choice([0, 2])
    running: dict[str, tuple[str, dict[str, Any], list[Any]]] = {}
    holder, position, names = "", 0, "abc" if random.random() < 0.3 else [f"e{number}" for number in range(99)]
    for number in range(random.randrange(5, 90)):
        process = random.choice("vwrq")
        if process not in running:
            if process in "vw":
                f, value = "send", {"segment": "s", "event": names[number % len(names)], "stream": "x", "key": "k"}
            elif holder != process:
                f, value = "acquire", {"group": "g", "segment": "s"}
            else:
                f = random.choice(["poll", "poll", "poll", "release", "leave"])
                value = {"group": "g"} if f == "leave" else {"group": "g", "segment": "s"}
                if f == "poll" and random.random() < 0.1:
                    value, position = value | {"moved": True}, random.randint(0, len(stored))
            lines.append({"type": "invoke", "process": process, "f": f, "value": value})
            running[process] = f, value, []
            continue
        f, value, result = running[process]
        if not result:  # it has its effect
            if f == "send":
                result += [random.choice(["ok", "ok", "fail", "info"]), {}]
                if result[0] == "ok" or (result[0] == "info" and random.random() < 0.5):
                    stored.append(value["event"])
                    result[1] = {"offset": len(stored) - 1} if result[0] == "ok" else {}
            elif f == "poll":
                events = stored[position : position + random.randrange(4)]
                result += ["ok", {"events": events, "offsets": [position + at for at in range(len(events))]}]
                position += len(events)
            elif f == "acquire" and not holder:
                holder = process
                result += ["ok", {}]
            elif f != "acquire":
                holder = ""
                result += [random.choice(["ok", "info"]), {}]
        else:
            if f == "poll" and len(names) > 3 and number % 2:
                del result[1]["offsets"]
            lines.append({"type": result[0], "process": process, "f": f, "value": result[1]})
            del running[process]
    return lines


def test_a_correct_history_breaks_no_rule() -> None:
    for seed in range(300):
        history = correct_history(Random(seed))
        assert not judged_lines(history).broken, history
