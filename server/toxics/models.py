"""The models of toxics. Data only, validated on construction.

    Latency(type="latency", stream="downstream", latency=100, jitter=20)

Names, units and defaults are Toxiproxy's. A toxic's attributes are beside the other fields, or in `attributes`, as in
Toxiproxy's JSON. Deliberate differences: `down` is a toxic, not a state of a proxy; `half_open` and the distributions
of `latency` are additions; `rate`, `bytes`, `average_size`, and the times of `slow_close` and `timeout` are required
(Toxiproxy's default is 0).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self, TypedDict, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from segstore.server.config import PlainName, check_choice
from segstore.wire.names import MAX_INT64

_DAY_MS: Final = 86_400_000

Stream = Literal["upstream", "downstream"]
Milliseconds = Annotated[float, Field(ge=0, le=_DAY_MS, strict=True)]


def _of_stores(given: Any) -> Any:
    if given == "controller":
        raise ValueError(
            "the controller's port (gRPC) has no toxics; rules about calls (rpc = …) delay and refuse them"
        )
    return given


class _Toxic(BaseModel):
    """Fields of all toxics.

    name: for `clear`. Default: the type, followed by the stream, if any, such as `latency_downstream`.
    toxicity: the fraction of connections that have the toxic, chosen by the seed.
    store: the number of the store in its cluster, from 0. Default: all stores.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, strict=True)

    type: str
    name: PlainName = ""
    toxicity: float = Field(default=1.0, ge=0, le=1)
    store: Annotated[int | None, BeforeValidator(_of_stores)] = Field(default=None, ge=0, le=MAX_INT64, strict=True)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The directions in which it applies."""
        return "upstream", "downstream"

    @property
    def known_as(self) -> str:
        """Its name, or the default name."""
        return self.name or self.type


class _Directed(_Toxic):
    """stream: `upstream` is from the client to the server, `downstream` from the server to the client."""

    stream: Stream = "downstream"

    @property
    def streams(self) -> tuple[Stream, ...]:
        return (self.stream,)

    @property
    def known_as(self) -> str:
        return self.name or f"{self.type}_{self.stream}"


class Latency(_Directed):
    """Delays all data, in order.

    latency, jitter: in ms. distribution: `uniform` delays by `latency` ± `jitter`; `normal` has the mean `latency` and
    the standard deviation `jitter`; `pareto` is never below `latency` and exceeds it by `jitter` on average, with a
    tail of shape 3. A delay is at least 0.
    """

    type: Literal["latency"]
    latency: Milliseconds = 0.0
    jitter: Milliseconds = 0.0
    distribution: Literal["uniform", "normal", "pareto"] = "uniform"


class Bandwidth(_Directed):
    """Limits the rate of data. rate: in KB/s, of 1,000 bytes."""

    type: Literal["bandwidth"]
    rate: float = Field(gt=0, le=1e9, allow_inf_nan=False)


class SlowClose(_Directed):
    """Delays the end of the connection. delay: in ms."""

    type: Literal["slow_close"]
    delay: Milliseconds


class Timeout(_Directed):
    """Drops all data, and closes the connection after a time, or when the toxic is removed.

    timeout: in ms since the connection has the toxic; 0 for never.
    """

    type: Literal["timeout"]
    timeout: Milliseconds


class ResetPeer(_Directed):
    """Drops all data, and resets the connection (RST). timeout: in ms after the first data; 0 for at once."""

    type: Literal["reset_peer"]
    timeout: Milliseconds = 0.0


class Slicer(_Directed):
    """Cuts data into small pieces.

    average_size, size_variation: pieces have `average_size` ± `size_variation` bytes. delay: between two pieces, in µs.
    """

    type: Literal["slicer"]
    average_size: int = Field(ge=1, le=MAX_INT64)
    size_variation: int = Field(default=0, ge=0, le=MAX_INT64)
    delay: float = Field(default=0.0, ge=0, le=1000 * _DAY_MS)

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.size_variation >= self.average_size:
            raise ValueError(f"size_variation must be less than average_size, {self.average_size}")
        return self


class LimitData(_Directed):
    """Closes the connection when this many bytes have passed. bytes: since the connection has the toxic."""

    type: Literal["limit_data"]
    bytes: int = Field(ge=0, le=MAX_INT64)


class Down(_Toxic):
    """Resets open connections, and new ones as soon as they are accepted."""

    type: Literal["down"]


class HalfOpen(_Toxic):
    """The peer vanishes without a word: data and the end of the connection are dropped in both directions.

    The connection stays until the toxic is removed, which resets it.
    """

    type: Literal["half_open"]


TOXIC_MODELS: Final[dict[str, type[_Toxic]]] = {
    get_args(cls.model_fields["type"].annotation)[0]: cls
    for cls in (Latency, Bandwidth, SlowClose, Timeout, ResetPeer, Slicer, LimitData, Down, HalfOpen)
}
"""The models by the names of their types."""


def _of_known_type(given: Any) -> Any:
    if isinstance(given, dict) and isinstance(attributes := given.get("attributes"), dict):
        if twice := sorted(attributes.keys() & given.keys()):
            raise ValueError(f"{twice[0]} is given twice, in attributes and beside them")
        given = {name: value for name, value in given.items() if name != "attributes"} | attributes
    if isinstance(given, dict) and isinstance(given.get("type"), str):
        check_choice("type", given["type"], TOXIC_MODELS)
    return given


def _tag(given: Any) -> str | None:
    """Returns the tag of a toxic's model."""
    if isinstance(given, _Toxic):
        return f"<{type(given).__name__}>"
    model = TOXIC_MODELS.get(str(given.get("type"))) if isinstance(given, dict) else None
    return None if model is None else f"<{model.__name__}>"


Toxic = Annotated[
    Annotated[Latency, Tag("<Latency>")]
    | Annotated[Bandwidth, Tag("<Bandwidth>")]
    | Annotated[SlowClose, Tag("<SlowClose>")]
    | Annotated[Timeout, Tag("<Timeout>")]
    | Annotated[ResetPeer, Tag("<ResetPeer>")]
    | Annotated[Slicer, Tag("<Slicer>")]
    | Annotated[LimitData, Tag("<LimitData>")]
    | Annotated[Down, Tag("<Down>")]
    | Annotated[HalfOpen, Tag("<HalfOpen>")],
    Discriminator(
        _tag, custom_error_type="toxic", custom_error_message=f"a toxic has a type, one of {', '.join(TOXIC_MODELS)}"
    ),
    BeforeValidator(_of_known_type),
]
"""A toxic of a class above, or an object with its type and fields."""


class ActiveToxic(BaseModel):
    """A toxic and the connections that have it."""

    name: str
    toxic: Toxic
    connections: int = Field(description="Number of open connections that have it.")


class ToxicOptions(TypedDict, total=False):
    """The fields of all toxics as keyword arguments, beside `type`."""

    name: str
    stream: Stream
    toxicity: float
    store: int | None
    latency: float
    jitter: float
    distribution: Literal["uniform", "normal", "pareto"]
    rate: float
    delay: float
    timeout: float
    average_size: int
    size_variation: int
    bytes: int
