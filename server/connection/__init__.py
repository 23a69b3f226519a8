"""One connection of a segment store: bytes in, requests executed, bytes out, within bounds and deadlines."""
