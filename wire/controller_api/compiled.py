"""Message classes of the controller's API, created from ``controller.binpb`` on import, and the table of its methods.

Invariant: the classes are in a descriptor pool of their own, so they cannot conflict in protobuf's global pool with
Pravega's generated code or another copy of this API. Follows ``controller.proto``. Import the classes from
`segstore.wire.controller_api.messages` and METHODS from `segstore.wire.controller_api`: both load this module, and with
it protobuf, on first use.
"""

from collections.abc import Mapping
from pkgutil import get_data
from types import MappingProxyType
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from segstore.wire.controller_api.methods import ONCE, SERVICE, Method

_POOL = DescriptorPool()
for _file in FileDescriptorSet.FromString(get_data(__package__, "controller.binpb") or b"").file:
    _POOL.Add(_file)

_DESCRIPTOR = _POOL.FindFileByName("controller.proto")

MESSAGES: Final[Mapping[str, Any]] = MappingProxyType(
    {name: GetMessageClass(descriptor) for name, descriptor in _DESCRIPTOR.message_types_by_name.items()}
)
"""The message classes, by name."""

METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        method.name: Method(
            f"/{SERVICE}/{method.name}",
            MESSAGES[method.input_type.name],
            MESSAGES[method.output_type.name],
            method.name not in ONCE,
        )
        for method in _DESCRIPTOR.services_by_name[SERVICE.rpartition(".")[2]].methods
    }
)
"""All methods of the service, by name."""
