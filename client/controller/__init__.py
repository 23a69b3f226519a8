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
from segstore.client.controller.policies import RetentionPolicy, RetentionType, ScaleType, ScalingPolicy, StreamConfig

__all__ = [
    "Access",
    "Controller",
    "ControllerChannels",
    "ControllerLocations",
    "RetentionPolicy",
    "RetentionType",
    "ScaleType",
    "ScalingPolicy",
    "StreamConfig",
    "Successor",
    "TableConfig",
    "TransactionStatus",
    "name_of",
    "parts_of",
]
