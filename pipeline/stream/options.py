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
from segstore.pipeline.trace.options import OptionError, read_count, read_flag, unknown_option
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
CREDENTIALS: Final = frozenset(("username", "password", "bearer_token"))
"""The client settings that are credentials for the controller."""


class StreamLimit(NamedTuple):
    """The limit of one micro-batch, in events or in bytes."""

    most: int
    events: bool


class StreamMinimum(NamedTuple):
    """The backlog for which a micro-batch waits, in events or in bytes."""

    least: int
    events: bool


class StreamOptions(NamedTuple):
    """The options of a stream reader or writer.

    controller: its URI. scope, stream: the stream. settings: client settings as given, for `client_settings()`. start,
    end: a place; None if not given. start_name, end_name: the names under which they were given. split_bytes:
    approximate bytes of a segment per task. fail_on_data_loss: whether events deleted before they were read end the
    query. limit: of a micro-batch. minimum, trigger_delay_ms: a micro-batch waits for this backlog, but not longer than
    this. bound_name: the name under which the limit or the minimum was given, "" without. alignment_ms: how far apart
    in time of writing the segments of a limited batch may end. event_column, routing_key_column: columns of written
    rows. commit_timeout_ms, abort_timeout_ms: limits for the driver after the tasks of a batch have written, or a task
    has failed.
    """

    controller: str
    scope: str
    stream: str
    settings: Mapping[str, str]
    start: Place | None = None
    end: Place | None = None
    start_name: str = "from"
    end_name: str = "to"
    split_bytes: int = 64 * _MIB
    fail_on_data_loss: bool = True
    limit: StreamLimit | None = None
    minimum: StreamMinimum | None = None
    bound_name: str = ""
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
    given, names, settings = _split_options(options)
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
    limit, minimum = _amount(given, names, "max"), _amount(given, names, "min")
    if limit and minimum and limit[1] == minimum[1] and minimum[0] > limit[0]:
        wrong = names["minEventsPerTrigger" if minimum[1] else "minBytesPerTrigger"]
        raise OptionError(f"{wrong} is {minimum[0]}, above the limit of {limit[0]}", wrong, str(minimum[0]))
    read = StreamOptions(
        controller=given["controller"],
        scope=given["scope"],
        stream=given["stream"],
        settings=settings,
        start=_place(given, names, "from"),
        end=_place(given, names, "to"),
        start_name=names.get("from", "from"),
        end_name=names.get("to", "to"),
        split_bytes=read_count(given, "splitBytes", 64 * _MIB),
        fail_on_data_loss=read_flag(given, "failOnDataLoss", True),
        limit=None if limit is None else StreamLimit(*limit),
        minimum=None if minimum is None else StreamMinimum(*minimum),
        bound_name=next((name for option, name in names.items() if option.endswith("PerTrigger")), ""),
        trigger_delay_ms=_duration_ms(given, "maxTriggerDelay", TRIGGER_DELAY_MS),
        alignment_ms=read_count(given, "alignmentMs", ALIGNMENT_MS),
        event_column=given.get("eventColumn", EVENT_COLUMN),
        routing_key_column=given.get("routingKeyColumn"),
        commit_timeout_ms=read_count(given, "commitTimeoutMs", COMMIT_TIMEOUT_MS),
        abort_timeout_ms=read_count(given, "abortTimeoutMs", ABORT_TIMEOUT_MS),
    )
    read.client_settings()
    return read


def _split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Returns values by option, the names under which options were given, and settings of the client."""
    known = {name.lower(): name for name in (*_OPTIONS, *_OF_KAFKA)}
    given: dict[str, str] = {}
    names: dict[str, str] = {}
    settings: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        if lower.startswith(_CLIENT):
            settings[lower.removeprefix(_CLIENT)] = value
        elif lower in known:
            option = _OF_KAFKA.get(known[lower], known[lower])
            if option in names:
                both = f"{names[option]} and {known[lower]}"
                raise OptionError(f"{both} are the same option: give one of them", known[lower], value)
            given[option], names[option] = value, known[lower]
        elif lower not in _OF_SPARK:
            raise unknown_option(name, (*_OPTIONS, *_OF_KAFKA, "client.SETTING"))
    return given, names, settings | {setting: given[option] for option, setting in _SETTINGS.items() if option in given}


def _place(given: Mapping[str, str], names: Mapping[str, str], option: str) -> Place | None:
    if option not in given:
        return None
    try:
        return parse_place(given[option], given["scope"], given["stream"])
    except CutError as cause:
        raise OptionError(f"{names[option]}: {cause}", names[option], given[option]) from cause


def _amount(given: Mapping[str, str], names: Mapping[str, str], bound: str) -> tuple[int, bool] | None:
    """Returns the amount that "max" or "min" sets, and whether it counts events."""
    options = [name for name in (f"{bound}BytesPerTrigger", f"{bound}EventsPerTrigger") if name in given]
    if len(options) > 1:
        one, other = (names[option] for option in options)
        raise OptionError(f"only one of {one} and {other}", other)
    return (read_count(given, options[0], 0), "Events" in options[0]) if options else None


def _duration_ms(given: Mapping[str, str], option: str, default: int) -> int:
    if option not in given:
        return default
    match = _DURATION.fullmatch(given[option].strip())
    if match is None:
        raise OptionError(f"{option} is a duration such as 500ms, 30s or 15m, not {given[option]!r}", option)
    return int(match[1]) * _UNITS[match[2]]
