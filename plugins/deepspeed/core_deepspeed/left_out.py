"""Trainable parameters that get no gradient, found before DeepSpeed puts those of the others into
its buckets.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import get_gradient_edge

from core import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from core.strategies import LeftOutParameters


def refuse_frozen(names: Mapping[Any, str]) -> None:
    """Refuse parameters that were frozen since set-up: an optimizer made by DeepSpeed would step
    them all the same.

    Args:
        names: of the trained parameters.

    Raises:
        UnsupportedError: names the parameter.
    """
    if frozen := next((name for one, name in names.items() if not one.requires_grad), None):
        raise UnsupportedError(
            f"{frozen!r} was frozen after set-up, and DeepSpeed's optimizer steps what it was "
            "given. Freeze it before set-up, such as in configure_model() or __init__, or use "
            "strategy='fsdp'."
        )


class GradientsOfAll:
    """Looks for an engine's parameters without a gradient. Stage 0 needs none: its buckets hold
    zeros for them.

    Args:
        names: of the trained parameters.
        zero: DeepSpeed's optimizer.
        stage: of ZeRO.
        left_out: compares what was found with other ranks.
    """

    def __init__(
        self, names: Mapping[Any, str], zero: Any, stage: int, left_out: LeftOutParameters
    ) -> None:
        self._zero, self._left_out = zero, left_out
        # Those of a leaf module get gradients of zero from DeepSpeed.
        self._names = {
            one: name for one, name in names.items() if not hasattr(one, "ds_z3_leaf_module")
        }
        self._exchanges_in_backward = stage > 1
        if stage == 1 and hasattr(zero, "reduce_gradients"):
            self._reduce, vars(zero)["reduce_gradients"] = (
                zero.reduce_gradients,
                self._check_and_reduce,
            )

    def check_in_backward(self, loss: Tensor, *, begins_window: bool) -> None:
        """Check as the backward of this loss begins, if it exchanges gradients on its way."""
        if self._exchanges_in_backward and loss.requires_grad:
            loss.register_hook(partial(self._check_graph, begins_window))

    def _check_graph(self, begins_window: bool, gradient: Tensor) -> None:
        will_run = torch._C._will_engine_execute_node  # as DeepSpeed asks torch, too
        # The nodes where gradients arrive aren't kept. One that is made here, for a layer that is
        # computed again within this backward, has the shape of the parameter's cut, with which that
        # layer would fail.
        with torch.enable_grad():
            left_out = [one for one in self._names if not will_run(get_gradient_edge(one).node)]
        self._left_out.check([self._names[one] for one in left_out])
        if begins_window:
            self._drop_stale(left_out)

    def _drop_stale(self, left_out: list[Any]) -> None:
        """Drop gradients of an earlier window, with which DeepSpeed 0.19 would step what gets none
        in this one.
        """
        if not left_out:
            return
        kept = getattr(self._zero, "_DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition", {})
        for one in left_out:
            if (stale := kept.get(getattr(one, "ds_id", None))) is not None:
                stale.zero_()
        # with gradients if offloaded
        for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
            for held in getattr(self._zero, name, ()):
                if held.grad is not None:
                    held.grad.zero_()

    def _check_and_reduce(self, *args: Any, **kwargs: Any) -> Any:
        get = self._zero.get_gradient_for_reduction
        left_out = [one for one in self._names if get(one) is None]
        self._left_out.check([self._names[one] for one in left_out])
        self._drop_stale(left_out)
        return self._reduce(*args, **kwargs)
