"""The filter language: a one-line expression that selects frames.

    type = APPEND_BLOCK_END and segment ~ "scope/*" and not (failure or latency > 5ms)

    filter      = both { "or" both }
    both        = one { "and" one }
    one         = "not" one | "(" filter ")" | flag | name operator value
    name        = one of `NAMES`; "data" with a path, such as data[0].city
    operator    = "=" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~"

`~` takes a glob (`scope/*`) or, between slashes, a regular expression (`/epoch\\.[12]$/`) that may match anywhere; see
`segstore.wire.patterns`. Values are bare or quoted; a backslash escapes within quotes. Sizes and times take units
(`4KiB`, `5ms`). `NAMES` describes the names. A comparison with a missing value is false, whatever the operator; if a
frame has several segments, one must match, or for `!=` and `!~` none may.

`parse_filter` compiles a filter to a predicate of a `Subject`; nothing is evaluated as Python. An invalid filter raises
`FilterError` with the column and the expected token.

Invariant: a filter is at most `MOST_TEXT` characters long and takes linear time in the texts that it looks at.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import operator
import re
import uuid
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol

from segstore.wire import commands as _commands  # noqa: F401 — completes the registry
from segstore.wire.errors import WireError
from segstore.wire.inspect import MOST_SEARCHED
from segstore.wire.names import SegmentName
from segstore.wire.patterns import (
    SIGNS_OF_VALUES,
    Path,
    PatternError,
    bytes_of,
    contains,
    glob,
    has_value,
    is_text,
    matching,
    number_of,
    path_of,
    regular_expression,
)
from segstore.wire.printable import SHOWN, printable
from segstore.wire.request_id import flow_of, sequence_of
from segstore.wire.schema import COMMANDS, Unknown
from segstore.wire.trace.calls import outcomes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from segstore.wire.trace.calls import Call

MOST_TEXT: Final = 64 * 1024
_DEEPEST: Final = 100
_SIZES: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_TIMES: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TYPES: Final = {
    **{cls.__name__.casefold(): cls.type_name for cls in COMMANDS.values()},
    **{cls.type_name.casefold(): cls.type_name for cls in COMMANDS.values()},
    Unknown.type_name.casefold(): Unknown.type_name,
}

_BLANK: Final = re.compile(r"\s*")
_WORD: Final = re.compile(r"[^\s()\"'=<>!~]+")
_OPERATOR: Final = re.compile(r"<=|>=|!=|!~|==|[=<>~]")
_QUOTED: Final = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'", re.DOTALL)
_NEXT: Final = re.compile("|".join(token.pattern for token in (_WORD, _OPERATOR, _QUOTED)), re.DOTALL)
_PATTERN: Final = re.compile(r"/((?:[^/\\]|\\.)*)/")
_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-zµ]*)")


class FilterError(WireError):
    """A filter that cannot be parsed.

    Attributes: column (from 1) of the error, expected (valid tokens there), found (the text there, "" at the end).
    """

    def __init__(self, column: int, expected: str, found: str) -> None:
        shown = printable(repr(found), SHOWN) if found else "the end"
        super().__init__(f"column {column}: expected {expected}, found {shown}")
        self.column = column
        self.expected = expected
        self.found = found


class Subject(Protocol):
    """The properties that a filter can test; None or an empty tuple if not applicable."""

    @property
    def kind(self) -> str: ...
    @property
    def type_name(self) -> str | None: ...
    @property
    def code(self) -> int | None: ...
    @property
    def segments(self) -> Sequence[str]: ...
    @property
    def request_id(self) -> int | None: ...
    @property
    def writer_id(self) -> uuid.UUID | None: ...
    @property
    def connection(self) -> int | None: ...
    @property
    def direction(self) -> int | None: ...
    @property
    def failure(self) -> bool: ...
    @property
    def malformed(self) -> bool: ...
    @property
    def size(self) -> int: ...
    @property
    def latency_ns(self) -> int | None: ...
    @property
    def time_ns(self) -> int | None: ...
    @property
    def call(self) -> Call | None: ...
    @property
    def status(self) -> str | None: ...
    @property
    def payloads(self) -> Sequence[bytes]: ...
    @property
    def broken(self) -> Sequence[str]: ...


class _Name(NamedTuple):
    """A name of the language: the sort of its value, its getter, and its meaning."""

    sort: str
    get: Callable[[Any], Any]
    meaning: str


def _streams(subject: Subject) -> list[str]:
    parsed = map(SegmentName.parse, subject.segments)
    named = ((name.scope, name.stream) for name in parsed if name.stream is not None)
    streams = []
    for scope, stream in (*named, *_called(subject)):
        if stream:
            streams += [stream] if scope is None else [stream, f"{scope}/{stream}"]
    return streams


def _scopes(subject: Subject) -> list[str]:
    scopes = [scope for segment in subject.segments if (scope := SegmentName.parse(segment).scope) is not None]
    return scopes + [scope for scope, _ in _called(subject)]


def _called(subject: Subject) -> tuple[tuple[str, str], ...]:
    return () if subject.call is None else subject.call.streams


def _half(half: Callable[[int], int]) -> Callable[[Subject], int | None]:
    return lambda subject: None if subject.request_id is None else half(subject.request_id)


_NAMES: Final = {
    "type": _Name(
        "type",
        lambda subject: subject.type_name if subject.call is None else None,
        "the command, such as READ_SEGMENT or ReadSegment",
    ),
    "kind": _Name("kind", operator.attrgetter("kind"), "frame or call; of a trace also open, close, bytes"),
    "rpc": _Name(
        "rpc",
        lambda subject: subject.call and subject.call.rpc,
        "the method of a controller call, such as createStream",
    ),
    "status": _Name(
        "status", operator.attrgetter("status"), "how a controller call ended: OK, UNAVAILABLE, STREAM_EXISTS …"
    ),
    "code": _Name("number", operator.attrgetter("code"), "type code on the wire"),
    "segment": _Name("texts", operator.attrgetter("segments"), "any segment that the frame, or its request, speaks of"),
    "stream": _Name("texts", _streams, "the stream of such a segment, with its scope or without"),
    "scope": _Name("texts", _scopes, "the scope of such a segment"),
    "data": _Name(
        "data", operator.attrgetter("payloads"), "an event, or a key or value of a table; data.city: in JSON"
    ),
    "flow": _Name("number", _half(flow_of), "upper half of the request id"),
    "sequence": _Name("number", _half(sequence_of), "lower half of the request id"),
    "request_id": _Name("number", operator.attrgetter("request_id"), "request id"),
    "writer_id": _Name("uuid", lambda subject: subject.writer_id and str(subject.writer_id), "writer id"),
    "connection": _Name("number", operator.attrgetter("connection"), "number of the connection"),
    "direction": _Name("direction", operator.attrgetter("direction"), "request (to the store) or reply"),
    "failure": _Name("flag", operator.attrgetter("failure"), "the reply says that the request or call failed"),
    "malformed": _Name("flag", operator.attrgetter("malformed"), "bytes that do not decode"),
    "size": _Name("size", operator.attrgetter("size"), "bytes, header included; units B, KB, KiB, MB, MiB, GB, GiB"),
    "latency": _Name("time", operator.attrgetter("latency_ns"), "of a reply: time since its request; units ns to h"),
    "time": _Name("time", operator.attrgetter("time_ns"), "since the start; units ns, us, ms, s, min, h"),
    "broken": _Name("rules", operator.attrgetter("broken"), "of a trace: any rule whose verdicts name the record"),
}
NAMES: Final = {name: entry.meaning for name, entry in _NAMES.items()}
"""All names of the language and their meanings."""

_EXPECTED: Final = {
    "type": "a command such as READ_SEGMENT",
    "kind": "frame, call, open, close or bytes",
    "rpc": "a method of the controller such as createStream",
    "status": "a status such as OK",
    "number": "a whole number",
    "uuid": "a writer id such as 01234567-89ab-cdef-0123-456789abcdef",
    "direction": "request or reply",
    "flag": "true or false",
    "size": "a size such as 4KiB",
    "time": "a time such as 5ms",
    "texts": "a text",
    "rules": "a rule such as lost-write",
    "data": "a text, or bytes such as 0x0aff",
}
_GUESSED: Final = {"type": "command", "rpc": "method", "status": "status", "rules": "rule"}
"""Sort → the name of its words in errors that suggest the nearest word."""
_APPENDS: Final = "an append is APPEND_BLOCK_END, or CONDITIONAL_APPEND if it has a condition"
_TRANSACTIONS: Final = (
    "transactions are calls, such as rpc = commitTransaction; of the requests of one, segment ~ *#transaction.* holds"
)
_READS: Final = f"{', '.join(cls.type_name for cls in COMMANDS.values() if cls.type_name.startswith('READ_'))}?"
_MEANT: Final = {
    **dict.fromkeys(("append", "write", "events"), _APPENDS),
    "read": _READS,
    **dict.fromkeys(("abort", "commit", "transaction", "txn"), _TRANSACTIONS),
}
"""Words that are no type, and the types or calls that they mean."""
_OPERATORS: Final = {
    **dict.fromkeys(("number", "size", "time"), ("=", "!=", "<", "<=", ">", ">=")),
    **dict.fromkeys(("kind", "direction", "flag"), ("=", "!=")),
    "data": SIGNS_OF_VALUES,
    **dict.fromkeys(("type", "rpc", "status", "texts", "rules", "uuid"), ("=", "!=", "~", "!~")),
}
_SEVERAL: Final = ("texts", "rules")
"""The sorts of names that have several values."""


def language() -> dict[str, Any]:
    """Returns the definition of the language as JSON values, for an evaluator in another programming language.

    names: the sort of each name's value. expected and operators: by sort. words: by sort, each word in lower case and
    its value. units: by sort. data_bytes: the bytes of a payload that are searched.
    """
    return {
        "names": {name: entry.sort for name, entry in _NAMES.items()},
        "expected": _EXPECTED,
        "operators": _OPERATORS,
        "words": {sort: words() for sort, words in _WORDS.items()},
        "units": {"size": _SIZES, "time": _TIMES},
        "data_bytes": MOST_SEARCHED,
    }


def values_of(subject: Any) -> dict[str, Any]:
    """Returns the values of the names that are known of a subject, which may lack attributes."""
    values = {}
    for name, entry in _NAMES.items():
        with contextlib.suppress(AttributeError):
            values[name] = entry.get(subject)
    return values


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Filter:
    """A predicate of subjects.

    text: its source. names: the names that it reads. types: the types that it compares with `=`. parts: what has to
    hold together, each with its source; a filter with `or` is one part.
    """

    text: str
    names: frozenset[str]
    types: frozenset[str]
    parts: tuple[tuple[str, Callable[[Subject], bool]], ...]
    holds: Callable[[Subject], bool]

    @property
    def about_calls(self) -> bool:
        """Whether a fault rule with it is about controller calls, not about frames."""
        return not self.names.isdisjoint(("rpc", "status"))

    def texts(self, subject: Subject) -> tuple[str, ...]:
        """The segments, streams and scopes of a subject that the filter reads."""
        read = (_NAMES[name] for name in sorted(self.names))
        return tuple(text for entry in read if entry.sort == "texts" for text in entry.get(subject))

    def __call__(self, subject: Subject) -> bool:
        return self.holds(subject)

    def __repr__(self) -> str:
        return f"parse_filter({self.text!r})"


def parse_filter(text: str) -> Filter:
    """Compiles a filter. Raises FilterError."""
    if len(text) > MOST_TEXT:
        raise FilterError(1, f"at most {MOST_TEXT} characters", text)
    parser = _Parser(text)
    holds = parser.either(0)
    if parser.peek():
        parser.fail("'and', 'or' or the end")
    parts = parser.parts if len(parser.parts) > 1 else [(text.strip(), holds)]
    return Filter(text, frozenset(parser.names), frozenset(parser.types), tuple(parts), holds)


class _Parser:
    """A recursive descent parser; each method consumes the text that it parses."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.names: set[str] = set()
        self.types: set[str] = set()
        self.parts: list[tuple[str, Callable[[Subject], bool]]] = []

    def peek(self) -> str:
        """Returns the next token, for errors: a word, an operator or a parenthesis; "" at the end."""
        blank = _BLANK.match(self.text, self.at)
        self.at = blank.end() if blank else self.at
        token = _NEXT.match(self.text, self.at)
        return token.group() if token else self.text[self.at : self.at + 1]

    def fail(self, expected: str) -> NoReturn:
        token = self.peek()  # also skips blanks
        raise FilterError(self.at + 1, expected, token)

    def word(self, *wanted: str) -> bool:
        """Consumes the next word if it is in `wanted`."""
        token = self.peek()
        if token.casefold() not in wanted:
            return False
        self.at += len(token)
        return True

    def either(self, depth: int) -> Callable[[Subject], bool]:
        parts = [self.both(depth)]
        while self.word("or"):
            parts.append(self.both(depth))
        if depth == 0 and len(parts) > 1:
            self.parts.clear()
        return parts[0] if len(parts) == 1 else lambda subject: any(part(subject) for part in parts)

    def both(self, depth: int) -> Callable[[Subject], bool]:
        parts = [self.part(depth)]
        while self.word("and"):
            parts.append(self.part(depth))
        return parts[0] if len(parts) == 1 else lambda subject: all(part(subject) for part in parts)

    def part(self, depth: int) -> Callable[[Subject], bool]:
        """Parses one part of a conjunction; records parts that are not in parentheses."""
        start, holds = self.at, self.one(depth)
        if depth == 0:
            self.parts.append((self.text[start : self.at].strip(), holds))
        return holds

    def one(self, depth: int) -> Callable[[Subject], bool]:
        if depth > _DEEPEST:
            self.fail(f"at most {_DEEPEST} levels of 'not' and parentheses")
        if self.word("not"):
            negated = self.one(depth + 1)
            return lambda subject: not negated(subject)
        if self.peek() == "(":
            self.at += 1
            inner = self.either(depth + 1)
            if self.peek() != ")":
                self.fail("')', 'and' or 'or'")
            self.at += 1
            return inner
        return self.comparison()

    def comparison(self) -> Callable[[Subject], bool]:
        token = self.peek()
        if (path := path_of(token)) is not None:
            return self.payload(path)
        if token.casefold().startswith(("data.", "data[")):
            self.fail("a path such as data[0].city")
        name = "writer_id" if token.casefold() == "writer" else token.casefold()
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, 1)
            self.fail(f"a name ({near[0]}?)" if near else f"'not', '(' or one of {', '.join(_NAMES)}")
        self.at += len(token)
        self.names.add(name)
        sort, get, _ = _NAMES[name]
        sign = self.peek()
        allowed = _OPERATORS[sort]
        if sign == "==":
            chosen = "="
        elif sign in allowed:
            chosen = sign
        elif sort == "flag" and not _OPERATOR.fullmatch(sign):
            return lambda subject: bool(get(subject))
        else:
            self.fail(f"one of {' '.join(allowed)}")
        self.at += len(sign)
        if chosen in ("~", "!~"):
            return _matching(get, self.pattern(sort), negated=chosen == "!~", several=sort in _SEVERAL)
        value = self.value(sort)
        if sort == "type" and chosen == "=":
            self.types.add(value)
        if sort in _SEVERAL:
            return _matching(get, value.__eq__, negated=chosen == "!=", several=True)
        if sort == "size" and chosen == "<" and value == 0:
            return _never
        return _comparing(get, _ORDER[chosen], value)

    def payload(self, path: Path) -> Callable[[Subject], bool]:
        """Parses a comparison of payloads, or of values in them."""
        self.at += len(self.peek())
        self.names.add("data")
        sign = "=" if self.peek() == "==" else self.peek()
        if sign not in path.signs:
            self.fail(f"one of {' '.join(path.signs)}")
        self.at += len(self.peek())
        holds, negated = self.payload_test(path, sign.lstrip("!")), sign.startswith("!")
        return _never if holds is _never and not negated else has_value(path, holds, negated=negated)

    def payload_test(self, path: Path, sign: str) -> Callable[[Any], bool]:
        """Parses the right side of a comparison of payloads. Returns a predicate of a payload, or of a value in it."""
        self.peek()
        start = self.at
        if sign == "~" and _PATTERN.match(self.text, start):
            return matching(self.pattern("texts"))
        is_quoted = self.text.startswith(("'", '"'), start)
        text = self.text_value() if self.peek() else self.fail(_EXPECTED["data"])
        if not path.keys and not is_quoted and text[:2].casefold() == "0x":
            data = bytes_of(text)
            if data is None:
                raise FilterError(start + 1, "pairs of hex digits such as 0x0aff", text)
            return data.__eq__ if sign == "=" else lambda payload: data in payload
        if sign == "=":
            return is_text(text)
        if sign != "~":
            number = number_of(text)
            if number is None:
                raise FilterError(start + 1, "a number", text)
            if (sign, number) in ((">", math.inf), ("<", -math.inf)):
                return _never
            return lambda value: isinstance(value, float) and _ORDER[sign](value, number)
        try:
            pattern = glob(f"*{text}*")
        except PatternError as cause:
            raise FilterError(start + 1, f"a glob ({cause})", self.text[start : self.at]) from cause
        return contains(text, pattern)

    def text_value(self) -> str:
        """Parses a bare word, or a quoted text without its quotes."""
        word = self.peek()
        quoted = _QUOTED.match(self.text, self.at)
        if quoted:
            self.at = quoted.end()
            inner = quoted[1] if quoted[1] is not None else quoted[2]
            return re.sub(r"\\(.)", r"\1", inner, flags=re.DOTALL)
        if not _WORD.fullmatch(word):
            self.fail("a value")
        self.at += len(word)
        return word

    def pattern(self, sort: str) -> Callable[[str], bool]:
        """Parses a glob, or a regular expression between slashes."""
        self.peek()
        start, ignore_case = self.at, sort != "texts"
        slashes = _PATTERN.match(self.text, start)
        try:
            if slashes:
                self.at = slashes.end()
                return regular_expression(slashes[1].replace("\\/", "/"), ignore_case=ignore_case)
            return glob(self.text_value(), ignore_case=ignore_case)
        except PatternError as cause:
            expected = f"a {'regular expression' if slashes else 'glob'} ({cause})"
            raise FilterError(start + 1, expected, self.text[start : self.at]) from cause

    def value(self, sort: str) -> Any:
        self.peek()
        start = self.at
        text = self.text_value() if self.peek() else self.fail(_EXPECTED[sort])
        words = _WORDS[sort]() if sort in _WORDS else {}
        try:
            return words[text.casefold()] if words else _VALUES[sort](text)
        except (ValueError, KeyError) as cause:
            hints = {word: f"{name}?" for word, name in words.items()} | (_MEANT if sort == "type" else {})
            near = difflib.get_close_matches(text.casefold(), hints, 1) if sort in _GUESSED else ()
            expected = f"a {_GUESSED[sort]} ({hints[near[0]]})" if near else _EXPECTED[sort]
            raise FilterError(start + 1, expected, text) from cause


