"""Commands in forms for people and programs: text, JSON lines, and frames in hex or base64."""

from segstore.wire.inspect.describe import describe, lines, summary
from segstore.wire.inspect.differing import DifferingPlace, differing_places, excerpts
from segstore.wire.inspect.dissector import dissector
from segstore.wire.inspect.jsonl import command_named, from_line, to_line
from segstore.wire.inspect.payloads import (
    MOST_SEARCHED,
    NO_PAYLOAD,
    Payload,
    PayloadPart,
    has_payload,
    joined,
    payload_parts,
    readable,
)
from segstore.wire.inspect.reading import Form, Piece, Unreadable, pieces, recognise, to_text

__all__ = [
    "MOST_SEARCHED",
    "NO_PAYLOAD",
    "DifferingPlace",
    "Form",
    "Payload",
    "PayloadPart",
    "Piece",
    "Unreadable",
    "command_named",
    "describe",
    "differing_places",
    "dissector",
    "excerpts",
    "from_line",
    "has_payload",
    "joined",
    "lines",
    "payload_parts",
    "pieces",
    "readable",
    "recognise",
    "summary",
    "to_line",
    "to_text",
]
