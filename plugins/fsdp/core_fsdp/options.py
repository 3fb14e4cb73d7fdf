"""The forms in which a user may write an option, converted for torch's `fully_shard`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
)

from core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    import torch

_UNREDUCED = (
    "fully_shard neither cuts nor reduces what it ignores, so that each rank would train such a "
    "parameter for itself. Keep it outside of the module that you train."
)
_GONE = {
    "backward_prefetch": "FSDP2 always gathers the next unit while backward computes this one. "
    "Leave it out.",
    "device_id": "the device comes from accelerator= and devices=. Leave it out.",
    "ignored_modules": "FSDP2 leaves out parameters, not modules. Keep such a module outside of "
    "the one you train.",
    "ignored_params": _UNREDUCED,
    "ignored_states": _UNREDUCED,
    "param_init_fn": "what is built on the meta device is filled by each module's own "
    "reset_parameters().",
    "process_group": "pass device_mesh=, the mesh over which parameters are sharded.",
}


@dataclass(frozen=True, slots=True)
class Sharding:
    """One of the sharding strategies.

    Attributes:
        name: as the user writes it.
        reshard_after_forward: free the gathered parameters between forward and backward; None
            leaves out the root, whose backward begins at once.
        replicates: the mesh has two axes: replicas, and the shards of each.
    """

    name: str
    reshard_after_forward: bool | None
    replicates: bool


_SHARDINGS = {
    "FULL_SHARD": Sharding("FULL_SHARD", None, False),
    "SHARD_GRAD_OP": Sharding("SHARD_GRAD_OP", False, False),
    "NO_SHARD": Sharding("NO_SHARD", False, True),
    "HYBRID_SHARD": Sharding("HYBRID_SHARD", None, True),
    "_HYBRID_SHARD_ZERO2": Sharding("_HYBRID_SHARD_ZERO2", False, True),
}


def parse_sharding(given: str | ShardingStrategy | None) -> Sharding:
    """The sharding strategy of this name; None is the first.

    Raises:
        ConfigurationError: there is none.
    """
    name = given.name if isinstance(given, ShardingStrategy) else str(given or "FULL_SHARD").upper()
    if name not in _SHARDINGS:
        raise ConfigurationError(
            f"sharding_strategy={given!r}: expected one of 'FULL_SHARD', 'SHARD_GRAD_OP', "
            "'NO_SHARD', 'HYBRID_SHARD', or a member of torch.distributed.fsdp.ShardingStrategy."
        )
    return _SHARDINGS[name]


def parse_offload(given: bool | CPUOffload | CPUOffloadPolicy | None) -> bool:
    """True if shards rest in the memory of the CPU.

    Raises:
        ConfigurationError: of no known form.
    """
    if given is None or isinstance(given, bool):
        return bool(given)
    if isinstance(given, CPUOffload):
        return given.offload_params
    if isinstance(given, CPUOffloadPolicy):
        return True
    raise ConfigurationError(
        f"cpu_offload={given!r}: expected True, False, or torch.distributed.fsdp.CPUOffload."
    )


def parse_mixed_precision(
    given: MixedPrecision | MixedPrecisionPolicy | None,
) -> tuple[MixedPrecisionPolicy | None, torch.dtype | None]:
    """The policy for `fully_shard`, and the dtype of floating-point buffers (None: as they are).

    Raises:
        ConfigurationError: of no known form, or with a part that FSDP2 doesn't have.
    """
    if given is None or isinstance(given, MixedPrecisionPolicy):
        return given, None
    if not isinstance(given, MixedPrecision):
        raise ConfigurationError(
            f"mixed_precision={given!r}: expected torch.distributed.fsdp.MixedPrecisionPolicy or "
            "MixedPrecision. For the usual formats leave it out and pass precision='bf16-mixed'."
        )
    if given.keep_low_precision_grads:
        raise ConfigurationError(
            "MixedPrecision(keep_low_precision_grads=True): FSDP2 keeps gradients in the format of "
            "the sharded parameters. For gradients in 16 bits use precision='bf16-true'."
        )
    policy = MixedPrecisionPolicy(
        param_dtype=given.param_dtype,
        reduce_dtype=given.reduce_dtype,
        cast_forward_inputs=given.cast_forward_inputs or given.cast_root_forward_inputs,
    )
    return policy, given.buffer_dtype


def parse_state_dict_type(given: str | StateDictType | None) -> Literal["full", "sharded"] | None:
    """The form in which state is handed to the CheckpointIO; None lets it decide.

    Raises:
        ConfigurationError: of no known form, or one that depends on the number of processes.
    """
    if given in (None, "full", "sharded"):
        return given  # type: ignore[return-value]  # mypy doesn't narrow by `in`
    if given is StateDictType.FULL_STATE_DICT:
        return "full"
    if given is StateDictType.SHARDED_STATE_DICT:
        return "sharded"
    if given is StateDictType.LOCAL_STATE_DICT:
        raise ConfigurationError(
            "state_dict_type=LOCAL_STATE_DICT: flat local shards fit one number of processes only, "
            "and FSDP2 has none. Use 'sharded', which every number of processes can load."
        )
    raise ConfigurationError(f"state_dict_type={given!r}: expected 'full' or 'sharded'.")


def refuse_gone(owner: str, given: Iterable[str], *, limit_all_gathers: bool) -> None:
    """Refuse what FSDP2 does in one way only, and options of the old wrapper that it doesn't have.

    Raises:
        ConfigurationError: with the reason, or the successor.
    """
    for name in given:
        if (reason := _GONE.get(name)) is not None:
            raise ConfigurationError(f"{owner} has no option {name!r} any more: {reason}")
    if not limit_all_gathers:
        raise ConfigurationError(
            "limit_all_gathers=False: FSDP2 bounds the memory of gathered parameters by its "
            "streams, at no cost, and can't leave that out. Leave the option out; "
            "forward_prefetch=True gathers one unit earlier."
        )
