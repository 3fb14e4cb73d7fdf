"""Models and optimizers that FairScale would train wrongly, or fail with in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core import ConfigurationError
from core.strategies import needs_whole_matrices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn
    from torch.optim import Optimizer

_INSTEAD = "Use strategy='ddp', which can."
_WHOLE_TENSORS = ("Adafactor", "LBFGS", "SparseAdam")
_BY_PRECISION = (
    "precision='bf16-mixed' of Trainer and Fabric says in which format to compute, by "
    "autocast over float32"
)
_BY_CORE = "core gathers and places state itself, in a form that every strategy takes"
_OFFLOAD = "strategy='fsdp' has cpu_offload=True, which does that"
_NOT_HERE = {
    **dict.fromkeys(
        ("mixed_precision", "compute_dtype", "buffer_dtype", "fp32_reduce_scatter"), _BY_PRECISION
    ),
    **dict.fromkeys(
        ("state_dict_device", "state_dict_on_rank_0_only", "no_broadcast_optim_state"), _BY_CORE
    ),
    **dict.fromkeys(("cpu_offload", "move_params_to_cpu", "move_grads_to_cpu"), _OFFLOAD),
    **dict.fromkeys(("process_group", "process_group_reduce_scatter"), "all ranks are one group"),
    "compute_device": "accelerator= and devices= say it",
    "verbose": "it prints settings only",
    "allow_reset_parameters": "parameters are cut when they are made",
}


def refuse(module: nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Refuse a module or optimizers.

    Raises:
        ConfigurationError: with the reason.
    """
    _refuse_module(module)
    _refuse_optimizers(optimizers)


def _refuse_module(module: nn.Module) -> None:
    """Refuse parameters that FairScale can't put into one buffer, or whose gradients it can't
    send.
    """
    dtypes = {own.dtype: name for name, own in module.named_parameters() if own.requires_grad}
    if len(dtypes) > 1:
        listed = ", ".join(
            f"{name!r} is {str(dtype).removeprefix('torch.')}" for dtype, name in dtypes.items()
        )
        raise ConfigurationError(
            "FairScale keeps the parameters of a rank in one buffer of one dtype, and "
            f"{type(module).__name__} has several: {listed}. Convert the module to one dtype. "
            f"{_INSTEAD}"
        )
    if any(dtype.is_complex for dtype in dtypes):
        raise ConfigurationError(
            f"FairScale can't send gradients of complex parameters. {_INSTEAD}"
        )


def _refuse_optimizers(optimizers: Iterable[Optimizer]) -> None:
    """Refuse LBFGS, which looks at all parameters at once: ranks would search along lines of
    different lengths.
    """
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigurationError(
                "LBFGS needs all parameters in one place, and FairScale gives each rank a part of "
                "them. " + _INSTEAD
            )


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse options of FairScale's FSDP that are decided elsewhere.

    Raises:
        ConfigurationError: with where.
    """
    for name in options:
        if name in _NOT_HERE:
            raise ConfigurationError(f"fsdp_fairscale doesn't take {name}=...: {_NOT_HERE[name]}.")


def refuse_cut_module(module: nn.Module, *, in_units: bool) -> None:
    """Refuse a module whose parameters FairScale's FSDP can't cut.

    Args:
        module: whose parameters are to be cut.
        in_units: layers become units of their own, so that a parameter of two layers would be in
            two.

    Raises:
        ConfigurationError: with the reason.
    """
    instead = "Use strategy='fsdp', which can."
    for name, own in module.named_parameters():
        if own.dtype != torch.float32:
            raise ConfigurationError(
                f"FairScale's FSDP cuts parameters of float32, and {name!r} of "
                f"{type(module).__name__} is {str(own.dtype).removeprefix('torch.')}. Call "
                f"module.float(). {instead}"
            )
    every = list(module.named_parameters(remove_duplicate=False))
    if in_units and len(every) > len({own for _, own in every}):
        raise ConfigurationError(
            f"{type(module).__name__} has a parameter under two names, and with min_num_params=... "
            f"these would be in two units. Leave min_num_params out. {instead}"
        )


def refuse_whole_tensors(optimizer: Optimizer) -> None:
    """Refuse an optimizer that can't step flat parts of parameters.

    Raises:
        ConfigurationError: it looks at whole tensors.
    """
    if (name := type(optimizer).__name__) in _WHOLE_TENSORS or needs_whole_matrices(optimizer):
        raise ConfigurationError(
            f"{name} looks at whole tensors, and FairScale's FSDP lets an optimizer see flat "
            "ranges of elements only. Use one that steps each element by itself, such as AdamW, or "
            "strategy='ddp'."
        )
