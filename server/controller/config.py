"""The controller's settings and their file, validated on load. Names of durations end in their unit."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field

from segstore.server.config import SETTINGS, read_toml, settings_of

_SLACK_MS: Final = 30_000


class AutoScaling(BaseModel):
    """When load scales a stream."""

    model_config = SETTINGS

    enabled: bool = True
    """Scale streams that have a rate policy."""
    tick_ms: int = Field(default=5_000, ge=1)
    """Interval between measurements of the rates; 5 s, as in Pravega's `SegmentAggregates`."""
    minute_ms: int = Field(default=60_000, ge=1)
    """Length of "a minute" in the 2, 5, 10 and 20 minutes of the thresholds. With a shorter one a stream reacts sooner
    to the same rate, so that tests of scaling need not wait."""
    cooldown_minutes: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    """Time for which a new segment is not scaled; 10, as in `AutoScalerConfig`."""
    mute_minutes: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    """Minimum time between two requests of a segment; 10, as there."""
    silence_minutes: float = Field(default=20.0, ge=0, allow_inf_nan=False)
    """A segment without events for this long is cold; 20, as there (`cache.expiry.seconds`)."""


class ControllerConfig(BaseModel):
    """A controller's background work and its limits."""

    model_config = SETTINGS

    commit_delay_ms: int = Field(default=0, ge=0)
    """Time that committing or aborting a transaction takes; with 0 it completes before the call returns."""
    scale_delay_ms: int = Field(default=0, ge=0)
    """Time that scaling takes; with 0 it completes before the call returns."""
    lease_slack_ms: int | None = Field(default=None, ge=0)
    """Time after its lease for which a transaction stays open. Clients ask for 90 s and ping about every 90 s, so an
    exact lease would end under a correct client. If not given: 30 s, or 0 with a cap of leases."""
    lease_cap_ms: int | None = Field(default=None, ge=0)
    """Maximum lease of a transaction; longer leases are shortened to it. Lets tests see a lease expire without waiting
    minutes."""
    min_lease_ms: int = Field(default=10_000, ge=0)
    """Shorter leases are refused; 10 s, as in Pravega's `Config`."""
    max_lease_ms: int = Field(default=600_000, ge=1)
    """Longer leases are refused; 600 s, as there."""
    max_transaction_ms: int = Field(default=86_400_000, ge=1)
    """Maximum duration of a transaction; one day, as there. It is never more than a thousand leases."""
    completed_ttl_ms: int = Field(default=86_400_000, ge=0)
    """How long the outcome of a transaction is remembered; 24 hours, as there."""
    completed_max: int = Field(default=10_000, ge=1)
    """Number of transactions of a stream whose outcome is remembered; at times up to a tenth more."""
    completed_listed: int = Field(default=500, ge=0)
    """Number of these that are listed; the last 500, as there."""
    retention_every_ms: int = Field(default=1_800_000, ge=1)
    """Interval at which a stream cut is kept and the retention policy is applied; 30 minutes, as there."""
    watermark_every_ms: int = Field(default=10_000, ge=1)
    """Interval at which the times of writers become a watermark; 10 s, as there."""
    watermark_streams: bool = False
    """Create the stream of watermarks with its stream, and list it, as Pravega does. Otherwise it is created on first
    use, and not listed."""
    system_scope: bool = False
    """Have a scope `_system`, as Pravega does; it is empty here."""
    group_writes_with_read_permission: bool = True
    """Allow the use of reader groups with READ, as Pravega does
    (`readerGroupStreams.writesWithReadPermissions.enable`)."""
    rest_timeout_ms: int = Field(default=60_000, ge=1)
    """Maximum time for a request of the REST API at a process that does not lead the controller, which forwards it;
    then it is answered with 503. 60 s, as long as segstore's clients wait for a call."""
    max_segments: int = Field(default=4_096, ge=1, le=65_536)
    """Maximum number of segments of a stream at a time, and of partitions of a table. Pravega has no bound."""
    max_transactions: int = Field(default=10_000, ge=1)
    """Maximum number of open transactions of a stream. Pravega has no bound."""
    max_writers: int = Field(default=10_000, ge=1)
    """Maximum number of writers of a stream whose times are remembered for watermarks. Pravega has no bound."""
    page_size: int = Field(default=1_000, ge=1)
    """Number of names in a page of a listing; 1,000, as in `ControllerServiceImpl`."""
    retry_ms: int = Field(default=1_000, ge=1)
    """Delay before work that the segment store failed to do is retried."""
    scaling: AutoScaling = AutoScaling()
    """When load scales a stream."""

    @property
    def slack_ms(self) -> int:
        """The effective slack after a lease: as configured, else long enough for clients unless leases are capped."""
        if self.lease_slack_ms is not None:
            return self.lease_slack_ms
        return _SLACK_MS if self.lease_cap_ms is None else 0


def read_config(path: Path) -> ControllerConfig:
    """Reads a TOML file with the fields of `ControllerConfig`; the fields of `scaling` are in a table of that name.

    Raises OSError, or ValueError with one sentence that names the file and the field.
    """
    fields = read_toml(path)
    try:
        return settings_of(ControllerConfig, fields, strict=True)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
