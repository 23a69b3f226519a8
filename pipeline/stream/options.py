"""Options of `format("segstore.stream")` for readers and writers, validated once.

Invariant: options can be pickled and hold no open resources; no `repr` shows a secret. Refused, with `OptionError`:
unknown options, invalid values, more than one limit or minimum, an option under two names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from segstore.client import ClientSettings, CutError
from segstore.client.client import parse_uri
from segstore.pipeline.stream.cuts import Place, parse_place
from segstore.pipeline.trace.options import OptionError, by_name, read_count, read_flag
from segstore.wire.names import is_stream_name
from segstore.wire.validation import place_and_problem

_MIB: Final = 1 << 20
EVENT_COLUMN: Final = "event"
ALIGNMENT_MS: Final = 10_000
COMMIT_TIMEOUT_MS: Final = 60_000
"""A commit that takes longer fails; repeating the batch completes it."""
TRIGGER_DELAY_MS: Final = 900_000
"""The default of Kafka's source."""
ABORT_TIMEOUT_MS: Final = 10_000
"""Short, because leftovers of a failed write are invisible and can be deleted later."""
_OPTIONS: Final = (
    "controller", "scope", "stream", "from", "to", "splitBytes", "failOnDataLoss",
    "maxBytesPerTrigger", "maxEventsPerTrigger", "alignmentMs",
    "minBytesPerTrigger", "minEventsPerTrigger", "maxTriggerDelay",
    "eventColumn", "routingKeyColumn", "commitTimeoutMs", "abortTimeoutMs",
    "user", "password", "bearerToken", "tlsCaFile",
)  # fmt: skip
_OF_KAFKA: Final = {
    "startingOffsets": "from",
    "startingTimestamp": "from",
    "endingOffsets": "to",
    "endingTimestamp": "to",
    "minOffsetsPerTrigger": "minEventsPerTrigger",
    "maxOffsetsPerTrigger": "maxEventsPerTrigger",
}
"""Kafka's names of options, which stand for these."""
_OF_SPARK: Final = frozenset({"checkpointlocation", "path"})
_CLIENT: Final = "client."
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_DURATION: Final = re.compile(rf"([0-9]{{1,9}}) *({'|'.join(_UNITS)})")
_SETTINGS: Final = {
    "user": "username",
    "password": "password",
    "bearerToken": "bearer_token",
    "tlsCaFile": "tls_ca_file",
}


class StreamAmount(NamedTuple):
    """An amount of data, in events or in bytes."""

    number: int
    events: bool

    def option(self, bound: str) -> str:
        """Returns the option that sets it. bound: "max" for the limit of a micro-batch, "min" for the minimum."""
        return f"{bound}{'Events' if self.events else 'Bytes'}PerTrigger"


class StreamOptions(NamedTuple):
    """The options of a stream reader or writer.

    controller: its URI. scope, stream: the stream. settings: client settings as given, for `client_settings()`. start,
    end: a place; None if not given. split_bytes: approximate bytes of a segment per task. fail_on_data_loss: whether
    events deleted before they were read end the query. limit: of a micro-batch. minimum, trigger_delay_ms: a
    micro-batch waits for this backlog, but not longer than this. alignment_ms: how far apart in time of writing the
    segments of a limited batch may end. event_column, routing_key_column: columns of written rows. commit_timeout_ms,
    abort_timeout_ms: limits for the driver after the tasks of a batch have written, or a task has failed.
    """

    controller: str
    scope: str
    stream: str
    settings: Mapping[str, str]
    start: Place | None = None
    end: Place | None = None
    split_bytes: int = 64 * _MIB
    fail_on_data_loss: bool = True
    limit: StreamAmount | None = None
    minimum: StreamAmount | None = None
    trigger_delay_ms: int = TRIGGER_DELAY_MS
    alignment_ms: int = ALIGNMENT_MS
    event_column: str = EVENT_COLUMN
    routing_key_column: str | None = None
    commit_timeout_ms: int = COMMIT_TIMEOUT_MS
    abort_timeout_ms: int = ABORT_TIMEOUT_MS

    @property
    def name(self) -> str:
        """scope/stream."""
        return f"{self.scope}/{self.stream}"

    def client_settings(self) -> ClientSettings:
        """Returns client settings from the environment, overridden by those given. Raises OptionError."""
        given: dict[str, Any] = dict(self.settings)
        try:
            return ClientSettings.from_environment(**given)
        except ValidationError as cause:
            place, problem = place_and_problem(cause)
            where = place or "the client's settings"
            raise OptionError(f"{where}: {problem}", where) from None  # the cause may show a password

    def __repr__(self) -> str:
        return f"StreamOptions({self.controller}, {self.name})"


