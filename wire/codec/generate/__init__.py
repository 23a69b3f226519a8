"""Generates the source of encoders and decoders from the intermediate form."""

from segstore.wire.codec.generate.decoder import Joined, decoder_source, frame_decoder_source, frames_source
from segstore.wire.codec.generate.encoder import encoder_source
from segstore.wire.codec.generate.runtime import REFUSALS, UUIDS, Rows, TooLong

__all__ = [
    "REFUSALS",
    "UUIDS",
    "Joined",
    "Rows",
    "TooLong",
    "decoder_source",
    "encoder_source",
    "frame_decoder_source",
    "frames_source",
]
