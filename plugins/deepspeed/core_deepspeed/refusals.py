"""Refusals of what DeepSpeed can't do, or does wrong without a word. Read from the config that it
would get.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from core import ConfigurationError
from core_deepspeed.config_keys import (
    OFFLOAD_OPTIMIZER,
    OFFLOAD_PARAMETERS,
    STAGE,
    look_up,
    offload_device,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from core_deepspeed.options import DeepSpeedOptions


_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Names that DeepSpeed takes for the same."""


def refuse_impossible(config: Mapping[str, Any], options: DeepSpeedOptions) -> None:
    """Refuse what no run can have.

    Raises:
        ConfigurationError: with the reason, and the nearest that works.
    """
    stage = look_up(config, STAGE)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise ConfigurationError(f"stage={stage!r}: expected 0, 1, 2 or 3.")
    if stage == 0 and options.deepspeed_checkpoint == "native":
        raise ConfigurationError(
            "deepspeed_checkpoint='native' at stage 0: DeepSpeed's own tools, zero_to_fp32 and "
            "ds_to_universal, read what stages 1 to 3 write. Leave the option out: core's own form "
            "loads at every stage."
        )
    _check_layers_apart(config)
    _check_offload(config, stage)
    _check_remote_device(config, stage, options.remote_device)
    _check_activations(config)
    for block in (OFFLOAD_PARAMETERS, OFFLOAD_OPTIMIZER):
        if offload_device(config, block) == "nvme":
            _check_folder(look_up(config, (*block, "nvme_path")))


def refuse_formats(config: Mapping[str, Any], precision: str) -> None:
    """Refuse number formats that offloading changes, or for which another optimizer would be made.

    Raises:
        ConfigurationError: float32 parameters on NVMe, float16 at stage 0, gradients of stages 0
            and 1 in another format.
    """
    stage, accumulated = look_up(config, STAGE), look_up(config, ("data_types", "grad_accum_dtype"))
    if stage == 0 and precision.startswith("16-"):
        # engine.py, `backward`: only a `ZeROOptimizer` scales the loss, and each unscales the
        # gradients. As of 0.19.
        raise ConfigurationError(
            f"precision={precision!r} at stage 0: DeepSpeed doesn't scale the loss there, and "
            "divides gradients by the scale all the same. Use stage=1, which cuts the optimizer's "
            "state, or precision='bf16-mixed'."
        )
    if (
        stage == 0
        and accumulated is not None
        and _DTYPES.get(accumulated, accumulated) != _format_of(precision)
    ):
        raise ConfigurationError(
            f"config says data_types.grad_accum_dtype = {accumulated!r}, and at stage 0 DeepSpeed "
            f"accumulates gradients of precision={precision!r} in {_format_of(precision)!r} only. "
            "Leave it out, or use stage=2."
        )
    if stage == 1 and precision.startswith("bf16-") and accumulated in ("fp32", "float32"):
        raise ConfigurationError(
            f"config says data_types.grad_accum_dtype = {accumulated!r}, for which DeepSpeed has "
            "an optimizer of another make at stage 1, which doesn't give its state. Use stage=2, "
            "or leave it out."
        )
    if offload_device(config, OFFLOAD_PARAMETERS) == "nvme" and precision == "32-true":
        # partition_parameters.py, `_set_dtype`: `dtype or float16 if ... else bfloat16` drops
        # float32. As of 0.19.
        raise ConfigurationError(
            "precision='32-true' with parameters offloaded to NVMe: DeepSpeed stores them as "
            "bfloat16, without a word, where the device has no float16. Use "
            "precision='bf16-mixed', or offload_params_device='cpu'."
        )


def _format_of(precision: str) -> str:
    return "bf16" if precision.startswith("bf16-") else "fp32"


def refuse_checkpointing(config: Mapping[str, Any], device_type: str) -> None:
    """Refuse to move activations to where they are.

    Raises:
        ConfigurationError: activations of a CPU are to be kept on the CPU.
    """
    if device_type == "cpu" and look_up(config, ("activation_checkpointing", "cpu_checkpointing")):
        # checkpointing.py empties what `checkpoint` was given, and on a CPU its copy is the same
        # tensor. As of 0.19.
        raise ConfigurationError(
            "cpu_checkpointing=True on a CPU, where activations are already: DeepSpeed would lose "
            "them. Leave it out."
        )


def refuse_modules(module: nn.Module, config: Mapping[str, Any]) -> None:
    """Refuse modules that DeepSpeed fails on, or which fail with what it makes of them.

    Raises:
        ConfigurationError: DeepSpeed's layers whose parts ranks hold apart, a shape that stage 3
            can't cut, or running statistics in another format than weights.
    """
    _check_kinds(module)
    _check_shapes(module, look_up(config, STAGE))
    _check_statistics(module, config)


_APART = {("tensor_parallel", "autotp_size"): "AutoTP", ("expert_parallel", "enabled"): "AutoEP"}
_APART_CURE = (
    "which gives ranks other layers of one model, and core-deepspeed trains and saves whole models "
    "in ZeRO's shards: it isn't supported. strategy='parallel' cuts matrices, distributes experts "
    "and splits sequences."
)


