"""Fault rules: which requests or replies they match, at which matches they fire, and their actions.

    Rule(match='type = APPEND_BLOCK_END and segment ~ "scope/*"', nth=3, do="close after")
    Rule(match="type = READ_SEGMENT", do=["WrongHost", "NoSuchSegment", "ok", "close"])

Data only, validated on construction: the filter parses, an error names an existing reply and fields of that reply. An
action is an object with the action's key or, for common actions, a word. A list of actions is a stack: the rule applies
the next action each time it fires, and is disabled when the stack is used up.

An append is one request, regardless of its frames: its type is CONDITIONAL_APPEND if it has a condition, else
APPEND_BLOCK_END.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict
from uuid import UUID

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from segstore.server.config import PlainName, check_choice
from segstore.server.toxics import Milliseconds, Toxic
from segstore.wire import COMMANDS, WireError, encode
from segstore.wire.controller_api import STATUSES
from segstore.wire.names import MAX_INT64
from segstore.wire.printable import SHOWN, printable
from segstore.wire.trace import Filter, FilterError, check_possible, parse_filter, possible, with_fields

if TYPE_CHECKING:
    from segstore.wire import Command


At = Literal["before", "after"]
What = Literal["request", "reply"]


def _near(name: str, known: Iterable[str]) -> str:
    """Returns the known name closest to an unknown name, for a message."""
    near = difflib.get_close_matches(name[:SHOWN], sorted(known), 1)
    return f" ({near[0]}?)" if near else ""


def _shown(text: str) -> str:
    return repr(printable(text, SHOWN))


class _Action(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, strict=True)

    @property
    def word(self) -> str:
        """The action's name in the log of decisions."""
        return type(self).__name__.lower()


class Ok(_Action):
    """Serves the request normally. Used in stacks."""

    ok: Literal[True] = True


class Error(_Action):
    """Answers with an error.

    error: a reply's name, such as WrongHost or WRONG_HOST. fields: override the values derived from the request.
    at: "before" replies instead of executing the request; "after" executes it and replaces the store's reply.
    """

    error: str
    fields: dict[str, Any] = {}
    at: At = "before"

    @property
    def word(self) -> str:
        return f"error {reply_class(self.error).type_name}"

    @model_validator(mode="after")
    def _check_fields(self) -> Error:
        try:
            encode(self.reply(request_id=0, segment="", writer_id=None, number=-1, message=""))
        except WireError as error:
            raise ValueError(str(error)) from error
        return self

    def reply(self, *, request_id: int, segment: str, writer_id: UUID | None, number: int, message: str) -> Command:
        """Returns the reply to a request. number: the offset of a read, the last event number of an append."""
        cls = reply_class(self.error)
        known = {
            "request_id": request_id,
            "segment": segment,
            "writer_id": str(writer_id or UUID(int=0)),
            "offset": number,
            "event_number": number,
            "start_offset": 0,
            "operation_name": message,
            "message": message,
            "correct_host": "",
            "error_code": "UNSPECIFIED",
        }
        fields = {name: known[name] for name in cls.__struct_fields__ if name in known}
        return cls.from_dict({**fields, **self.fields})


class Delay(_Action):
    """Waits `delay_ms` of the store's clock before the request is executed or before its reply is sent.

    Later traffic of the connection waits too, as with a slow store, unless `overtake` is set.
    """

    delay_ms: Milliseconds
    at: At = "before"
    overtake: bool = False


class Hold(_Action):
    """Like Delay, but waits until the hold is released by the rule's name."""

    hold: At = "before"
    overtake: bool = False

    @property
    def at(self) -> At:
        return self.hold


class Drop(_Action):
    """Drops the request, which is neither executed nor answered; or executes it and drops the reply."""

    drop: What = "request"

    @property
    def word(self) -> str:
        return f"drop {self.drop}"


class Duplicate(_Action):
    """Executes the request twice, or sends its reply twice."""

    duplicate: What = "request"

    @property
    def word(self) -> str:
        return f"duplicate {self.duplicate}"


class Corrupt(_Action):
    """Changes one byte of the reply: at offset `corrupt` from the frame's start or, if negative, from its end."""

    corrupt: int = Field(ge=-MAX_INT64, le=MAX_INT64)
    xor: int = Field(default=0xFF, ge=1, le=0xFF)


