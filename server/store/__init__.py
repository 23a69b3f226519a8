"""The state of the segment store: segments, attributes, tables, indexes. Pure, synchronous, no I/O."""

__all__: list[str] = []
