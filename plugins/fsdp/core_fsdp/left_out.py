"""Trainable parameters of units without a gradient, found before ranks exchange those of the
others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.strategies import LeftOutParameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed.fsdp import FSDPModule


class LeftOutOfUnits(LeftOutParameters):
    """Looks at units as a backward begins, and at each where its gradients are about to be reduced.

    A unit that hasn't run on one rank only is found as long as what that rank gathers instead has
    the same size.
    """

    _groups: tuple[Any, ...] = ()

    def watch(self, units: Iterable[FSDPModule]) -> None:
        """Look at these units from now on, too. Idempotent."""
        groups = [group for unit in units for group in groups_of(unit._get_fsdp_state())]
        for group in groups:
            # An attribute of the object, which torch finds before the method of its class.
            vars(group)["post_backward"] = self._checking(group, type(group).post_backward)
        self._groups = tuple(dict.fromkeys((*self._groups, *groups)))

    def check_idle_units(self) -> None:
        """All ranks, before a backward. Check that units which haven't run have not done so
        elsewhere.
        """
        # torch notes each forward of a unit until its backward.
        idle = [
            group
            for group in self._groups
            if not group._post_forward_indices and group.reduce_grads
        ]
        if idle:
            self.check(
                [
                    _name(one)
                    for group in idle
                    for one in group.fsdp_params
                    if one.sharded_param.requires_grad
                ]
            )

    def forget(self) -> None:
        """Idempotent. Look at no unit any more."""
        super().forget()
        for group in self._groups:
            vars(group).pop("post_backward", None)
        self._groups = ()

    def _checking(self, group: Any, post_backward: Callable[..., Any]) -> Callable[..., Any]:
        def check_first(*unused: Any) -> None:
            if group.reduce_grads:
                self.check([_name(one) for one in group.fsdp_params if _has_no_gradient(one)])
            post_backward(group, *unused)

        return check_first


def _has_no_gradient(one: Any) -> bool:
    unsharded = getattr(one, "_unsharded_param", one.sharded_param)  # made by its first forward
    return bool(
        unsharded.requires_grad
        and unsharded.grad is None
        and one.unsharded_accumulated_grad is None
    )


def _name(one: Any) -> str:
    return str(one._param_fqn or one._module_info.param_name)


def groups_of(state: Any) -> list[Any]:
    """The objects that torch has of a unit, of which torch 2.13 may have several."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]
