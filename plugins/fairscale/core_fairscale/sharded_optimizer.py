"""FairScale's optimizer, of which each rank has a part, around an optimizer that the user has
made.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fairscale.optim import OSS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from torch.optim import Optimizer


class ShardedOptimizer(OSS):  # type: ignore[misc]  # FairScale has no types
    """Steps, on each rank, the parameters that this rank owns, and broadcasts them.

    The parameter groups are those of the user's optimizer, the same dicts, so that a scheduler
    still works. The rank's part is an optimizer of the same class.

    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    stage 1, https://arxiv.org/abs/1910.02054.

    Args:
        optimizer: whose parameters are on their device.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(
            optimizer.param_groups, optim=partial(_part_of, optimizer), **optimizer.defaults
        )
        # A checkpoint names the user's class, which can go on from it elsewhere.
        self.stands_for = getattr(optimizer, "stands_for", type(optimizer))
        # a scheduler around it asks whether it has been stepped
        vars(optimizer)["_opt_called"] = True

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters, group after group."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def owns(self, parameter: Tensor) -> bool:
        """True if this rank steps the parameter."""
        return bool(self._param_to_rank[parameter] == self.rank)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a whole state, in torch's own form. Each rank takes the entries of what it
        owns.
        """
        positions = {parameter: index for index, parameter in enumerate(self.parameters)}
        mine = [parameter for group in self.optim.param_groups for parameter in group["params"]]
        entries = {
            index: state_dict["state"][positions[parameter]]
            for index, parameter in enumerate(mine)
            if positions[parameter] in state_dict["state"]
        }
        groups, first = [], 0
        for saved, own in zip(state_dict["param_groups"], self.optim.param_groups, strict=True):
            groups.append({**saved, "params": list(range(first, first + len(own["params"])))})
            first += len(own["params"])
        self.optim.load_state_dict({"state": entries, "param_groups": groups})
        OSS._sync_param_groups(self.optim.param_groups, self.param_groups)


def _part_of(optimizer: Optimizer, groups: list[dict[str, Any]], **defaults: Any) -> Optimizer:
    """An optimizer of the same class and settings for some of the parameters, with what is known of
    them.
    """
    # Not copy.copy: torch pickles optimizers without the attributes that a subclass adds.
    part: Optimizer = object.__new__(type(optimizer))
    vars(part).update(vars(optimizer))
    # a scheduler has put its counter there, around the other one's step
    vars(part).pop("step", None)
    part.param_groups = groups
    part.state = type(optimizer.state)(dict)
    for group in groups:
        part.state.update(
            {one: optimizer.state[one] for one in group["params"] if one in optimizer.state}
        )
    return part
