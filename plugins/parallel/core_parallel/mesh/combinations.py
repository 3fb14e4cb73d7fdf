"""Options that don't go with each other, or with the axes of a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from core_fsdp import FSDPStrategy

_OF_UNITS = (
    "cpu_offload",
    "auto_wrap_policy",
    "activation_checkpointing",
    "activation_checkpointing_policy",
    "forward_prefetch",
)
_OF_SHARDS = ("mixed_precision", "sharding_strategy")


def parse_local_loss(given: str | Collection[str]) -> frozenset[str]:
    """The axes along which each rank keeps its part of what the model returns.

    Raises:
        ConfigurationError: it isn't one.
    """
    axes = frozenset([given] if isinstance(given, str) else given)
    if axes - {"context", "tensor"}:
        raise ConfigurationError(
            f"local_loss={given!r}: expected 'context', 'tensor', or both in a list."
        )
    return axes


def refuse(
    strategy: FSDPStrategy,
    sizes: Mapping[str, int | None],
    options: Mapping[str, Any],
    local_loss: Collection[str],
) -> None:
    """Refuse what doesn't go together.

    Args:
        strategy: to which all is given.
        sizes: of the axes, and of `expert`; None is derived.
        options: of shards, and of every parallel strategy.
        local_loss: axes along which each rank keeps its part of what the model returns.

    Raises:
        ConfigurationError: with what to leave out or to give.
    """
    owner = type(strategy).__name__
    if strategy.sharding.replicates or options.get("device_mesh") is not None:
        raise ConfigurationError(
            f"{owner} lays out its own mesh of data, shard and further axes, and takes neither "
            "device_mesh nor replicas: use sharding_strategy='FULL_SHARD' or 'SHARD_GRAD_OP'."
        )
    if "tensor" in local_loss and sizes["pipeline"] != 1:
        raise ConfigurationError(
            f"{owner}(local_loss='tensor') isn't there yet with a pipeline, whose ranks share "
            "what the model returns. Leave it out."
        )
    if "tensor" in local_loss and sizes["context"] != 1 and "context" not in local_loss:
        raise ConfigurationError(
            f"{owner}(local_loss='tensor') leaves logits in parts, which are joined over context. "
            "Give local_loss=['context', 'tensor']."
        )
    asked = {name for name, value in options.items() if value not in (None, False, "units")}
    of_units = [name for name in _OF_UNITS if name in asked]
    of_shards = [*of_units, *(name for name in _OF_SHARDS if name in asked)]
    cure = (
        "Leave it out. Give activation_checkpointing='units' to Trainer or Fabric, which goes with "
        "all axes."
    )
    if of_shards and sizes["shard"] == 1:
        raise ConfigurationError(
            f"{owner}({of_shards[0]}=...) is about parameters in shards, and shard=1 has none. "
            f"{cure}"
        )
    if of_units and sizes["pipeline"] != 1:
        raise ConfigurationError(
            f"{owner}({of_units[0]}=...) isn't there yet with a pipeline, whose units are its "
            f"parts. {cure}"
        )
