"""Options of `format("segstore.trace")`, validated once.

Refused, with `OptionError`: unknown options and invalid values.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple, TypeVar

from segstore.pipeline.storage import Storage
from segstore.pipeline.trace.columns import ALL_COLUMNS, FACT_COLUMNS, PACKED_COLUMNS, PLACE, TraceColumn, select
from segstore.pipeline.trace.files import LOCAL, FileRange, plan, shared
from segstore.pipeline.trace.filter import Chosen
from segstore.wire.schema import COMMANDS, Unknown
from segstore.wire.validation import unique

Mode = Literal["permissive", "failfast"]
LimitUnit = Literal["bytes", "rows", "files"]
T = TypeVar("T")

_OPTIONS: Final = (
    "path", "paths", "columns", "fields", "frame", "tokens", "mode", "packed", "facts", "splitBytes",
    "maxBytesPerTrigger", "maxRowsPerTrigger", "maxFilesPerTrigger", "maxFileAgeMs", "ports",
    "commands", "connections", "fromNs", "untilNs", "storageOptions",
)  # fmt: skip
OF_FACTS: Final = ("mode", "splitBytes", "ports", "storageOptions")
"""The options that facts take: none that chooses records."""
MOST_FILE_AGE_MS: Final = 7 * 24 * 3600 * 1000
"""Default of `maxFileAgeMs`: a week, as in Spark's own file sources."""
_LIMITS: Final[dict[str, LimitUnit]] = {
    "maxBytesPerTrigger": "bytes", "maxRowsPerTrigger": "rows", "maxFilesPerTrigger": "files",
}  # fmt: skip
_PACKED: Final = {column.name: column for column in PACKED_COLUMNS}
_FACTS: Final = {column.name: column for column in FACT_COLUMNS}
_BOOLEANS: Final = {"true": True, "false": False}


class OptionError(ValueError):
    """An option is unknown or its value invalid. Attributes: option, actual."""

    def __init__(self, message: str, option: str, actual: str | None = None) -> None:
        super().__init__(message)
        self.option = option
        self.actual = actual


class BatchLimit(NamedTuple):
    """The limit of one micro-batch."""

    unit: LimitUnit
    most: int


class TraceReaderOptions(NamedTuple):
    """The options of a trace reader.

    paths: files, folders, globs. columns: used if the reader names no schema. tokens: whether `fields` and `frame` keep
    delegation tokens. fail_fast: whether the first unreadable part ends the query. packed: whether rows are given as
    `PACKED_COLUMNS`. facts: whether `FACT_COLUMNS` are given in place of rows. split_bytes: approximate bytes of a file
    per task; None for `piece_bytes_of`. limit: of a micro-batch. most_file_age_ms: age at which streams forget files
    that do not change. ports: the stores' ports in packet captures; empty for all connections that speak the protocol.
    chosen: the records that become rows. storage: opens the paths.
    """

    paths: tuple[str, ...]
    columns: tuple[TraceColumn, ...]
    tokens: bool = False
    fail_fast: bool = False
    packed: bool = False
    facts: bool = False
    split_bytes: int | None = None
    limit: BatchLimit | None = None
    most_file_age_ms: int = MOST_FILE_AGE_MS
    ports: tuple[int, ...] = ()
    chosen: Chosen = Chosen()
    storage: Storage = LOCAL

    @property
    def given(self) -> tuple[TraceColumn, ...]:
        """The columns of the result."""
        return PACKED_COLUMNS if self.packed else self.columns

    @property
    def known(self) -> Mapping[str, TraceColumn]:
        """The columns that a result can have."""
        return _FACTS if self.facts else _PACKED if self.packed else ALL_COLUMNS

    def pieces(self, files: Sequence[str], split_bytes: int) -> list[FileRange]:
        """Divides files into pieces of about `split_bytes`; for facts, into whole files, or shares of connections."""
        if self.facts:
            return [*shared(plan(files, sys.maxsize, self.storage), split_bytes)]
        return plan(files, split_bytes, self.storage)


