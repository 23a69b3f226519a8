"""Generates the source of encoders and decoders from the intermediate form."""

from segstore.wire.codec.generate.runtime import MAX_RUN, REFUSALS, FrameRows, TooLong, uuid_of

__all__ = ["MAX_RUN", "REFUSALS", "FrameRows", "TooLong", "uuid_of"]