class Truncate(_Action):
    """Sends only the first `truncate` bytes of the reply; later replies follow directly."""

    truncate: int = Field(ge=0, le=MAX_INT64)


class Close(_Action):
    """Closes the connection: before the request is executed, or after it and before the reply.

    reply_bytes: number of bytes of the reply to send first. reset: closes with a reset, so the client may lose data
    that it has not read.
    """

    close: At = "before"
    reply_bytes: int = Field(default=0, ge=0, le=MAX_INT64)
    reset: bool = False

    @property
    def word(self) -> str:
        return f"close {self.close}" + (f" {self.reply_bytes} bytes" if self.reply_bytes else "")

    @model_validator(mode="after")
    def _check_consistency(self) -> Close:
        if self.reply_bytes and self.close == "before":
            raise ValueError("reply_bytes goes with `close: after`: there is no reply before")
        return self


class Status(_Action):
    """Ends a controller call with a gRPC status.

    status: the code's name, such as UNAVAILABLE. details: its text. at: "before" instead of executing the call; "after"
    executes it and replaces its answer.
    """

    status: str
    details: str = ""
    at: At = "before"

    @property
    def word(self) -> str:
        return f"status {self.status}"

    @field_validator("status")
    @classmethod
    def _known(cls, given: str) -> str:
        name = given.upper()
        if name not in STATUSES:
            raise ValueError(f"{given!r} is not a status{_near(name, STATUSES)}")
        return name


class Answer(_Action):
    """Changes fields of a controller call's answer.

    answer: fields of the answer's message, by the names of `controller.proto`. at: "after" executes the call and sets
    these fields in its answer, or answers with these fields only if the call ended with a status; "before" answers with
    these fields only, instead of executing the call.
    """

    answer: dict[str, Any]
    at: At = "after"

    @model_validator(mode="after")
    def _check_fields(self) -> Answer:
        from segstore.wire.controller_api import METHODS  # imports protobuf, which only these rules need

        known = {field for method in METHODS.values() for field in method.response.DESCRIPTOR.fields_by_name}
        for name in self.answer:
            if name not in known:
                raise ValueError(f"no answer has a field {_shown(name)}{_near(name, known)}")
        return self

    def check(self, rpcs: Sequence[str]) -> None:
        """Raises ValueError if no method's answer can have the fields."""
        from segstore.wire.controller_api import METHODS

        problems: list[str] = []
        named = [rpc for rpc in rpcs if set(self.answer).issubset(METHODS[rpc].response.DESCRIPTOR.fields_by_name)]
        for rpc in named or rpcs:
            try:
                self.message(rpc, b"")
            except ValueError as error:
                problems.append(f"the answer of {rpc} cannot have these fields: {error}")
            else:
                return
        raise ValueError(problems[0])

    def message(self, rpc: str, answer: bytes) -> bytes:
        """Returns an answer of a method, changed. Raises ValueError for fields that it has not."""
        from google.protobuf.message import DecodeError

        from segstore.wire.controller_api import METHODS

        if rpc not in METHODS:
            raise ValueError(f"the controller has no method {rpc!r}")
        try:
            message = METHODS[rpc].response.FromString(answer)
        except DecodeError as cause:
            raise ValueError(f"the answer of {rpc} does not decode") from cause
        return with_fields(message, self.answer)


class Call(_Action):
    """Gives the request to a function (`segstore.server.faults.functions`). Made in Python only, from a function."""

    call: Annotated[Callable[[Any], Any], WithJsonSchema({"type": "string"})]

    @property
    def word(self) -> str:
        return f"call {getattr(self.call, '__name__', type(self.call).__name__)}"

    @field_serializer("call")
    def _named(self, _: Any) -> str:
        return self.word.removeprefix("call ")


_KEYS: Final[dict[str, type[_Action]]] = {
    next(iter(cls.model_fields)): cls
    for cls in (Ok, Error, Delay, Hold, Drop, Duplicate, Corrupt, Truncate, Close, Status, Answer)
}
_OF_CALLS: Final = (Ok, Delay, Hold, Drop, Status, Answer)
"""The actions of rules about controller calls."""
_WORDS: Final[dict[str, dict[str, Any]]] = {"ok": {"ok": True}}
for _key, *_values in (
    ("hold", "before", "after"),
    ("drop", "request", "reply"),
    ("duplicate", "request", "reply"),
    ("close", "before", "after"),
):
    _WORDS[_key] = {_key: _values[0]}
    _WORDS.update({f"{_key} {value}": {_key: value} for value in _values})
