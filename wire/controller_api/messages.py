"""Message classes of the controller's API, created from ``controller.binpb`` on import.

Invariant: the classes are in a descriptor pool of their own, so they cannot conflict in protobuf's global pool with
Pravega's generated code or another copy of this API. Follows ``controller.proto``; type checkers read ``messages.pyi``,
which is built with it.
"""

from pkgutil import get_data

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_POOL = DescriptorPool()
for _file in FileDescriptorSet.FromString(get_data(__package__, "controller.binpb") or b"").file:
    _POOL.Add(_file)

_DESCRIPTOR = _POOL.FindFileByName("controller.proto")

globals().update({name: GetMessageClass(each) for name, each in _DESCRIPTOR.message_types_by_name.items()})
