"""Refusals of what Colossal-AI can't do here, or would do wrongly without a word, before work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core import ConfigurationError
from core.strategies import needs_whole_matrices

if TYPE_CHECKING:
    from collections.abc import Collection

    from core_colossalai.options import ColossalAIOptions

_GPUS = ("cuda", "npu")
_NEEDS_GPUS = {
    "low_level_zero": "LowLevelZeroOptimizer takes no other device",
    "gemini": "Gemini moves chunks between a GPU and the CPU, and on a CPU alone it fails",
    "hybrid_parallel": "its optimizers and kernels are made for them",
}
_ON_CPU = (
    "Use plugin='torch_ddp' on CPUs, or strategy='fsdp' or 'deepspeed', which cut state over "
    "ranks there too."
)
MODES_WITHIN_A_LAYER = ("split_gather", "ring")
"""Modes of sequence parallelism in which a sequence is shared by the ranks that share a layer, and
by no others.
"""
_WHOLE_TENSORS = ("Adafactor", "CAME", "GaLoreAdamW8bit", "Lamb", "LBFGS", "SparseAdam")
_INSTEAD = "Use strategy='ddp', or 'fsdp', which can."


def refuse_device(plugin: str, device_type: str) -> None:
    """Refuse a plugin on a device that Colossal-AI doesn't run it on.

    Raises:
        ConfigurationError: it needs GPUs.
    """
    if plugin in _NEEDS_GPUS and device_type not in _GPUS:
        raise ConfigurationError(
            f"plugin={plugin!r} needs GPUs, and this run is on {device_type!r}: "
            f"{_NEEDS_GPUS[plugin]}. {_ON_CPU}"
        )


def refuse_eight_bits(options: ColossalAIOptions, device_type: str) -> None:
    """Refuse 8 bits where there are no operations for them.

    Raises:
        ConfigurationError: they need GPUs.
    """
    for name in ("fp8_communication", "use_fp8"):
        if getattr(options, name) and device_type not in _GPUS:
            raise ConfigurationError(
                f"{name}=True needs GPUs, and this run is on {device_type!r}. Leave it out."
            )


def refuse_sizes(plugin: str, options: ColossalAIOptions, world_size: int) -> None:
    """Refuse a number of ranks that can't be divided as the options ask, and pipelines.

    Raises:
        ConfigurationError: with the numbers.
    """
    if options.pp_size not in (None, 1):
        raise ConfigurationError(
            f"pp_size={options.pp_size}: Colossal-AI's pipeline calls a model's forward and a "
            "criterion on micro batches itself, and core calls the step that you have written. "
            "Leave pp_size out."
        )
    sizes = {name: getattr(options, name) or 1 for name in ("tp_size", "sp_size", "extra_dp_size")}
    if (
        options.sequence_parallelism_mode in MODES_WITHIN_A_LAYER
        and options.sp_size == options.tp_size
    ):
        sizes["sp_size"] = 1  # these are the same ranks
    product = sizes["tp_size"] * sizes["sp_size"] * sizes["extra_dp_size"]
    if world_size % product:
        named = " x ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
        raise ConfigurationError(
            f"{named} doesn't divide the number of ranks, {world_size}. Change the sizes, or "
            "devices."
        )
    if sizes["sp_size"] > 1 and not options.enable_sequence_parallelism:
        raise ConfigurationError(
            f"sp_size={sizes['sp_size']} has no effect without enable_sequence_parallelism=True. "
            "Pass both, or none."
        )
    mode = options.sequence_parallelism_mode
    if not options.enable_sequence_parallelism or mode not in MODES_WITHIN_A_LAYER:
        return
    if sizes["tp_size"] == 1:
        raise ConfigurationError(
            f"sequence_parallelism_mode={mode!r} shares a sequence between the ranks that share a "
            "layer, and there is one of them: pass tp_size, or mode 'all_to_all' or 'ring_attn'."
        )
    if options.sp_size not in (None, 1, sizes["tp_size"]):
        raise ConfigurationError(
            f"sp_size={options.sp_size} has no effect with sequence_parallelism_mode={mode!r}, in "
            f"which a sequence is shared by the tp_size={sizes['tp_size']} ranks of a layer. Leave "
            "it out, or use mode 'all_to_all' or 'ring_attn'."
        )


def refuse_precision(plugin: str, options: ColossalAIOptions, name: str) -> None:
    """Refuse a number format that the plugin doesn't have.

    Raises:
        ConfigurationError: with those that it has.
    """
    without_fp32 = plugin == "gemini" or (plugin == "hybrid_parallel" and options.zero_stage)
    if name == "32-true" and without_fp32:
        asked = (
            f"zero_stage={options.zero_stage}"
            if plugin == "hybrid_parallel"
            else f"plugin={plugin!r}"
        )
        raise ConfigurationError(
            f"precision='32-true': {asked} computes in '16-mixed' or 'bf16-mixed' only."
        )


def refuse_normalization(module: nn.Module, device_type: str) -> None:
    """Refuse BatchNorm on a device for which torch has no SyncBatchNorm.

    Raises:
        ConfigurationError: names the layer.
    """
    if device_type in _GPUS:
        return
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ConfigurationError(
                f"{name or type(module).__name__!r} is a {type(part).__name__}, and Colossal-AI's "
                "TorchDDPPlugin makes SyncBatchNorm of it, which torch has for GPUs only; this "
                f"run is on {device_type!r}. Use another normalization, such as LayerNorm, or "
                "strategy='ddp'."
            )


def refuse_gemini_optimizer(optimizer: torch.optim.Optimizer, known: Collection[type]) -> None:
    """Refuse an optimizer that Gemini doesn't step. It knows them by their class, and derived ones
    neither.

    Args:
        optimizer: the user's.
        known: Colossal-AI's own list.

    Raises:
        ConfigurationError: with those that it steps.
    """
    if type(optimizer) not in known:
        names = ", ".join(sorted(kind.__name__ for kind in known))
        raise ConfigurationError(
            f"plugin='gemini' steps {names} of Colossal-AI only, and this is a "
            f"{type(optimizer).__name__} of {type(optimizer).__module__}. Use one of them: from "
            "colossalai.nn.optimizer import HybridAdam. With plugin='low_level_zero' every "
            "optimizer works that steps each element by itself."
        )


def refuse_unknown_model(module: nn.Module, policies: Any) -> None:
    """Refuse a model for which Shardformer has no policy, by which it shares out layers.

    Args:
        module: the user's.
        policies: Colossal-AI's module of them.

    Raises:
        ConfigurationError: with the ways out.
    """
    try:
        policies.get_autopolicy(module)
    except NotImplementedError as error:
        raise ConfigurationError(
            f"Shardformer has no policy for {type(module).__module__}.{type(module).__qualname__}: "
            "it knows models of transformers by their class, and not those that hold one. Set up "
            "such a model itself, or pass custom_policy=... to plugin='hybrid_parallel'."
        ) from error


def refuse_cut(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse a model or an optimizer that can't be stepped in flat parts of its parameters.

    Raises:
        ConfigurationError: with the reason.
    """
    if (name := type(optimizer).__name__) in _WHOLE_TENSORS or needs_whole_matrices(optimizer):
        raise ConfigurationError(
            f"{name} looks at whole tensors, at sparse ones or at the loss, and ZeRO lets an "
            "optimizer see flat ranges of elements only. Use one that steps each element by "
            f"itself, such as AdamW. {_INSTEAD}"
        )
    trained = {own.dtype: key for key, own in module.named_parameters() if own.requires_grad}
    if set(trained) != {torch.float32}:
        listed = ", ".join(
            f"{key!r} is {str(dtype).removeprefix('torch.')}" for dtype, key in trained.items()
        )
        raise ConfigurationError(
            f"{type(module).__name__}: {listed or 'no parameter is trained'}. Colossal-AI's ZeRO "
            "has masters of float32, so that all parameters must be of it, whatever it computes "
            f"in. Call module.float(). {_INSTEAD}"
        )
    own = set(module.parameters())
    if any(one not in own for group in optimizer.param_groups for one in group["params"]):
        raise ConfigurationError(
            f"The optimizer holds a parameter that doesn't belong to {type(module).__name__}, "
            "which is set up together with it. Build it from that module's parameters."
        )
