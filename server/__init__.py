"""The server side: segment store, controller, clusters, fault rules, tap and replay.

async with MockSegmentStore() as mock:
    ...  # any client of the wire can talk to mock.host, mock.port
"""

from segstore.server.config import LimitSettings, StoreOptions, StoreSettings
from segstore.server.faults import FaultFileError, FaultSettings, Rule, read_faults
from segstore.server.net import AddressInUse
from segstore.server.node import MockSegmentStore, SegmentStoreServer

__all__ = [
    "AddressInUse",
    "FaultFileError",
    "FaultSettings",
    "LimitSettings",
    "MockSegmentStore",
    "Rule",
    "SegmentStoreServer",
    "StoreOptions",
    "StoreSettings",
    "read_faults",
]
