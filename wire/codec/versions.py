"""Older wire versions: the commands and fields that a version knew, and how it wrote and read frames and streams.

Everything derives from two tables, `COMMANDS_SINCE` and `FIELDS_SINCE`: a body in an older version is the current
schema without newer fields. Fields whose meaning changed are handled by name, in `_older_field`.

A version means the newest release that announced it; versions 7, 12 and 13 were never released and mean the last commit
before the next version. Version 17 is the current schema. Versions before 5 are not supported.

Invariants: frames of `encode_as` decode, here and in the reference, to the same values, with defaults for omitted
fields; every optional field of the schema has its version in the table (tests check this). Speed does not matter here:
bodies go through the construct tree, unless the version's form is current.

Refused: commands that the version did not have (UnknownCommand), frames above its limit (FrameTooLarge). Source: the
history of `WireCommands.java` and `WireCommandType.java`; commits are named beside their versions.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from segstore.wire import commands as _commands  # noqa: F401 — completes the registry
from segstore.wire.codec import codec
from segstore.wire.codec.codec import HEADER_BYTES, OLDEST_COMPATIBLE_VERSION, WIRE_VERSION
from segstore.wire.codec.framing import FrameDecoder
from segstore.wire.commands import admin, append, attribute, errors, segment, session, table
from segstore.wire.errors import BadField, UnknownCommand
from segstore.wire.schema import (
    COMMANDS,
    MAX_FRAME_BYTES,
    BodyStream,
    Command,
    FieldType,
    Nested,
    Unknown,
    WireStruct,
    schema,
    types,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.wire.codec.joining import Joined
    from segstore.wire.schema import Buffer

RELEASES: Final[dict[int, str]] = {
    5: "0.3",  # 1ab37524d5 "Issue 2147: Implement JWT creation and usage in controller", and 6460070235 (merges)
    6: "0.4",  # d01926c65d "Issue 2804: Client reply with server stack trace on error"
    7: "never released",  # 488e1110e5 "Issue 2895: Wire Protocol implementation for TableStore", 446dba4220 (iterators)
    8: "0.5",  # 8e96dc1ca5 "Issue 217: WireCommand changes to enable connection pooling"
    9: "0.6, 0.7",  # c87f62340f "Issue 4107: Automatic delegation token renewal", 7cfe76d829 "Watermarking"
    10: "0.8",  # 560d085c06 "Issue 4792: offset/version based TableSegment reads", ca0cbdd662 "Key Value Tables"
    11: "0.9",  # 75084f3f7a "Issue 5318: use ByteBuf as payload", 055494a2e2 (the error message)
    12: "never released",  # 605106e7ba "Issue 5931: Key-Value Tables Beta 2", 0cdc3be49e (table info, 72 and 73 gone)
    13: "never released",  # 39a39871e0 "Issue 6093: Conditional Segment Merge", 3e46848995 (flush to storage)
    14: "0.10",  # e784210741 "Issue 6142: Expose segment rolloverSizeBytes to client"
    15: "0.11, 0.12",  # 9404b59a5d "Issue 6110: batch merge", 9215909970 (transient segments), 027f47f56c (chunks)
    16: "0.13",  # 859af1ecb9 "Issue 3658: FlowId and Request Id in InvalidEventNumber Wirecommand"
    17: "current",  # 11b61cf67e "Implement PDP-55: Support for reading in fixed size batches"
}
"""Version → the releases of Pravega that announced it."""

_SINCE: Final[dict[int, tuple[type[Command], ...]]] = {
    5: (  # and before
        session.Hello, session.KeepAlive,
        append.Padding, append.PartialEvent, append.Event, append.SetupAppend, append.AppendSetup, append.AppendBlock,
        append.AppendBlockEnd, append.ConditionalAppend, append.DataAppended, append.ConditionalCheckFailed,
        segment.ReadSegment, segment.SegmentRead, segment.GetStreamSegmentInfo, segment.StreamSegmentInfo,
        segment.CreateSegment, segment.SegmentCreated, segment.SealSegment, segment.SegmentSealed,
        segment.DeleteSegment, segment.SegmentDeleted, segment.UpdateSegmentPolicy, segment.SegmentPolicyUpdated,
        segment.TruncateSegment, segment.SegmentTruncated, segment.MergeSegments, segment.SegmentsMerged,
        attribute.GetSegmentAttribute, attribute.SegmentAttribute, attribute.UpdateSegmentAttribute,
        attribute.SegmentAttributeUpdated,
        errors.WrongHost, errors.SegmentIsSealed, errors.SegmentAlreadyExists, errors.NoSuchSegment,
        errors.InvalidEventNumber, errors.SegmentIsTruncated, errors.OperationUnsupported, errors.AuthTokenCheckFailed,
    ),
    7: (
        table.CreateTableSegment, table.DeleteTableSegment, table.MergeTableSegments, table.SealTableSegment,
        table.UpdateTableEntries, table.TableEntriesUpdated, table.RemoveTableKeys, table.TableKeysRemoved,
        table.ReadTable, table.TableRead, table.ReadTableKeys, table.TableKeysRead, table.ReadTableEntries,
        table.TableEntriesRead, errors.TableSegmentNotEmpty, errors.TableKeyDoesNotExist, errors.TableKeyBadVersion,
    ),
    10: (table.ReadTableEntriesDelta, table.TableEntriesDeltaRead),
    11: (append.ConditionalBlockEnd, errors.ErrorMessage),
    12: (table.GetTableSegmentInfo, table.TableSegmentInfo),
    13: (admin.FlushToStorage, admin.StorageFlushed),
    15: (
        segment.CreateTransientSegment, segment.MergeSegmentsBatch, segment.SegmentsBatchMerged,
        admin.ListStorageChunks, admin.StorageChunksListed,
    ),
    17: (segment.LocateOffset, segment.OffsetLocated),
}  # fmt: skip

COMMANDS_SINCE: Final[dict[type[Command], int]] = {cls: version for version, some in _SINCE.items() for cls in some}
"""Command → the version that introduced it; 5 for all older commands."""

COMMANDS_UNTIL: Final[dict[type[Command], int]] = {table.MergeTableSegments: 11, table.SealTableSegment: 11}
"""Command → the last version that knew it. At 17 these commands are served again, which is this project's deviation."""