_REPLIES: Final = {
    name.casefold(): cls for cls in COMMANDS.values() if cls.is_reply for name in (cls.__name__, cls.type_name)
}


def reply_class(name: str) -> type[Command]:
    """Returns the class of a reply, by either of its names. Raises ValueError."""
    try:
        return _REPLIES[name.casefold()]
    except KeyError:
        near = difflib.get_close_matches(name.casefold(), [*_REPLIES, *_WORDS], 1)
        hint = f" ({_REPLIES[near[0]].__name__ if near[0] in _REPLIES else near[0]}?)" if near else ""
        raise ValueError(f"{name!r} is not a reply{hint}") from None


def _from_word(given: Any) -> Any:
    if callable(given) and not isinstance(given, type):
        return Call(call=given)
    if isinstance(given, dict) and given and _tag(given) is None:
        check_choice("an action", next(iter(given)), _KEYS)
    if not isinstance(given, str):
        return given
    words = " ".join(given.split()).casefold()
    if words in _WORDS:
        return _WORDS[words]
    reply_class(given)
    return {"error": given}


def _tag(given: Any) -> str | None:
    """Returns the action that an object means. Tags appear in error locations; angle brackets mark them there."""
    if isinstance(given, _Action):
        return f"<{type(given).__name__}>"
    if isinstance(given, dict):
        return next((f"<{cls.__name__}>" for key, cls in _KEYS.items() if key in given), None)
    return None


Action = Annotated[
    Annotated[Ok, Tag("<Ok>")]
    | Annotated[Error, Tag("<Error>")]
    | Annotated[Delay, Tag("<Delay>")]
    | Annotated[Hold, Tag("<Hold>")]
    | Annotated[Drop, Tag("<Drop>")]
    | Annotated[Duplicate, Tag("<Duplicate>")]
    | Annotated[Corrupt, Tag("<Corrupt>")]
    | Annotated[Truncate, Tag("<Truncate>")]
    | Annotated[Close, Tag("<Close>")]
    | Annotated[Status, Tag("<Status>")]
    | Annotated[Answer, Tag("<Answer>")]
    | SkipJsonSchema[Annotated[Call, Tag("<Call>")]],
    Discriminator(
        _tag, custom_error_type="action", custom_error_message=f"an action has one of the keys {', '.join(_KEYS)}"
    ),
    BeforeValidator(_from_word),
]
"""An action of a class above, an object with its key, a word (`close after`, `drop reply`, `WrongHost`), or a
function."""


class RuleOptions(TypedDict, total=False):
    """The fields of `Rule` as keyword arguments, beside `match` and `do`."""

    name: str
    on: What
    store: int | None
    each: Literal["connection", "segment", "writer", "flow"] | None
    nth: int | Sequence[int]
    skip: int
    every: int
    probability: float
    times: int | None


_parsed: Final = lru_cache(maxsize=1)(parse_filter)
"""A rule parses its filter when `match` is checked, and uses it when the whole rule is: long filters take long."""


