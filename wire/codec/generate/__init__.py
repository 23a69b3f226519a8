"""Generates encoders and decoders from the fields of the schema. They are faster than construct: they read adjacent
fixed-width fields with one `struct.Struct`, try ASCII first for text, slice payloads from a memoryview, and only loop
over counted elements. With SEGSTORE_CODEC=construct none of them runs, and behaviour is the same.
"""

from segstore.wire.codec.generate.decoder import make_decoder
from segstore.wire.codec.generate.encoder import make_encoder
from segstore.wire.codec.generate.runtime import MAX_RUN, REFUSALS, FrameRows, TooLong, uuid_of

__all__ = ["MAX_RUN", "REFUSALS", "FrameRows", "TooLong", "make_decoder", "make_encoder", "uuid_of"]
