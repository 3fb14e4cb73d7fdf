"""torch's DataParallel, as far as what users' steps log and return is concerned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from core import Module
from core_dp import metrics

if TYPE_CHECKING:
    from collections.abc import Sequence


class Replicas(DataParallel[nn.Module]):
    """DataParallel whose replicas, a thread each, log and use metrics one after the other, and may
    return numbers.
    """

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """DataParallel's; the module's metrics see the whole batch."""
        with metrics.taking_turns(self.module, self.src_device_obj):
            return super().forward(*inputs, **kwargs)

    def replicate(
        self, module: nn.Module, device_ids: Sequence[int | torch.device]
    ) -> list[nn.Module]:
        """One replica a device; what a user's module logs there is taken to the first device, in
        turn.
        """
        replicas = super().replicate(module, device_ids)
        metrics.share(module, replicas)
        for part in (
            part for replica in replicas for part in replica.modules() if isinstance(part, Module)
        ):
            _log_in_turn(part, self.src_device_obj)
        return replicas

    def gather(self, outputs: Sequence[Any], output_device: int | torch.device) -> Any:
        """The outputs of the replicas, joined; scalars and numbers become a vector of one item a
        device.
        """
        return super().gather(
            [_with_dimension(output, self.src_device_obj) for output in outputs], output_device
        )


def _log_in_turn(replica: Module, device: torch.device) -> None:
    log = replica.log

    def in_turn(name: str, value: Any, *arguments: Any, **options: Any) -> None:
        with metrics.TURN:
            log(
                name,
                value.detach().to(device) if isinstance(value, Tensor) else value,
                *arguments,
                **options,
            )

    vars(replica)["log"] = in_turn  # of the replica alone, which lives for one forward


def _with_dimension(value: Any, device: torch.device) -> Any:
    """A copy of a nested output, with a first dimension: torch warns of scalars, and fails at
    numbers.
    """
    if isinstance(value, Tensor):
        return value.reshape(1) if value.dim() == 0 else value
    if isinstance(value, bool | int | float):
        return torch.tensor([value], device=device)
    if type(value) is dict:
        return {key: _with_dimension(item, device) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_dimension(item, device) for item in value)
    return value
