"""One segment: its writer, its reader, conditional appends."""
