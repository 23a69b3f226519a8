"""Commands for administering a segment store, accepted on its admin port only."""

from collections.abc import Sequence
from typing import Annotated

from segstore.wire.schema import Command, Flag, Int32, Int64, Nested, Text, Token, WireStruct, command, record, types


@command(-3, "FLUSH_TO_STORAGE", request=True)
class FlushToStorage(Command, frozen=True, gc=False):
    container_id: Int32
    delegation_token: Token
    request_id: Int64


@command(-4, "FLUSHED_TO_STORAGE", reply=True)
class StorageFlushed(Command, frozen=True, gc=False):
    request_id: Int64


@command(-5, "LIST_STORAGE_CHUNKS", request=True)
class ListStorageChunks(Command, frozen=True, gc=False):
    segment: Text
    delegation_token: Token
    request_id: Int64


@record
class ChunkInfo(WireStruct, frozen=True, gc=False):
    """One chunk of a segment in long-term storage."""

    length_in_metadata: Int64
    length_in_storage: Int64
    start_offset: Int64
    chunk_name: Text
    exists_in_storage: Flag


@command(-6, "STORAGE_CHUNKS_LISTED", reply=True)
class StorageChunksListed(Command, frozen=True, gc=False):
    request_id: Int64
    chunks: Annotated[Sequence[ChunkInfo], types.Counted(Nested(ChunkInfo), smallest=27)]
