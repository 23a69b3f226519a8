"""What a toxic may say: what Toxiproxy knows, and what is refused, where."""

from typing import Any

import pytest

from segstore.server.faults.file import FaultFileError, parse_faults
from segstore.server.toxics import Toxics
from segstore.server.toxics.models import Down
from tests.looped import looped
from tests.server.support import FakeClock

EVERY: list[dict[str, Any]] = [
    {"type": "latency", "latency": 100, "jitter": 20},
    {"type": "latency", "name": "tail", "latency": 5, "jitter": 2, "distribution": "pareto", "stream": "upstream"},
    {"type": "bandwidth", "rate": 64},
    {"type": "slow_close", "delay": 1000},
    {"type": "timeout", "timeout": 0},
    {"type": "reset_peer", "timeout": 50},
    {"type": "slicer", "average_size": 64, "size_variation": 32, "delay": 10},
    {"type": "limit_data", "bytes": 4096},
    {"type": "down", "toxicity": 0.5, "store": 1},
    {"type": "half_open"},
]

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "latencie"}, "", "half_open, not 'latencie' (latency?)"),
    ({"type": "x" * 1_000}, "", "(1002 characters)"),
    ({"type": []}, "", "a toxic has a type, one of latency"),
    ({"latency": 5}, "", "a toxic has a type, one of latency, bandwidth"),
    ({"type": "latency", "latency": 1, "attributes": {"latency": 5}}, "", "latency is given twice"),
    ({"type": "latency", "latncy": 5}, "latncy", "there is no such key (latency?)"),
    ({"type": "down", "stream": "upstream"}, "stream", "there is no such key (store?)"),
    ({"type": "down", "store": "controller"}, "store", "the controller's port (gRPC) has no toxics"),
    ({"type": "slicer", "average_size": 5, "size_variation": 5}, "", "must be less than average_size, 5"),
]


def text_of(toxic: dict[str, Any]) -> str:
    lines = [f"    {key}: {value}" for key, value in toxic.items()]
    return "toxics:\n  -\n" + "\n".join(lines)


def test_every_toxic_can_be_written_in_a_fault_file_and_in_python() -> None:
    toxics = Toxics(FakeClock(), lambda: 0)
    for each in EVERY:
        (read,) = parse_faults(text_of(each)).toxics
        assert read.model_dump(exclude_unset=True) == each
        name = toxics.add(**{"toxic" if key == "type" else key: value for key, value in each.items()})
        assert toxics.tallies()[-1].toxic == read
        toxics.clear(name)
        common = {key: value for key, value in each.items() if key in ("type", "name", "toxicity", "stream", "store")}
        attributes = {key: value for key, value in each.items() if key not in common}
        assert toxics.add({**common, "attributes": attributes}) == name, "as in Toxiproxy"
        assert toxics.tallies()[-1].toxic == read
        toxics.clear(name)
        assert toxics.add(each) == name, "as an object"
        assert toxics.tallies()[-1].toxic == read
        assert name == each.get("name", f"{each['type']}_downstream" if "stream" in type(read).model_fields else name)


@looped(("toxic", "field", "reason"), REFUSED)
def test_an_invalid_toxic_is_refused_with_its_field_and_the_reason(
    toxic: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(FaultFileError) as in_a_file:
        parse_faults(text_of(toxic))
    assert in_a_file.value.path == ".".join(("toxics[0]", *([field] if field else [])))
    assert reason in in_a_file.value.reason
    assert in_a_file.value.line is not None
    if isinstance(toxic.get("type"), str):
        fields = {"toxic" if key == "type" else key: value for key, value in toxic.items()}
        with pytest.raises(ValueError, match=r".") as in_python:
            Toxics(FakeClock(), lambda: 0).add(**fields)
        assert str(in_python.value).startswith(field)
        assert reason in str(in_python.value)


@looped(
    ("given", "said"),
    [
        ({"toxic": Down(type="down"), "store": 1}, "store: a whole toxic is given"),
        ({"toxic": b"latency"}, "a toxic has a type, one of "),
    ],
)
def test_a_whole_toxic_from_python_is_checked_too(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        Toxics(FakeClock(), lambda: 0).add(**given)


@looped("number", [float("nan"), float("inf")])
@looped("field", ["latency", "toxicity"])
def test_what_is_no_number_is_refused(field: str, number: float) -> None:
    with pytest.raises(ValueError, match=f"^{field}: it must be less than or equal to"):
        Toxics(FakeClock(), lambda: 0).add("latency", **{field: number})


def test_two_toxics_of_one_name_are_refused() -> None:
    text = "toxics: [{type: latency}, {type: latency, stream: upstream}, {type: latency, latency: 5}]"
    with pytest.raises(FaultFileError, match="toxics: two toxics have the name 'latency_downstream'"):
        parse_faults(text)
    toxics = Toxics(FakeClock(), lambda: 0)
    toxics.add("latency")
    with pytest.raises(ValueError, match="there is a toxic with the name 'latency_downstream'"):
        toxics.add("latency", latency=5)
