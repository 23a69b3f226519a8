"""Table segments: keys and their versions, iteration, deltas, compaction."""

from segstore.server.store.tables.checks import MAX_FIXED_KEY_BYTES, check_key_versions, table_attributes
from segstore.server.store.tables.table import TableSegment, TableWrite

__all__ = ["MAX_FIXED_KEY_BYTES", "TableSegment", "TableWrite", "check_key_versions", "table_attributes"]
