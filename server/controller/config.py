"""The controller's settings, checked once. Every duration is in the unit that its name ends in."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["AutoScaling", "ControllerConfig"]

_SLACK_MS: Final = 30_000


class AutoScaling(BaseModel):
    """When load scales a stream.

    Attributes:
        enabled: whether streams with a rate policy scale by themselves; on.
        tick_ms: how often rates are taken; 5 s, as in Pravega's `SegmentAggregates`.
        minute_ms: what "a minute" is in the 2, 5, 10 and 20 minutes of the thresholds; shorter ones make a stream react
            sooner to the same rate, so that tests of scaling need not wait.
        cooldown_minutes: a new segment is left alone so long; 10, as in `AutoScalerConfig`.
        mute_minutes: the least time between two requests of a segment; 10, as there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = True
    tick_ms: int = Field(default=5_000, ge=1)
    minute_ms: int = Field(default=60_000, ge=1)
    cooldown_minutes: float = Field(default=10.0, ge=0)
    mute_minutes: float = Field(default=10.0, ge=0)


class ControllerConfig(BaseModel):
    """What a controller does beyond its API.

    Attributes:
        commit_delay_ms: from commitTransaction or abortTransaction to the end of it; 0: done before the answer.
        scale_delay_ms: from scale to the new epoch; 0: done before the answer.
        lease_slack_ms: how long after its lease a transaction is left alone. Clients ask for 90 s and ping about every
            90 s, so a lease that is taken by its word ends under a client that does nothing wrong; None: 30 s, and none
            at all where `lease_cap_ms` is set.
        lease_cap_ms: leases are cut to this; None: not at all. Lets tests see a lease end without a wait of minutes.
        min_lease_ms, max_lease_ms: shorter and longer ones are refused; 10 s and 600 s, as in Pravega's `Config`.
        max_transaction_ms: the longest life of a transaction; one day, as there. It is also never more than a thousand
            leases.
        completed_ttl_ms: how long the end of a transaction is remembered; 24 hours, as there. Of a stream, the last
            5,000 at least and 10,000 at most.
        retention_every_ms: how often a stream cut is kept and the retention policy looked at; 30 minutes, as there.
        watermark_every_ms: how often the times that writers noted become a watermark; 10 s, as there.
        page_size: names in one page of a listing; 1,000, as in `ControllerServiceImpl`.
        retry_ms: the wait before work that the segment store failed to do is tried again; 1 s.
        scaling: when load scales a stream.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    commit_delay_ms: int = Field(default=0, ge=0)
    scale_delay_ms: int = Field(default=0, ge=0)
    lease_slack_ms: int | None = Field(default=None, ge=0)
    lease_cap_ms: int | None = Field(default=None, ge=0)
    min_lease_ms: int = Field(default=10_000, ge=0)
    max_lease_ms: int = Field(default=600_000, ge=1)
    max_transaction_ms: int = Field(default=86_400_000, ge=1)
    completed_ttl_ms: int = Field(default=86_400_000, ge=0)
    retention_every_ms: int = Field(default=1_800_000, ge=1)
    watermark_every_ms: int = Field(default=10_000, ge=1)
    page_size: int = Field(default=1_000, ge=1)
    retry_ms: int = Field(default=1_000, ge=1)
    scaling: AutoScaling = AutoScaling()

    @property
    def slack_ms(self) -> int:
        """The slack after a lease that holds: as set, else long enough for the clients unless leases are cut."""
        if self.lease_slack_ms is not None:
            return self.lease_slack_ms
        return _SLACK_MS if self.lease_cap_ms is None else 0