FIELDS_SINCE: Final[dict[tuple[type[WireStruct], str], int]] = {
    (segment.StreamSegmentInfo, "start_offset"): 2,  # 0ecc70ba02 "Support Segment Truncation in Wire Protocol"
    (append.DataAppended, "previous_event_number"): 3,  # cd1d0af2e2 "DataAppended should have an event range"
    (errors.WrongHost, "server_stack_trace"): 6,
    (errors.SegmentIsSealed, "server_stack_trace"): 6,
    (errors.SegmentAlreadyExists, "server_stack_trace"): 6,
    (errors.NoSuchSegment, "server_stack_trace"): 6,
    (errors.InvalidEventNumber, "server_stack_trace"): 6,
    (errors.SegmentIsTruncated, "server_stack_trace"): 6,
    (errors.OperationUnsupported, "server_stack_trace"): 6,
    (errors.AuthTokenCheckFailed, "server_stack_trace"): 6,
    (table.TableIteratorArgs, "continuation_token"): 7,  # with the commands themselves
    (append.AppendBlockEnd, "request_id"): 8,  # before, eight bytes without a meaning
    (append.ConditionalAppend, "request_id"): 8,
    (append.ConditionalCheckFailed, "request_id"): 8,
    (append.DataAppended, "request_id"): 8,
    (segment.ReadSegment, "request_id"): 8,
    (segment.SegmentRead, "request_id"): 8,
    (errors.SegmentIsSealed, "offset"): 8,
    (errors.NoSuchSegment, "offset"): 8,
    (errors.SegmentIsTruncated, "offset"): 8,
    (append.DataAppended, "current_segment_write_offset"): 9,
    (segment.SegmentsMerged, "new_target_write_offset"): 9,
    (errors.AuthTokenCheckFailed, "error_code"): 9,
    (table.TableIteratorArgs, "prefix_filter"): 10,
    (table.CreateTableSegment, "sorted_deprecated"): 10,
    (table.UpdateTableEntries, "table_segment_offset"): 10,
    (table.RemoveTableKeys, "table_segment_offset"): 10,
    (table.CreateTableSegment, "key_length"): 12,
    (table.TableIteratorArgs, "from_key"): 12,
    (table.TableIteratorArgs, "to_key"): 12,
    (segment.MergeSegments, "attribute_updates"): 13,
    (segment.CreateSegment, "rollover_size_bytes"): 14,
    (table.CreateTableSegment, "rollover_size_bytes"): 14,
    (errors.InvalidEventNumber, "event_number"): 16,
}
"""Optional field → the version that introduced it."""

