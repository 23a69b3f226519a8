"""The controller's gRPC API, called on any node of the cluster."""

from segstore.client.controller.channels import ControllerChannels
from segstore.client.controller.controller import (
    Access,
    Controller,
    ControllerLocations,
    Successor,
    TableConfig,
    TransactionStatus,
    name_of,
    parts_of,
)
from segstore.client.controller.cuts import CutError, StreamCut, checked_cut
from segstore.client.controller.policies import RetentionPolicy, RetentionType, ScaleType, ScalingPolicy, StreamConfig

__all__ = [
    "Access",
    "Controller",
    "ControllerChannels",
    "ControllerLocations",
    "CutError",
    "RetentionPolicy",
    "RetentionType",
    "ScaleType",
    "ScalingPolicy",
    "StreamConfig",
    "StreamCut",
    "Successor",
    "TableConfig",
    "TransactionStatus",
    "checked_cut",
    "name_of",
    "parts_of",
]
