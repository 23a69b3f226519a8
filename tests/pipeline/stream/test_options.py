"""The options of `format("segstore.stream")`: each refusal names the option; secrets stay out of what is shown."""

from __future__ import annotations

import pickle

import pytest

from segstore.pipeline.stream.options import read_stream_options
from segstore.pipeline.stream.rows import wanted_names
from segstore.pipeline.trace.options import OptionError
from tests.looped import looped

NEEDED = {"controller": "tcp://127.0.0.1:9090", "scope": "s", "stream": "t"}


def test_names_are_taken_in_any_case_and_sparks_own_are_let_through() -> None:
    read = read_stream_options(
        NEEDED | {"MAXEVENTSPERTRIGGER": "7", "checkpointLocation": "x", "from": "tail", "failondataloss": "False"}
    )
    assert read.limit is not None
    assert (read.limit.number, read.limit.events, read.start, read.fail_on_data_loss) == (7, True, "tail", False)


def test_kafkas_names_stand_for_these() -> None:
    kafka = {"startingOffsets": "earliest", "endingTimestamp": "1700000000000", "maxOffsetsPerTrigger": "7"}
    own = {"from": "head", "to": "2023-11-14T23:13:20+01:00", "maxEventsPerTrigger": "7"}
    assert read_stream_options(NEEDED | kafka) == read_stream_options(NEEDED | own)


def test_settings_of_the_client_go_with_them() -> None:
    given = {
        "user": "ann",
        "password": "secret",
        "client.request_timeout_ms": "5",
        "client.retry": '{"initial_ms": 1, "max_ms": 2}',
    }
    read = pickle.loads(pickle.dumps(read_stream_options(NEEDED | given)))
    settings = read.client_settings()
    assert settings.username == "ann"
    assert settings.password is not None
    assert settings.password.get_secret_value() == "secret"
    assert (settings.request_timeout_ms, settings.retry.max_ms) == (5, 2)
    assert "secret" not in repr(read)


@looped(
    ("given", "option", "says"),
    [
        ({"scope": ""}, "scope", "the option scope is needed"),
        ({"stream": "a/b"}, "stream", "is not a valid stream name"),
        ({"colour": "red"}, "colour", "there is no option 'colour'"),
        ({"controller": "http://127.0.0.1:9090"}, "controller", "the scheme must be tcp or tls"),
        ({"maxBytesPerTrigger": "1", "maxEventsPerTrigger": "1"}, "maxEventsPerTrigger", "only one of"),
        ({"minBytesPerTrigger": "1", "minEventsPerTrigger": "1"}, "minEventsPerTrigger", "only one of"),
        ({"minEventsPerTrigger": "9", "maxEventsPerTrigger": "7"}, "minEventsPerTrigger", "9, above the limit of 7"),
        ({"from": "2024-01-01T00:00"}, "from", "from: .* has no time zone"),
        ({"from": "tail", "startingOffsets": "latest"}, "startingOffsets", "from under another name"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay", "a duration such as 500ms, 30s or 15m"),
        ({"maxBytesPerTrigger": "-1"}, "maxBytesPerTrigger", "whole numbers from 1 to"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss", "true or false"),
        ({"from": "here"}, "from", "from: 'here' is not a position"),
        ({"password": "secret"}, "the client's settings", "username and password must be given together"),
        ({"client.colour": "red"}, "colour", "colour: there is no such key"),
        ({"client.retry": "{"}, "retry", "retry: this is not JSON: "),
        ({"client.max_ack_polls": "many"}, "max_ack_polls", "max_ack_polls: a whole number is needed"),
    ],
)
def test_what_does_not_do_is_refused_by_name(given: dict[str, str], option: str, says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        read_stream_options(NEEDED | given)
    assert caught.value.option == option
    assert "secret" not in str(caught.value)


def test_columns_that_a_stream_has_not_are_refused() -> None:
    assert wanted_names([("OFFSET", "bigint"), ("event", "binary")]) == ("OFFSET", "event")
    with pytest.raises(OptionError, match="no column 'key'; it has event, segment, offset, length, epoch, time"):
        wanted_names([("key", "string")])
    with pytest.raises(OptionError, match="'event' is a binary, not a string"):
        wanted_names([("event", "string")])


@pytest.mark.needs("Java 17 or newer")  # with it PySpark is installed
@looped(
    ("reads", "option", "value"),
    [("reader", "maxEventsPerTrigger", "7"), ("reader", "to", "head"), ("streamReader", "to", "tail")],
)
def test_what_the_other_way_of_reading_takes_is_refused_by_its_name(reads: str, option: str, value: str) -> None:
    from pyspark.sql.types import StructType

    from segstore.pipeline.stream.source import StreamSource

    with pytest.raises(OptionError, match=f"^{option} is ") as caught:
        getattr(StreamSource(NEEDED | {option: value}), reads)(StructType())
    assert caught.value.option == option
