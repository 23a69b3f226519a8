"""Settings of a segment store, checked once at the edge.

Each field's docstring describes it; its first sentence is the help of the option of `segstore serve`. Where a
default follows the reference, the docstring names its source.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self, TypedDict, TypeVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    Tag,
    ValidationError,
    model_validator,
)

from segstore.server.net import TlsFiles
from segstore.server.store import MAX_ATTRIBUTES
from segstore.wire import MAX_FRAME_BYTES, OLDEST_COMPATIBLE_VERSION, WIRE_VERSION
from segstore.wire.printable import SHOWN, printable
from segstore.wire.validation import first_error, message_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

M = TypeVar("M", bound=BaseModel)

_MIB = 1024 * 1024
_NAMES_SHOWN: Final = 10
_TAG: Final = re.compile(r"<\w+>|\[key\]")
_NAME_CHARACTERS: Final = 100
_SEPARATORS: Final = re.compile(r"[/\\\x00-\x1f\x7f-\x9f]")

SETTINGS: Final = ConfigDict(
    frozen=True,
    extra="forbid",
    hide_input_in_errors=True,  # the input may contain a key
    defer_build=True,  # most models are never used; not for bodies of HTTP requests: FastAPI warns then
)
"""The configuration of all models of settings."""


def read_text(path: Path, most_bytes: int = 8 * _MIB, ending: bytes = b"") -> str:
    """The text of a file of at most `most_bytes`, or of standard input for `-`, without a byte-order mark, and without
    bytes of `ending` at its end, which do not count.

    Raises OSError, or ValueError, whose text contains nothing of the file, if it is longer or not UTF-8.
    """
    with open(0, "rb", closefd=False) if path == Path("-") else path.open("rb") as file:
        data = file.read(most_bytes + len(ending) + 1).rstrip(ending)
    if len(data) > most_bytes:
        raise ValueError(f"{path} has more than {most_bytes} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 at byte {error.start}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises OSError, and ValueError, whose text is a sentence."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: this is not TOML: {error}") from error


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """An error text for an unknown name, with the closest known name, or all of them."""
    near = difflib.get_close_matches(name, known := list(known), 1)
    return f"there is no such {kind}" + (f" ({near[0]}?)" if near else f"; there are {', '.join(known)}")


def check_choice(option: str, value: object, known: Collection[str]) -> None:
    """Raises ValueError for an option's unknown value."""
    if value not in known:
        near = difflib.get_close_matches(str(value), known, 1)
        hint = f" ({near[0]}?)" if near else ""
        raise ValueError(f"{option} is one of {', '.join(known)}, not {printable(repr(value), SHOWN)}{hint}")


def settings_of(
    model: type[M], values: Mapping[str, Any], also: Collection[str] = (), *, strict: bool | None = None
) -> M:
    """Settings from keyword arguments. also: other arguments of the caller, for suggestions. strict: refuse values of
    other types, such as numbers as text.

    Raises ValueError, whose text is a sentence.
    """
    try:
        return model.model_validate(values, strict=strict)
    except ValidationError as error:
        raise ValueError(first_problem(error, model, "option", also)) from None


def first_problem(error: ValidationError, model: Any, kind: str = "key", also: Collection[str] = ()) -> str:
    """Returns the first error in a model's input: its path, and a sentence. kind, also: as for `problem_of`."""
    first = first_error(error)
    path, problem = path_of(first["loc"]), problem_of(first, model, kind, also)
    return f"{path}: {problem}" if path else problem


def problem_of(error: ErrorDetails, model: Any, kind: str = "key", also: Collection[str] = ()) -> str:
    """Returns the sentence for an error of pydantic in a model's input; for an unknown key, with the known keys.

    kind: of a key. also: other known keys of the whole input.
    """
    if error["type"] != "extra_forbidden":
        return message_of(error)
    *path, key = error["loc"]
    known = [*keys_at(model, path), *(() if path else also)]
    return unknown_name(kind, str(key), known) if known else f"there is no such {kind}"


def path_of(location: Sequence[int | str]) -> str:
    """Returns the readable path of an error location, without `[key]` and tags of unions, such as `<Error>`.

    Long keys are cut.
    """
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _TAG.fullmatch(part):
            name = part if len(part) <= _NAME_CHARACTERS else f"{part[:_NAME_CHARACTERS]}…"
            path += f".{name}" if path else name
    return path


def names_there(known: Collection[str], what: str) -> str:
    """Returns the existing names for an error about an unknown name: the first ten."""
    shown = ", ".join(map(repr, islice(known, _NAMES_SHOWN)))
    more = f" and {len(known) - _NAMES_SHOWN} more" if len(known) > _NAMES_SHOWN else ""
    return f"there are {shown}{more}" if known else f"there are no {what}"