class Rule(BaseModel):
    """A fault rule: when it fires, and its actions.

    name: used by `release`, `clear` and reports; as part of a path: without slashes, backslashes and control
        characters, and not `.` or `..`. Default: a number.
    match: a filter (`segstore.wire.trace.filters`); "" matches everything.
    on: "request" matches requests and acts on them or their replies; "reply" matches replies only.
    store: the number of the store in its cluster, from 0; controller calls count as requests of store 0. Default: all
    stores.
    each: the scope of the counts below. Default: one count for all matches.
    nth: fires only at these matches, from 1. skip: ignores the first N matches. every: then fires at every Nth match.
    probability: the fraction of firings that happen, chosen by the seed.
    times: fires at most N times. Default: unlimited, or the length of the stack if `do` is a list.
    do: the action, or a stack of actions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    name: PlainName = Field(default="", strict=True)
    on: What = "request"
    match: str = Field(default="", strict=True)
    store: int | None = Field(default=None, ge=0, le=MAX_INT64, strict=True)
    each: Literal["connection", "segment", "writer", "flow"] | None = None
    nth: tuple[Annotated[int, Field(ge=1, le=MAX_INT64, strict=True)], ...] = ()
    skip: int = Field(default=0, ge=0, le=MAX_INT64, strict=True)
    every: int = Field(default=1, ge=1, le=MAX_INT64, strict=True)
    probability: float = Field(default=1.0, ge=0, le=1, strict=True)
    times: int | None = Field(default=None, ge=1, le=MAX_INT64, strict=True)
    do: tuple[Action, ...] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _stack(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("do"), (list, tuple)):
            return {"times": len(given["do"]) or None, **given}
        return given

    @model_validator(mode="after")
    def _check_consistency(self) -> Rule:
        if self.on == "reply" and any(isinstance(action, Call) for action in self.do):
            raise ValueError("a function takes requests: on: request")
        if self.filter is not None:
            check_possible(self.filter, self.on)
        if self.about_calls and self.store:
            raise ValueError("store: controller calls count as those of store 0")
        if self.nth and all(nth <= self.skip or (nth - self.skip) % self.every for nth in self.nth):
            raise ValueError(f"nth: skip {self.skip} and every {self.every} leave none of these matches")
        for action in self.do:
            if self.about_calls and not isinstance(action, _OF_CALLS):
                others = "status, answer, delay_ms, hold, drop or ok"
                raise ValueError(f"{action.word!r} is not for controller calls, which `match` names: use {others}")
            if not self.about_calls and isinstance(action, Status | Answer):
                raise ValueError(
                    f"{action.word!r} is for controller calls: name some in `match`, such as rpc = createStream"
                )
        answers = [action for action in self.do if isinstance(action, Answer)]
        if answers and self.filter is not None:
            rpcs = [subject.call.rpc for subject in possible(self.filter, self.on) if vars(subject.call)]
            for answer in answers if rpcs else ():
                answer.check(rpcs)
        return self

    @field_validator("do", "nth", mode="before")
    @classmethod
    def _as_sequence(cls, given: Any) -> Any:
        return given if isinstance(given, (list, tuple)) else (given,)

    @field_validator("match")
    @classmethod
    def _check_filter(cls, given: str) -> str:
        try:
            if given.strip():
                _parsed(given)
        except FilterError as error:
            raise ValueError(str(error)) from error
        return given

    @cached_property
    def filter(self) -> Filter | None:
        """The parsed `match`; None if it matches everything."""
        return _parsed(self.match) if self.match.strip() else None

    @cached_property
    def about_calls(self) -> bool:
        """Whether it matches controller calls only; else it matches frames only."""
        return self.filter is not None and self.filter.about_calls


def _store_number(given: Any) -> Any:
    """A key, which is text in JSON: one text for each number, so that no store is given twice."""
    if isinstance(given, bool) or (isinstance(given, str) and not re.fullmatch("0|[1-9][0-9]{0,18}", given)):
        raise ValueError("a key is the number of a store, from 0")
    return given


_StoreNumber = Annotated[int, BeforeValidator(_store_number, json_schema_input_type=int), Field(ge=0, le=MAX_INT64)]
RoundTrip = Annotated[
    Annotated[Milliseconds, Tag("<Number>")] | Annotated[dict[_StoreNumber, Milliseconds], Tag("<Stores>")],
    Discriminator(lambda given: "<Stores>" if isinstance(given, Mapping) else "<Number>"),
]
"""The minimum delay of every reply in ms: one number, or a mapping from store number to delay."""


class FaultSettings(BaseModel):
    """The contents of a fault file.

    seed: seeds all random choices.
    round_trip_ms: minimum delay of every reply; one number, or a mapping from store number to delay.
    rules: in evaluation order. toxics: in the order in which they follow each other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, ge=-MAX_INT64, le=MAX_INT64, strict=True)
    round_trip_ms: RoundTrip = 0.0
    rules: tuple[Rule, ...] = ()
    toxics: tuple[Toxic, ...] = ()

    @field_validator("rules", "toxics")
    @classmethod
    def _check_names(cls, given: tuple[Rule | Toxic, ...], info: ValidationInfo) -> tuple[Rule | Toxic, ...]:
        names = Counter(item.name if isinstance(item, Rule) else item.known_as for item in given)
        twice = next((name for name, count in names.items() if name and count > 1), None)
        if twice is not None:
            raise ValueError(f"two {info.field_name} have the name {twice!r}")
        return given