def read_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parses options from Spark; names are case-insensitive. Raises OptionError."""
    of_client = {name: value for name, value in options.items() if name.lower().startswith(_CLIENT)}
    ignored = _OF_SPARK | {name.lower() for name in of_client}
    others = {name: value for name, value in options.items() if name.lower() not in ignored}
    given: dict[str, str] = {}
    for name, value in by_name(others, (*_OPTIONS, *_OF_KAFKA, "client.SETTING")).items():
        option = _OF_KAFKA.get(name, name)
        if option in given:
            raise OptionError(f"{name} is {option} under another name: give one of them", name, value)
        given[option] = value
    settings = {name.lower().removeprefix(_CLIENT): value for name, value in of_client.items()}
    settings |= {setting: given[option] for option, setting in _SETTINGS.items() if option in given}
    for name in ("controller", "scope", "stream"):
        if not given.get(name):
            raise OptionError(f"the option {name} is needed", name)
    try:
        parse_uri(given["controller"])
    except ValueError as error:
        raise OptionError(f"controller: {error}", "controller", given["controller"]) from None
    for name in ("scope", "stream"):
        if not is_stream_name(given[name]):
            raise OptionError(f"{given[name]!r} is not a valid {name} name", name, given[name])
    limit, minimum = _amount(given, "max"), _amount(given, "min")
    if limit and minimum and limit.events == minimum.events and minimum.number > limit.number:
        wrong = minimum.option("min")
        raise OptionError(f"{wrong} is {minimum.number}, above the limit of {limit.number}", wrong, str(minimum.number))
    read = StreamOptions(
        controller=given["controller"],
        scope=given["scope"],
        stream=given["stream"],
        settings=settings,
        start=_place(given, "from"),
        end=_place(given, "to"),
        split_bytes=read_count(given, "splitBytes", 64 * _MIB),
        fail_on_data_loss=read_flag(given, "failOnDataLoss", True),
        limit=limit,
        minimum=minimum,
        trigger_delay_ms=_duration_ms(given, "maxTriggerDelay", TRIGGER_DELAY_MS),
        alignment_ms=read_count(given, "alignmentMs", ALIGNMENT_MS),
        event_column=given.get("eventColumn", EVENT_COLUMN),
        routing_key_column=given.get("routingKeyColumn"),
        commit_timeout_ms=read_count(given, "commitTimeoutMs", COMMIT_TIMEOUT_MS),
        abort_timeout_ms=read_count(given, "abortTimeoutMs", ABORT_TIMEOUT_MS),
    )
    read.client_settings()
    return read


def _place(given: Mapping[str, str], option: str) -> Place | None:
    if option not in given:
        return None
    try:
        return parse_place(given[option], given["scope"], given["stream"])
    except CutError as cause:
        raise OptionError(f"{option}: {cause}", option, given[option]) from cause


def _amount(given: Mapping[str, str], bound: str) -> StreamAmount | None:
    """Returns the amount that "max" or "min" sets."""
    of_bytes, of_events = f"{bound}BytesPerTrigger", f"{bound}EventsPerTrigger"
    if of_bytes in given and of_events in given:
        raise OptionError(f"only one of {of_bytes} and {of_events}", of_events)
    number = read_count(given, of_events, read_count(given, of_bytes, None))
    return None if number is None else StreamAmount(number, of_events in given)


def _duration_ms(given: Mapping[str, str], option: str, default: int) -> int:
    if option not in given:
        return default
    match = _DURATION.fullmatch(given[option].strip())
    if match is None:
        raise OptionError(f"{option} is a duration such as 500ms, 30s or 15m, not {given[option]!r}", option)
    return int(match[1]) * _UNITS[match[2]]
