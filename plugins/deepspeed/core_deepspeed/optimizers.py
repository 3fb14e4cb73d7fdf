"""The optimizer that DeepSpeed steps: the user's own, or its like for the memory of the CPU."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from core import CheckpointError, ConfigurationError
from core.strategies import needs_whole_matrices
from core_deepspeed.config_keys import OFFLOAD_OPTIMIZER, STAGE, look_up, offload_device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer

_log = logging.getLogger(__name__)
WHOLE_TENSORS_CURE = (
    "Use one that steps each element by itself, such as AdamW. For matrices return "
    "torch.optim.Muon, under strategy='fsdp' or 'ddp' together with AdamW for all else."
)
_WHOLE_TENSORS = {
    "Adafactor",
    "LBFGS",
    "SparseAdam",
    "Muon",
    "MuonWithAuxAdam",
    "SingleDeviceMuon",
    "SingleDeviceMuonWithAuxAdam",  # DeepSpeed's
    "FusedLamb",
    "Lamb",
    "LAMB",
    "Lars",
    "LARS",
}
_AT_NO_STAGE = {
    "LBFGS": "evaluates the loss several times in a step, and a step of DeepSpeed's engine "
    "evaluates none",
    "SparseAdam": "steps sparse gradients, and DeepSpeed exchanges dense ones",
}
_NATIVE_OPTIONS = ("lr", "betas", "eps", "weight_decay")


def check(optimizer: Optimizer, module: nn.Module, stage: int) -> None:
    """Refuse what DeepSpeed would step wrong without a word.

    Raises:
        ConfigurationError: with the reason, and what to do.
    """
    name = type(optimizer).__name__
    if stage == 0 and (reason := _AT_NO_STAGE.get(name)):
        raise ConfigurationError(f"{name} {reason}. Use another optimizer, or strategy='ddp'.")
    if stage > 0:
        _check_cutting(optimizer, name)
    _check_gradients(module)
    _check_parameters(optimizer, module)


def _check_cutting(optimizer: Optimizer, name: str) -> None:
    if _WHOLE_TENSORS & {kind.__name__ for kind in type(optimizer).__mro__} or needs_whole_matrices(
        optimizer
    ):
        raise ConfigurationError(
            f"{name} looks at whole tensors, or at the loss, and ZeRO lets an optimizer see flat "
            f"ranges of elements only. {WHOLE_TENSORS_CURE}"
        )
    if isinstance(optimizer, torch.optim.Adagrad):
        raise ConfigurationError(
            "DeepSpeed makes another Adagrad in the place of yours, which no scheduler reaches and "
            "whose groups have the default options. Use AdamW, or another strategy."
        )


def _check_gradients(module: nn.Module) -> None:
    if sparse := [
        name for name, part in module.named_modules() if getattr(part, "sparse", False) is True
    ]:
        raise ConfigurationError(
            f"{sparse[0]!r} of {type(module).__name__} gives sparse gradients, and DeepSpeed "
            "exchanges dense ones. Build it with sparse=False."
        )


def _check_parameters(optimizer: Optimizer, module: nn.Module) -> None:
    known, trained = set(map(id, module.parameters())), set[torch.dtype]()
    for parameter in (
        parameter for group in optimizer.param_groups for parameter in group["params"]
    ):
        if id(parameter) not in known:
            raise ConfigurationError(
                f"The optimizer holds a parameter of shape {tuple(parameter.shape)} that doesn't "
                f"belong to {type(module).__name__}, which is set up together with it. Build it "
                "from that module's parameters."
            )
        trained.update({parameter.dtype} if parameter.requires_grad else ())
    if len(trained) != 1 or not trained <= {torch.float32, torch.float16, torch.bfloat16}:
        raise ConfigurationError(
            "The optimizer's parameters are of "
            f"{', '.join(sorted(map(str, trained))) or 'no dtype: none is trained'}. DeepSpeed "
            "computes in one format, with masters of float32: they must all be of float32, or of "
            "one format of 16 bits. Call module.float() before."
        )


def only_one(configured: Any) -> Any:
    """The optimizer of what `configure_optimizers` gave, to which a scheduler is added.

    Raises:
        ConfigurationError: there is a scheduler already, or not one optimizer.
    """
    match configured:
        case torch.optim.Optimizer() | [torch.optim.Optimizer()]:
            return configured if isinstance(configured, torch.optim.Optimizer) else configured[0]
        case {"optimizer": torch.optim.Optimizer() as optimizer, **others} if not any(
            others.values()
        ):
            return optimizer
    raise ConfigurationError(
        "config has a section 'scheduler', and configure_optimizers gave something else than one "
        "optimizer alone. Leave the section out, or return the optimizer without a scheduler."
    )


def choose(deepspeed: Any, optimizer: Optimizer, config: Mapping[str, Any]) -> Optimizer:
    """The optimizer for DeepSpeed: an Adam that is offloaded is stepped by its own, which is made
    for that.
    """
    native = deepspeed.ops.adam.DeepSpeedCPUAdam
    if look_up(config, STAGE) == 0 and isinstance(optimizer, deepspeed.ops.adam.FusedAdam):
        _refuse_fused(config)
    if offload_device(config, OFFLOAD_OPTIMIZER) is None or isinstance(optimizer, native):
        return optimizer
    name = type(optimizer).__name__
    if (decouples := _decouples_weight_decay(deepspeed, optimizer)) is None:
        _log.warning(
            "Offloaded to the CPU, %s is stepped by its own code; DeepSpeedCPUAdam would be "
            "faster.",
            name,
        )
        return optimizer
    _log.info("Offloaded to the CPU, %s is stepped by DeepSpeed's DeepSpeedCPUAdam.", name)
    options = {key: optimizer.defaults[key] for key in _NATIVE_OPTIONS}
    chosen: Optimizer = native(optimizer.param_groups, adamw_mode=decouples, **options)
    # The same list of the same groups: schedulers that were made for the user's go on setting
    # learning rates.
    chosen.param_groups = optimizer.param_groups
    vars(chosen)["stands_for"] = type(optimizer)  # what is saved is named after it
    vars(optimizer)["_opt_called"] = True  # they look here whether it has been stepped
    return chosen


def _refuse_fused(config: Mapping[str, Any]) -> None:
    if look_up(config, ("bf16", "enabled")):
        raise ConfigurationError(
            "FusedAdam in 16 bits at stage 0: DeepSpeed lays its masters out in a row, which core "
            "doesn't read. Use torch.optim.AdamW, or stage=1."
        )


def _decouples_weight_decay(deepspeed: Any, optimizer: Optimizer) -> bool | None:
    """True for an AdamW, False for an Adam; None for an optimizer that DeepSpeed's own can't
    replace.
    """
    if isinstance(optimizer, deepspeed.ops.adam.FusedAdam):
        return bool(optimizer.adam_w_mode)
    groups = optimizer.param_groups
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW) or any(
        group["amsgrad"] or group["maximize"] for group in groups
    ):
        return None
    answers = {group["decoupled_weight_decay"] for group in groups}
    return answers.pop() if len(answers) == 1 else None


def load_groups(
    optimizer: Optimizer, saved: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> None:
    """Restore learning rates and all else that groups hold besides their parameters.

    Raises:
        CheckpointError: the saved groups hold other parameters, or there is another number of them.
    """
    saved_names = [name for group in saved for name in group["params"]]
    if differing := sorted(set(saved_names).symmetric_difference(names)):
        where = (
            "in the checkpoint, not in the optimizer"
            if differing[0] in saved_names
            else "not in the checkpoint"
        )
        raise CheckpointError(
            f"The optimizer holds {len(names)} parameters and its saved state {len(saved_names)}; "
            f"{differing[0]!r} is {where}. Build the optimizer over the same parameters as when "
            "the checkpoint was written."
        )
    if len(saved) != len(optimizer.param_groups):
        raise CheckpointError(
            f"The optimizer has {len(optimizer.param_groups)} groups of parameters and its saved "
            f"state {len(saved)}."
        )
    for group, before in zip(optimizer.param_groups, saved, strict=True):
        group.update({key: value for key, value in before.items() if key != "params"})
