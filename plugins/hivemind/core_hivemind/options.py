"""The options of a swarm, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Compression = Literal["none", "float16", "scaled_float16", "uniform_8bit", "quantile_8bit"]

COMPRESSIONS: Mapping[str, str] = {
    "none": "NoCompression",
    "float16": "Float16Compression",
    "scaled_float16": "ScaledFloat16Compression",
    "uniform_8bit": "Uniform8BitQuantization",
    "quantile_8bit": "Quantile8BitQuantization",
}
"""hivemind's classes by our names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingOptions:
    """When and how peers average: `HivemindStrategy(averaging=AveragingOptions(...))`.

    Attributes:
        matchmaking_time: seconds that a peer waits for others when a step is due: in full, once for
            gradients and once for weights, also where all are here.
        averaging_timeout: seconds after which a round of averaging is given up, and the step made
            with the gradients of this peer alone. Peers that don't answer are waited for less:
            `matchmaking_time`.
        delay_state_averaging: average weights while the next batches are computed, rather than
            before.
        average_state_every: steps from one averaging of the weights to the next.
        compression: of gradients on their way.
        state_compression: of weights on their way, when they are averaged. A peer that joins gets
            them whole.
        reuse_grad_buffers: sum gradients in `.grad`, where no second set of buffers is needed.
            `zero_grad` does nothing then, and batches must be of one size.
        averager_options: further options of hivemind's averagers, such as `target_group_size`,
            `request_timeout`.
        tracker_options: further options of hivemind's `ProgressTracker`, such as
            `metadata_expiration`.
    """

    matchmaking_time: float = 5.0
    averaging_timeout: float = 30.0
    delay_state_averaging: bool = False
    average_state_every: int = 1
    compression: Compression = "none"
    state_compression: Compression = "none"
    reuse_grad_buffers: bool = False
    averager_options: Mapping[str, Any] = field(default_factory=dict)
    tracker_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SwarmOptions:
    """The settings of a swarm; `HivemindStrategy` says what each means."""

    target_batch_size: int
    run_id: str
    initial_peers: tuple[str, ...] = ()
    min_peers: int = 1
    peers_timeout_s: float = 300.0
    host_maddrs: Sequence[str] = ()
    client_mode: bool = False
    dht_options: Mapping[str, Any] = field(default_factory=dict)
    averaging: AveragingOptions = AveragingOptions()
    verbose: bool = False
