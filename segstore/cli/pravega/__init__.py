"""Commands for any Pravega cluster, through segstore's client."""

from segstore.cli.pravega.admin import admin
from segstore.cli.pravega.cluster import ClusterOptions
from segstore.cli.pravega.consume import consume
from segstore.cli.pravega.produce import produce

__all__ = ["ClusterOptions", "admin", "consume", "produce"]
