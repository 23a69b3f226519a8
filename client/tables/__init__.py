"""Key-value tables."""

from segstore.client.tables.segment import MAX_BATCH_KEYS, Item, TableSegment
from segstore.client.tables.table import KeyValueTable, TableEntry, TableKey, Version

__all__ = ["MAX_BATCH_KEYS", "Item", "KeyValueTable", "TableEntry", "TableKey", "TableSegment", "Version"]
