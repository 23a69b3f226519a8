"""The codec's accelerator: the C of `segstore._speed`, the tables it walks, and how the codec uses it."""

from segstore.wire.codec.speed.backend import Acknowledged, load

__all__ = ["Acknowledged", "load"]
