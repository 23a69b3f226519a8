"""The controller's settings and their file, validated on load. Names of durations end in their unit."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_SLACK_MS: Final = 30_000


class AutoScaling(BaseModel):
    """Settings for scaling by load.

    Attributes:
        enabled: whether streams with a rate policy scale automatically; on.
        tick_ms: interval of rate measurements; 5 s, as in Pravega's `SegmentAggregates`.
        minute_ms: length of "a minute" in the 2, 5, 10 and 20 minutes of the thresholds. With a shorter one, streams
            react sooner to the same rate, so that tests of scaling need not wait.
        cooldown_minutes: how long a new segment is not scaled; 10, as in `AutoScalerConfig`.
        mute_minutes: minimum time between two scale requests of a segment; 10, as there.
        silence_minutes: a segment without events for this long is cold; 20, as there (`cache.expiry.seconds`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = True
    tick_ms: int = Field(default=5_000, ge=1)
    minute_ms: int = Field(default=60_000, ge=1)
    cooldown_minutes: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    mute_minutes: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    silence_minutes: float = Field(default=20.0, ge=0, allow_inf_nan=False)


class ControllerConfig(BaseModel):
    """Settings of a controller.

    Attributes:
        commit_delay_ms: time from commitTransaction or abortTransaction to its completion; 0: done before the answer.
        scale_delay_ms: time from scale to the new epoch; 0: done before the answer.
        lease_slack_ms: how long a transaction may exceed its lease. Clients request 90 s and ping about every 90 s, so
            without slack, leases of correct clients would expire. None: 30 s, or 0 if `lease_cap_ms` is set.
        lease_cap_ms: upper limit of granted leases; None: no limit. Lets tests see a lease expire within seconds.
        min_lease_ms, max_lease_ms: shorter and longer leases are refused; 10 s and 600 s, as in Pravega's `Config`.
        max_transaction_ms: maximum lifetime of a transaction; one day, as there. It is also at most a thousand leases.
        completed_ttl_ms: how long the outcome of a transaction is kept; 24 hours, as there.
        completed_max: number of transactions of a stream whose outcome is kept; temporarily up to a tenth more.
        completed_listed: number of these that are listed; the 500 that ended last, as there.
        retention_every_ms: interval at which a stream cut is recorded and retention applied; 30 minutes, as there.
        watermark_every_ms: interval of watermarks; 10 s, as there.
        watermark_streams: whether the stream of watermarks is created with its stream, and listed, as in Pravega. By
            default off: it is created when first used, and not listed.
        system_scope: whether there is a scope `_system`, as in Pravega; it is empty here. By default off.
        group_writes_with_read_permission: whether READ is enough to use reader groups; on, as in Pravega
            (`readerGroupStreams.writesWithReadPermissions.enable`).
        max_segments: maximum number of current segments of a stream, and of partitions of a table; 4,096. The stream
            cuts of one request may name twice as many. Pravega has no limit.
        max_transactions: maximum number of open transactions of a stream; 10,000. Pravega has no limit.
        max_writers: maximum number of writers of a stream whose timestamps are kept for its watermarks; 10,000.
            Pravega has no limit.
        page_size: names in one page of a listing; 1,000, as in `ControllerServiceImpl`.
        retry_ms: delay before an operation that failed in the segment store is retried; 1 s.
        scaling: settings for scaling by load.
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
    completed_max: int = Field(default=10_000, ge=1)
    completed_listed: int = Field(default=500, ge=0)
    retention_every_ms: int = Field(default=1_800_000, ge=1)
    watermark_every_ms: int = Field(default=10_000, ge=1)
    watermark_streams: bool = False
    system_scope: bool = False
    group_writes_with_read_permission: bool = True
    max_segments: int = Field(default=4_096, ge=1, le=65_536)
    max_transactions: int = Field(default=10_000, ge=1)
    max_writers: int = Field(default=10_000, ge=1)
    page_size: int = Field(default=1_000, ge=1)
    retry_ms: int = Field(default=1_000, ge=1)
    scaling: AutoScaling = AutoScaling()

    @property
    def max_cut_entries(self) -> int:
        """Maximum number of segments in the stream cuts of one request. A cut may span several epochs."""
        return 2 * self.max_segments

    @property
    def slack_ms(self) -> int:
        """The effective slack after a lease: as configured, else long enough for clients unless leases are capped."""
        if self.lease_slack_ms is not None:
            return self.lease_slack_ms
        return _SLACK_MS if self.lease_cap_ms is None else 0


def read_config(path: Path) -> ControllerConfig:
    """Reads a TOML file with the fields of `ControllerConfig`, those of `scaling` in a table of that name.

    Raises OSError, or ValueError with one sentence that names the file and the field.
    """
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also for an invalid encoding
        raise ValueError(f"{path}: this is not TOML: {error}") from error
    try:
        return ControllerConfig.model_validate(given, strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False)
        # An unknown field comes first: it may be the misspelt name of a missing one.
        first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
        *tables, field = map(str, first["loc"])
        why = first["msg"]
        if first["type"] == "extra_forbidden":
            known = (AutoScaling if tables else ControllerConfig).model_fields
            near = difflib.get_close_matches(field, known, 1)
            why = "there is no such field" + (f" ({near[0]}?)" if near else f"; there are {', '.join(known)}")
        raise ValueError(f"{path}: {'.'.join((*tables, field))}: {why}") from error