def _never(_: Any) -> bool:
    """The test of a comparison that no record matches."""
    return False


def _quantity(units: dict[str, int], fold: Callable[[str], str]) -> Callable[[str], int]:
    def read(text: str) -> int:
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise ValueError(text)
        # Zero is the same in every unit.
        unit = 1 if not match[2] and not Fraction(match[1]) else units[fold(match[2])]
        return int(Fraction(match[1]) * unit)

    return read


def _methods() -> dict[str, str]:
    """The controller's methods by their names in lower case."""
    from segstore.wire.controller_api import METHODS  # imports protobuf, which only such filters need

    return {name.casefold(): name for name in METHODS}


def _statuses() -> dict[str, str]:
    """The outcomes of controller calls by their names in lower case."""
    return {name.casefold(): name for name in sorted(outcomes())}


def _rules() -> dict[str, str]:
    """The rules of histories by their ids."""
    from segstore.wire.history import RULES  # imports this room

    return {rule: rule for rule in RULES}


_WORDS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "type": lambda: _TYPES,
    "rpc": _methods,
    "status": _statuses,
    "rules": _rules,
    "kind": lambda: {kind: kind for kind in ("frame", "call", "open", "close", "bytes")},
    "direction": lambda: {"request": 0, "reply": 1},
    "flag": lambda: {"true": True, "false": False},
}
"""Sort → its words, by their names in lower case."""
_VALUES: Final[dict[str, Callable[[str], Any]]] = {
    "number": int,
    "uuid": lambda text: str(uuid.UUID(text)),
    "size": _quantity(_SIZES, str.upper),
    "time": _quantity(_TIMES, str),
    "texts": str,
}


def _comparing(get: Callable[[Any], Any], holds: Callable[[Any, Any], bool], value: Any) -> Callable[[Subject], bool]:
    def compare(subject: Subject) -> bool:
        actual = get(subject)
        return actual is not None and holds(actual, value)

    return compare


def _matching(
    get: Callable[[Any], Any], matches: Callable[[str], bool], *, negated: bool, several: bool
) -> Callable[[Subject], bool]:
    def match(subject: Subject) -> bool:
        texts = get(subject)
        if not several:
            texts = () if texts is None else (texts,)
        return bool(texts) and any(map(matches, texts)) != negated

    return match
