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
    matchmaking_time: float = 5.0
    averaging_timeout: float = 30.0
    delay_state_averaging: bool = False
    average_state_every: int = 1
    compression: Compression = "none"
    state_compression: Compression = "none"
    reuse_grad_buffers: bool = False
    averager_options: Mapping[str, Any] = field(default_factory=dict)
    tracker_options: Mapping[str, Any] = field(default_factory=dict)
    verbose: bool = False