_WITHOUT_REQUEST_ID: Final[dict[type[Command], str]] = {
    append.AppendBlockEnd: "last_event_number",
    append.ConditionalAppend: "event_number",
    segment.ReadSegment: "offset",
}
"""Before 8, replies identified these by another field (8cb8cd408b "Factor out raw client"), which is read as the id."""


@dataclass(eq=False)
class _NotYet(FieldType):
    """A field that the version did not have: absent on the wire, read as its default."""

    default: Any

    def _parse(self, stream: BodyStream, context: Any, path: str) -> Any:
        return self.default

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        return obj


class _Meaningless(_NotYet):
    """Eight bytes unused by the version: written as 0, required when read."""

    def _parse(self, stream: BodyStream, context: Any, path: str) -> Any:
        types.Int64._parse(stream, context, path)
        return self.default

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        types.Int64._build(0, stream, context, path)
        return obj


@cache
def known_in(version: int) -> frozenset[int]:
    """Returns the type codes that a server of the version decoded, without EVENT (0), which is never a frame.

    Raises ValueError for an unsupported version.
    """
    gone = () if _checked(version) == WIRE_VERSION else [cls for cls, last in COMMANDS_UNTIL.items() if last < version]
    known = {cls.code for cls, since in COMMANDS_SINCE.items() if since <= version and cls not in gone}
    return frozenset(known - {append.Event.code})


def longest_frame_in(version: int) -> int:
    """Returns the version's frame limit, header included (fd88b66c05 "Increase maximum event size limit")."""
    return 0x007F_FFFF if _checked(version) < 9 else MAX_FRAME_BYTES


def encode_as(command: Command, version: int) -> bytes:
    """Encodes a command as the version wrote it, header included, without newer fields.

    Raises UnknownCommand for a command that the version did not have, BadField for a value that its field cannot hold,
    FrameTooLarge above the version's limit, ValueError for an unsupported version.
    """
    limit = longest_frame_in(version)
    cls = type(command)
    if cls is not Unknown and cls.code not in known_in(version) and cls is not append.Event:
        raise _unknown(cls.code, version)
    form = form_in(cls, version)
    where = f" in wire version {version}"
    if form is not None:
        return codec.build_frame(command, form, limit, where)
    frame = codec.encode(command)
    if len(frame) > limit:
        raise codec.too_large(command, len(frame), limit, where)
    return frame


def encoder(version: int) -> Callable[[Command], bytes]:
    """Returns the `encode` of a version; for the current version, `encode` itself, at no extra cost."""
    if _checked(version) == WIRE_VERSION:
        return codec.encode
    return partial(encode_as, version=version)


def parts_encoder(version: int) -> Callable[[Command], list[Buffer]]:
    """Returns the `encode_parts` of a version; older versions' frames are in one piece."""
    if _checked(version) == WIRE_VERSION:
        return codec.encode_parts
    return lambda command: [encode_as(command, version)]


def parse_as(code: int, body: Buffer | BodyStream, version: int) -> tuple[Command, int]:
    """Reads a body as the version did: newer fields have their defaults. Returns the number of unread bytes, too.

    Raises WireError: UnknownCommand for a code that the version did not have; ValueError for an unsupported version.
    """
    if code not in known_in(version):
        raise _unknown(code, version)
    cls = COMMANDS[code]
    stream = body if isinstance(body, BodyStream) else BodyStream(body)
    command = schema.parse(cls, stream, form_in(cls, version))
    if version < 8 and cls in _WITHOUT_REQUEST_ID:
        command = msgspec.structs.replace(command, request_id=getattr(command, _WITHOUT_REQUEST_ID[cls]))
    return command, stream.left