def read_options(options: Mapping[str, str]) -> TraceReaderOptions:
    """Parses options from Spark; names are case-insensitive. Raises OptionError, ColumnError."""
    given = by_name(options, _OPTIONS)
    facts = read_flag(given, "facts", False)
    if facts and (others := given.keys() - {"facts", "path", "paths", "columns", *OF_FACTS}):
        raise OptionError(f"facts take the options {', '.join(OF_FACTS)}, not {min(others)}", min(others))
    names = [name.strip() for name in given["columns"].split(",")] if "columns" in given else None
    columns = select([*_FACTS] if facts and names is None else names, _FACTS if facts else ALL_COLUMNS)
    chosen = {column.name for column in columns}
    extra = [name for name in ("fields", "frame") if read_flag(given, name, False) and name not in chosen]
    limits = [BatchLimit(unit, read_count(given, name, 0)) for name, unit in _LIMITS.items() if name in given]
    if len(limits) > 1:
        raise OptionError(f"only one of {', '.join(_LIMITS)}", "maxRowsPerTrigger")
    packed = read_flag(given, "packed", False)
    if packed and not chosen.issuperset(PLACE):
        raise OptionError(f"packed rows have the columns {', '.join(PLACE)}", "packed", "true")
    mode = given.get("mode", "permissive").lower()
    if mode not in ("permissive", "failfast"):
        raise OptionError(f"mode is permissive or failfast, not {mode!r}", "mode", mode)
    return TraceReaderOptions(
        paths=_paths(given),
        columns=columns + select(extra) if extra else columns,
        tokens=read_flag(given, "tokens", False),
        fail_fast=mode == "failfast",
        packed=packed,
        facts=facts,
        split_bytes=read_count(given, "splitBytes", None),
        limit=limits[0] if limits else None,
        most_file_age_ms=read_count(given, "maxFileAgeMs", MOST_FILE_AGE_MS),
        ports=tuple(_integers(given, "ports", 1, 65_535)) if given.get("ports") else (),
        chosen=_chosen(given),
        storage=_storage(given),
    )


def by_name(options: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Returns options by their names in `names`, which are case-insensitive. Raises OptionError for another name."""
    known = {name.lower(): name for name in names}
    for name in options:
        if name.lower() not in known:
            raise OptionError(f"there is no option {name!r}; there are {', '.join(known.values())}", name)
    return {known[name.lower()]: value for name, value in options.items()}


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    if "paths" in given:
        with suppress(ValueError):
            paths = json.loads(given["paths"])
            if isinstance(paths, list) and paths and all(isinstance(path, str) for path in paths):
                return tuple(paths)
        raise OptionError("paths is a JSON list of texts", "paths", given["paths"])
    if not given.get("path"):
        raise OptionError("a path is needed: load(PATH), a file, a folder or a glob", "path")
    return (given["path"],)


def read_flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    """Returns an option that is true or false. Raises OptionError."""
    value = given.get(name)
    if value is None:
        return default
    if value.lower() not in _BOOLEANS:
        raise OptionError(f"{name} is true or false, not {value!r}", name, value)
    return _BOOLEANS[value.lower()]


def read_count(given: Mapping[str, str], name: str, default: T) -> int | T:
    """Returns an option that is a whole number above 0. Raises OptionError."""
    return _integer(name, given[name], 1) if name in given else default


def _integer(name: str, text: str, least: int = -(1 << 63), most: int = (1 << 63) - 1) -> int:
    """Returns a whole number. Raises OptionError."""
    with suppress(ValueError):
        number = int(text)
        if least <= number <= most:
            return number
    raise OptionError(f"{name} takes whole numbers from {least} to {most}, not {text!r}", name, text)


def _integers(given: Mapping[str, str], name: str, *bounds: int) -> Iterator[int]:
    """Yields the whole numbers of a list. Raises OptionError."""
    return (_integer(name, number, *bounds) for number in given[name].split(","))


def _chosen(given: Mapping[str, str]) -> Chosen:
    chosen = Chosen()
    if "commands" in given:
        names = tuple(name.strip().upper() for name in given["commands"].split(","))
        known = {cls.type_name for cls in COMMANDS.values()} | {Unknown.type_name}
        if strange := [name for name in names if name not in known]:
            raise OptionError(f"no command is called {strange[0]!r}", "commands", given["commands"])
        chosen = chosen._replace(commands=frozenset(names))
    if "connections" in given:
        chosen = chosen._replace(connections=frozenset(_integers(given, "connections")))
    if "fromNs" in given:
        chosen = chosen._replace(from_ns=_integer("fromNs", given["fromNs"]))
    if "untilNs" in given:
        chosen = chosen._replace(until_ns=_integer("untilNs", given["untilNs"]))
    return chosen


def _storage(given: Mapping[str, str]) -> Storage:
    try:
        options = json.loads(given.get("storageOptions", "{}"), object_pairs_hook=unique)
    except ValueError:
        options = None
    if not isinstance(options, dict):  # not shown: it may contain credentials
        raise OptionError('storageOptions is a JSON object, such as {"anon": true}', "storageOptions")
    return Storage(options)