def _check_layers_apart(config: Mapping[str, Any]) -> None:
    for key_path, name in _APART.items():
        if said := look_up(config, key_path):
            raise ConfigurationError(
                f"config says {'.'.join(key_path)} = {said!r}: DeepSpeed's {name}, {_APART_CURE}"
            )
    if (said := config.get("sequence_parallel_size", 1)) != 1:
        raise ConfigurationError(
            f"config says sequence_parallel_size = {said!r}: DeepSpeed's Ulysses, {_APART_CURE}"
        )


def _check_kinds(module: nn.Module) -> None:
    for name, part in module.named_modules():
        home = type(part).__module__
        if home.startswith(
            ("deepspeed.moe.", "deepspeed.module_inject.", "deepspeed.runtime.pipe.")
        ):
            raise ConfigurationError(
                f"{name or 'the module'!r} of {type(module).__name__} is "
                f"{home}.{type(part).__name__}, {_APART_CURE}"
            )


def _check_shapes(module: nn.Module, stage: int) -> None:
    for name, parameter in module.named_parameters():
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        if stage == 3 and (not shape or 0 in shape):
            raise ConfigurationError(
                f"{name!r} of {type(module).__name__} is a parameter of shape {shape}, which "
                "DeepSpeed can't cut at stage 3. Give it a shape with at least one dimension and "
                "one element, such as (1,), or use stage=2."
            )


def _check_statistics(module: nn.Module, config: Mapping[str, Any]) -> None:
    block = next((block for block in ("fp16", "bf16") if look_up(config, (block, "enabled"))), None)
    if block is None or look_up(config, ("data_types", "buffer_dtype")):
        return
    for name, part in module.named_modules():
        statistics = getattr(part, "running_mean", None)
        if (
            statistics is not None
            and statistics.dtype == torch.float32
            and getattr(part, "weight", None) is not None
        ):
            raise ConfigurationError(
                f"{name!r} is a {type(part).__name__}: DeepSpeed turns its weights to {block} and "
                "leaves its running statistics in float32, and torch can't normalize with both. "
                "Add config={'data_types': "
                f"{{'buffer_dtype': '{block}'}}}}, which turns all buffers, use precision="
                f"'{block.replace('fp', '')}-true', or a layer without statistics, such as "
                "GroupNorm."
            )


def _check_activations(config: Mapping[str, Any]) -> None:
    for name in ("partition_activations", "contiguous_memory_optimization"):
        if look_up(config, ("activation_checkpointing", name)):
            raise ConfigurationError(
                f"{name}=True is for activations that model-parallel ranks have in common, and "
                "here each rank has its own: it saves no memory. DeepSpeed would empty each tensor "
                "that its checkpoint() is given, so that a model which uses one again, as in x + "
                "checkpoint(layer, x), computes with garbage, without a word. Leave it out: "
                "checkpoint() alone saves what can be saved."
            )


def _check_offload(config: Mapping[str, Any], stage: int) -> None:
    parameters, optimizer = (
        offload_device(config, OFFLOAD_PARAMETERS),
        offload_device(config, OFFLOAD_OPTIMIZER),
    )
    for device, option in (
        (parameters, "offload_params_device"),
        (optimizer, "offload_optimizer_device"),
    ):
        if device not in (None, "cpu", "nvme"):
            raise ConfigurationError(f"{option}={device!r}: expected 'cpu' or 'nvme'.")
    if optimizer and stage == 0:
        raise ConfigurationError(
            "offload_optimizer with stage 0: DeepSpeed would keep the optimizer's state on the "
            "device all the same. Use stage=1, 2 or 3, or leave it out."
        )
    if parameters and stage < 3:
        raise ConfigurationError(
            f"offload_parameters with stage {stage}: parameters are whole on every rank below "
            "stage 3, which alone can offload them. Use stage=3, or offload_optimizer=True."
        )
    if optimizer == "nvme" and stage < 3:
        raise ConfigurationError(
            f"offload_optimizer_device='nvme' with stage {stage}: DeepSpeed takes it, and computes "
            "as with 'cpu'; that anything goes to the disk is unproven. Use stage=3, or "
            "offload_optimizer_device='cpu'."
        )


def _check_remote_device(config: Mapping[str, Any], stage: int, remote: str | None) -> None:
    if remote not in (None, "cpu", "nvme"):
        raise ConfigurationError(
            f"remote_device={remote!r}: expected 'cpu', 'nvme' or None, the rank's own device."
        )
    offloaded = offload_device(config, OFFLOAD_PARAMETERS)
    if remote is not None and (stage < 3 or offloaded not in (remote, "nvme")):
        raise ConfigurationError(
            f"remote_device={remote!r} builds a model where its offloaded parameters are to be, "
            "and they aren't there. Add stage=3, offload_parameters=True and "
            f"offload_params_device={remote!r}, or leave it out."
        )


def _check_folder(path: Any) -> None:
    if path is None:
        raise ConfigurationError(
            "Offloading to 'nvme' needs nvme_path: a folder on a fast local disk. Pass "
            "nvme_path='/local_nvme', or wherever that is here."
        )
    if not Path(path).is_dir():
        raise ConfigurationError(
            f"nvme_path={str(path)!r} is not a folder on this machine. Make it, or name another."
        )
