"""Parameters of a stage in shards: gathered once for all microbatches, and gradients reduced once
after them.

torch's own units gather and reduce around each call, of which ranks have as many as microbatches:
these may differ.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.utils._pytree import tree_map_only

from core import ModuleError
from core_parallel.mesh.placements import own_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from core_parallel.stages.layout import Layout

_MANUAL = "manual_backward_finalization_active"


class Shards:
    """The units of a stage: its parts, and units in these. What no part has stays whole.

    Args:
        layout: the place of each stage.
        shard: cuts one module, and the units in it, in place; None if nothing is sharded.
        group: of the ranks that have the same stage, and a shard each.
        device: of this rank.
    """

    def __init__(
        self,
        layout: Layout,
        shard: Callable[[nn.Module], None] | None,
        group: Any,
        device: torch.device,
    ) -> None:
        self._group, self._device = group, device
        parts = dict.fromkeys(
            part for stage in layout.own_stages for part in layout.cut.stages[stage]
        )
        if shard is not None:
            for part in parts:
                if not isinstance(part, FSDPModule) and next(part.parameters(), None) is not None:
                    part.register_forward_hook(_without_views)
                    shard(part)
        self.units = [
            one for part in parts for one in part.modules() if isinstance(one, FSDPModule)
        ]
        for unit in self.units:
            unit.set_reshard_after_forward(False, recurse=False)
            unit.set_reshard_after_backward(False, recurse=False)

    def reshard(self) -> None:
        """Release what is gathered: it may be older than the shards."""
        for unit in self.units:
            unit.reshard()

    @contextmanager
    def held(self) -> Iterator[bool]:
        """All ranks of a stage. A context whose backwards leave gradients whole; true if those are
        reduced then.
        """
        reduces = all(group.reduce_grads for group in self._groups())
        self._set_sync(False)
        try:
            yield reduces
        finally:
            self._set_sync(reduces)

    def forget_gradients(self) -> None:
        """Forget whole gradients that nobody has reduced, as of a loss that was dropped."""
        for one in self._learning():
            if hasattr(one, "_unsharded_param"):
                one.unsharded_param.grad = None
            if one.unsharded_accumulated_grad is not None:  # torch 2.13 holds it apart
                one.unsharded_accumulated_grad = None

    def reduce(self, scale: Tensor | None = None) -> None:
        """All ranks of a stage, after backward. Add the average of whole gradients to those of the
        shards.

        Args:
            scale: by which this rank's are multiplied before; None is one.
        """
        if not self.units:
            return
        learning = self._learning()
        gave = torch.tensor(
            [float(_gradient(one) is not None) for one in learning], device=self._device
        )
        dist.all_reduce(gave, group=self._group)
        for one, count in zip(learning, gave.tolist(), strict=True):
            gradient = _gradient(one)
            if count and gradient is None:
                one.unsharded_param.grad = torch.zeros_like(one.unsharded_param)
            elif gradient is not None and scale is not None:
                own_part(gradient).mul_(scale.to(gradient.dtype))
        self._set_sync(True)
        for unit in self.units:
            state: Any = unit._get_fsdp_state()
            if state._is_root:
                if getattr(state._state_ctx, _MANUAL, False) is None:
                    # torch 2.15 sets it within a backward
                    setattr(state._state_ctx, _MANUAL, False)
                state._root_post_backward_final_callback()
        self.reshard()

    def _set_sync(self, reduces: bool) -> None:
        for unit in self.units:
            unit.set_requires_gradient_sync(reduces, recurse=False)

    def _groups(self) -> Iterator[Any]:
        for unit in self.units:
            yield from _groups_of(unit._get_fsdp_state())

    def _learning(self) -> list[Any]:
        return [
            one
            for group in self._groups()
            for one in group.fsdp_params
            if one.sharded_param.requires_grad
        ]


def _groups_of(state: Any) -> Iterator[Any]:
    # torch 2.13 may have several of a unit.
    if hasattr(state, "_fsdp_param_groups"):
        yield from state._fsdp_param_groups
    elif state._fsdp_param_group is not None:
        yield state._fsdp_param_group


def _without_views(module: nn.Module, inputs: Any, output: Any) -> Any:
    """Results of a unit, apart from what they are views of, as those of a linear layer: torch's
    hooks are on them.
    """
    return tree_map_only(Tensor, lambda one: one.clone() if one._is_view() else one, output)


def _gradient(one: Any) -> Any:
    if one.unsharded_accumulated_grad is None and hasattr(one, "_unsharded_param"):
        return one.unsharded_param.grad
    return one.unsharded_accumulated_grad


def check(layout: Layout) -> None:
    """All ranks, while each has the whole module. Refuse parameters that two parts share.

    Raises:
        ModuleError: with the name of one.
    """
    owners: dict[int, nn.Module] = {}
    names = {id(one): name for name, one in layout.user.named_parameters()}
    for part in (part for stage in layout.cut.stages for part in stage):
        for parameter in part.parameters():
            if owners.setdefault(id(parameter), part) is not part:
                raise ModuleError(
                    f"{names[id(parameter)]!r} belongs to two parts, which are gathered each by "
                    "itself under shard=. Untie them, or leave shard out."
                )