class UnknownName(KeyError):
    """Nothing of a kind has that name. Attributes: name, known (the names that there are)."""

    kind: ClassVar[str]

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name = name
        self.known = known

    def __str__(self) -> str:
        return f"no {self.kind} has the name {self.name[:200]!r}; {names_there(self.known, f'{self.kind}s')}"


def keys_at(model: Any, location: Sequence[int | str]) -> list[str]:
    """Returns the allowed keys of an object in a model's input. location: the object's location in a pydantic error."""
    kinds: list[Any] = [model]
    for part in location:
        kinds = [inner for kind in kinds for inner in _kinds_at(kind, part)]
    members = [member for kind in kinds for member, _ in _alternatives(kind)]
    return [field.alias or name for member in members for name, field in getattr(member, "model_fields", {}).items()]


def _alternatives(kind: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """The types of a union, or the type itself, each with its annotations."""
    if get_origin(kind) is Annotated:
        return [(member, (*more, *kind.__metadata__)) for member, more in _alternatives(kind.__origin__)]
    if get_origin(kind) in (Union, UnionType):
        return [alternative for arg in get_args(kind) for alternative in _alternatives(arg)]
    return [(kind, ())]


def _kinds_at(kind: Any, part: int | str) -> Iterator[Any]:
    for member, marks in _alternatives(kind):
        fields = getattr(member, "model_fields", {})
        if isinstance(part, int) and get_origin(member) in (list, tuple):
            yield get_args(member)[0]
        elif part in fields:
            yield fields[part].annotation
        elif any(isinstance(tag, Tag) and tag.tag == part for tag in marks):
            yield member


def _plain_name(name: str) -> str:
    """Returns a name that is valid as a part of URL and file paths. Raises ValueError for other names."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError("text in valid unicode is needed") from None
    if name in (".", ".."):
        raise ValueError(f"{name} is no name: clients and file systems take it for a folder")
    if separator := _SEPARATORS.search(name):
        raise ValueError(f"a name has no slashes, backslashes or control characters; this one has {separator[0]!r}")
    return name


PlainName = Annotated[str, AfterValidator(_plain_name)]
"""A name that paths of URLs and files can have as a part."""


class LimitSettings(BaseModel):
    """Limits on the peers: memory, connections and time."""

    model_config = SETTINGS

    max_frame_bytes: int = Field(default=MAX_FRAME_BYTES, ge=8, le=MAX_FRAME_BYTES)
    """Maximum size of a frame, header included (`WireCommands.MAX_WIRECOMMAND_SIZE`)."""
    connection_outstanding_bytes: int = Field(default=8 * _MIB, gt=0)
    """Maximum size of the replies that wait for a peer to read them. Above it, the peer's requests are neither read nor
    executed. One more reply can wait, and requests already read are buffered. The reference limits the bytes in flight
    on a connection to 128 MiB."""
    total_outstanding_bytes: int = Field(default=512 * _MIB, gt=0)
    """Maximum size of all memory held for peers: waiting replies, incomplete frames and append blocks, buffered
    requests, reads that wait at a tail. Above it, the largest connections are closed. It is exceeded by at most the
    replies to one read of one connection (1 MiB and one reply)."""
    connection_waiting_reads: int = Field(default=10_000, gt=0)
    """Maximum number of tail reads that wait for one peer; one more closes its connection."""
    connection_writer_bytes: int = Field(default=8 * _MIB, gt=0)
    """Maximum size of the names and numbers of one peer's writers; more closes its connection."""
    connection_transient_segments: int = Field(default=1000, gt=0)
    """Maximum number of transient segments of one peer; one more closes its connection."""
    segment_attributes: int = Field(default=MAX_ATTRIBUTES, gt=0)
    """Maximum number of extended attributes of a segment, including one for each writer that was ever set up. A request
    for one more closes the connection. The reference has no bound: it writes them to its storage."""
    max_memory_bytes: int | None = Field(default=None, gt=0)
    """Maximum size of the data stored in memory; `serve` takes half of the memory available to the process. The size is
    an estimate over segments with their bytes, attributes, table keys, writers, and the controller's state; with a data
    directory, segment bytes do not count. A request that needs more closes its connection, and a controller call that
    needs more is refused; reads, truncations, merges and deletions still work."""
    request_keys: int = Field(default=1024, gt=0)
    """Maximum number of keys, entries or attributes in one request; more are refused as an illegal argument. The
    official client sends at most 256 (`TableSegment.MAXIMUM_BATCH_KEY_COUNT`); the reference's store bounds only their
    bytes. A request with more than 16 times as many is not read, and its connection is closed."""
    request_segments: int = Field(default=256, gt=0)
    """Maximum number of segments that one request may merge; more are refused as an illegal argument. The reference's
    controller sends at most 100 (`CommitRequestHandler`)."""
    max_connections: int | None = Field(default=None, gt=0)
    """Maximum number of connections; half of the process's file descriptors (`ulimit -n`) if not given. One more is
    closed at once."""
    first_frame_timeout_s: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Close a connection that has not sent a whole frame by then. A TLS handshake may take as long."""
    frame_timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Close a connection whose frame or append block is not complete by then. Bytes that arrive meanwhile do not extend
    the time, which starts again when the store reads the peer after a pause."""
    stalled_peer_timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Close a connection whose peer has read nothing of its waiting replies for this long."""
    linger_s: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Time that a closed connection has to read the replies already written."""


def _numbers(own: object) -> object:
    if not isinstance(own, str | list):
        return own
    try:
        return frozenset(int(number) for number in (own.split(",") if isinstance(own, str) else map(str, own)))
    except ValueError:
        raise ValueError(f"{own!r} is no list of containers such as 0,2") from None


class StoreSettings(BaseModel):
    """One segment store."""

    model_config = SETTINGS

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address that all ports listen on."""
    port: int = Field(default=12345, ge=0, le=65535)
    """Port of the segment store; 0 picks a free port."""
    admin_port: int | None = Field(default=None, ge=0, le=65535)
    """Port for admin commands of the segment store; disabled by default."""
    containers: int = Field(default=4, gt=0)
    """Number of containers in the cluster (`pravegaservice.container.count`)."""
    own: Annotated[frozenset[int] | None, BeforeValidator(_numbers)] = None
    """Containers that this store owns, such as 0,2; all if not given."""
    auth_key: SecretStr | None = Field(default=None, min_length=1)
    """Key that signs delegation tokens; no tokens are required if not given."""
    strict_auth: bool = False
    """Require a token for CreateTransientSegment too, unlike the reference."""
    strict_request_ids: bool = False
    """Reply with the request id when the token of a read is refused; the reference replies with the read's offset."""
    strict_transient_attributes: bool = False
    """Allow transient segments only their writer's event number as an attribute; the reference allows 16. PDP-43A
    specifies the former."""
    stack_traces: bool = False
    """Include stack traces in failure replies. The admin port always includes them, as in the reference."""
    wire_version: int = Field(default=WIRE_VERSION, ge=OLDEST_COMPATIBLE_VERSION, le=WIRE_VERSION)
    """Newest wire version to announce; frames are read and written as in that version."""
    strict_wire_version: bool = False
    """Close the connection on trailing bytes that the wire version does not know. Stores up to version 8 (Pravega 0.5)
    did so after they had executed the command; otherwise the bytes are ignored."""
    long_poll_s: float = Field(default=20.0, gt=0, allow_inf_nan=False)
    """Answer a waiting tail read without data after this time. The reference waits without a limit; the Rust client
    gives up after 30 s, so the default is shorter."""
    reuse_names: bool = False
    """Allow the name of a deleted segment to be used again, even if it held data."""
    transient_idle_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Delete transient segments that have not been used for this long."""
    tls_cert: Path | None = None
    """Certificate for TLS, with its chain (PEM); requires --tls-key."""
    tls_key: Path | None = None
    """Private key of the certificate (PEM)."""
    limits: LimitSettings = LimitSettings()
    """Limits on the peers."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if outside := sorted(number for number in self.own or () if number not in range(self.containers)):
            raise ValueError(f"own names container {outside[0]}, but there are {self.containers}, counted from 0")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        return self

    @property
    def tls(self) -> TlsFiles | None:
        """Returns the TLS files of all ports; None without TLS."""
        return TlsFiles.of(self.tls_cert, self.tls_key)

    @property
    def signing_key(self) -> str | None:
        """`auth_key` as plain text."""
        return None if self.auth_key is None else self.auth_key.get_secret_value()


class StoreOptions(TypedDict, total=False):
    """The fields of `StoreSettings` as keyword arguments."""

    host: str
    port: int
    admin_port: int | None
    containers: int
    own: Collection[int] | None
    auth_key: SecretStr | str | None
    strict_auth: bool
    strict_request_ids: bool
    strict_transient_attributes: bool
    stack_traces: bool
    wire_version: int
    strict_wire_version: bool
    long_poll_s: float
    reuse_names: bool
    transient_idle_s: float
    tls_cert: Path | None
    tls_key: Path | None
    limits: LimitSettings
