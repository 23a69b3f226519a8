"""Bytes to commands and back: the codec, frames out of a stream, and older versions of the protocol."""
