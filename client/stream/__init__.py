"""Stream clients: event and byte readers and writers, transactions, revisioned streams and synchronizers."""

from segstore.client.stream.byte_stream import ByteReader, ByteWriter
from segstore.client.stream.event_ranges import EventRange, EventRangeReader, event_ranges
from segstore.client.stream.event_reader import EventReader, From, check_cut, check_cut_with, tail_of
from segstore.client.stream.event_writer import EventWriter
from segstore.client.stream.events import EventAssembler, EventDecoder, FramedEvent, StreamEvent, frame_event
from segstore.client.stream.read_ahead import ReadAhead
from segstore.client.stream.revisioned import Entry, Revision, RevisionedStream
from segstore.client.stream.routers import HashedKey, PartialRoundRobin, RoundRobin, Router, SinglePartition
from segstore.client.stream.stream_client import check_progress, successors_of
from segstore.client.stream.synchronizer import StateRules, StateSynchronizer
from segstore.client.stream.transactions import Transaction, TransactionWriter

__all__ = [
    "ByteReader",
    "ByteWriter",
    "Entry",
    "EventAssembler",
    "EventDecoder",
    "EventRange",
    "EventRangeReader",
    "EventReader",
    "EventWriter",
    "FramedEvent",
    "From",
    "HashedKey",
    "PartialRoundRobin",
    "ReadAhead",
    "Revision",
    "RevisionedStream",
    "RoundRobin",
    "Router",
    "SinglePartition",
    "StateRules",
    "StateSynchronizer",
    "StreamEvent",
    "Transaction",
    "TransactionWriter",
    "check_cut",
    "check_cut_with",
    "check_progress",
    "event_ranges",
    "frame_event",
    "successors_of",
    "tail_of",
]