@cache
def form_in(cls: type[Command], version: int) -> Nested | None:
    """Returns the form of a command's body in a version; None if it is the current form."""
    if cls is Unknown:
        return None
    parts = _older(cls, cls.parts, _checked(version))
    return None if parts == cls.parts else Nested(cls, parts)


def _older(cls: type[WireStruct], parts: tuple[FieldType, ...], version: int) -> tuple[FieldType, ...]:
    return tuple(_older_field(cls, part, version) for part in parts)


def _older_field(cls: type[WireStruct], field: FieldType, version: int) -> FieldType:
    """Returns the field as it was in a version; the field itself if nothing has changed."""
    name = field.name
    # The last eight bytes of a block end were required before they became a request id.
    if cls is append.AppendBlockEnd and name == "request_id" and version < 8:
        return _Meaningless(field.default).named(name)
    if cls is table.TableIteratorArgs and name == "prefix_filter" and 10 <= version < 12:
        return types.Blob(optional=True).named(name)  # versions 10 and 11 wrote it, later versions leave it empty
    if FIELDS_SINCE.get((cls, name), 0) > version:
        return _NotYet(b"" if isinstance(field, types.Blob) else field.default).named(name)
    if isinstance(field, Nested):
        inner = _older(field.record, field.parts, version)
        return field if inner == field.parts else Nested(field.record, inner).named(name)
    return field


def _checked(version: int) -> int:
    if not OLDEST_COMPATIBLE_VERSION <= version <= WIRE_VERSION:
        raise ValueError(
            f"wire version {version} is not spoken here: {OLDEST_COMPATIBLE_VERSION} to {WIRE_VERSION} are"
        )
    return version


def _unknown(code: int, version: int) -> UnknownCommand:
    cls = COMMANDS.get(code)
    return UnknownCommand(
        f"wire version {version} has no command of this type code",
        code=code,
        type_name=cls.type_name if cls is not None else None,
        offset=0,
        actual=code,
    )


class OlderFrameDecoder(FrameDecoder):
    """Decodes the frames of one direction of one connection as a server of a wire version did. Differences: type codes
    that the version did not know are errors, newer fields have their defaults, and the version's own limit applies.

    Bytes after the last field that a version knew were meant to be ignored, and are. Versions 5 to 8 took them for the
    next frame, which almost always was a decode error after the command itself had been applied (fixed by d4a22be5cc
    "Issue 4211: Fix compatibility issue caused by additional fields"); and before 8 a ConditionalAppend with bytes
    after its event was refused (8ba5431f42). `strict` reproduces this.

    max_frame_bytes: longest frame accepted; the version's own limit holds as well.
    strict: bytes of unknown fields are an error, as they were in versions 5 to 8.
    """

    def __init__(
        self,
        version: int,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        strict: bool = False,
        most_elements: int | None = None,
    ) -> None:
        limit = min(max_frame_bytes, longest_frame_in(version))
        super().__init__(max_frame_bytes=limit, codec="construct", most_elements=most_elements)
        self._version = version
        self._strict = strict and version <= 8

    def _decode(self, view: memoryview, code: int, start: int, end: int) -> Command:
        command, left = parse_as(code, BodyStream(view[start:end], self._most_elements), self._version)
        if left and self._strict:
            error = BadField(
                f"wire version {self._version} takes the {left} bytes behind the last field for another frame",
                code=code,
                type_name=command.type_name,
                offset=HEADER_BYTES + end - start - left,
                actual=left,
            )
            if not (isinstance(command, append.ConditionalAppend) and self._version < 8):
                error.decoded = (command,)
            raise error
        return command


def frame_decoder(
    version: int,
    *,
    max_frame_bytes: int = MAX_FRAME_BYTES,
    strict: bool = False,
    joined: Joined | None = None,
    most_elements: int | None = None,
) -> FrameDecoder:
    """Returns a decoder for a wire version; for the current version, a plain `FrameDecoder`."""
    if version == WIRE_VERSION:
        return FrameDecoder(max_frame_bytes=max_frame_bytes, joined=joined, most_elements=most_elements)
    return OlderFrameDecoder(version, max_frame_bytes=max_frame_bytes, strict=strict, most_elements=most_elements)
