"""Key-value tables."""

from segstore.client.tables.iteration import TableIterator
from segstore.client.tables.segment import MAX_BATCH_KEYS, Item, TableSegment
from segstore.client.tables.table import IterationOptions, Key, KeyValueTable, TableEntry, TableKey, Version

__all__ = [
    "MAX_BATCH_KEYS",
    "Item",
    "IterationOptions",
    "Key",
    "KeyValueTable",
    "TableEntry",
    "TableIterator",
    "TableKey",
    "TableSegment",
    "Version",
]
