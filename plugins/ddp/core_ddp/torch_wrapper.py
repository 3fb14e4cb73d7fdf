"""torch's DistributedDataParallel, where its behavior isn't what a strategy can live with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from core.strategies import MethodRouter


def manual_step(
    router: MethodRouter,
    wrapper: DistributedDataParallel,
    name: str,
    replacement: Callable[..., Any] | None,
) -> Callable[..., Any]:
    """A step with backwards of its own inside: DDP must not expect another one when its forward
    ends.
    """

    def expect_no_backward() -> None:
        wrapper.require_backward_grad_sync = False

    routed = router.route(wrapper, name, replacement=replacement, after=expect_no_backward)

    def call(*args: Any, **kwargs: Any) -> Any:
        syncs = wrapper.require_backward_grad_sync
        try:
            return routed(*args, **kwargs)
        finally:
            wrapper.require_backward_grad_sync = syncs
            # Without gradients to exchange, DDP takes the next forward for one that needs no
            # buffers of rank 0's.
            wrapper.require_forward_param_sync = True

    return call


def let_python_hold_the_group_longest(model: nn.Module) -> None:
    """Make the wrapper's last attribute another reference to its group, so that the reducer's isn't
    the last one.

    The reducer lets go of a group while it holds Python's lock, and gloo then waits for a thread
    that may be waiting for that lock: a wrapper that outlives `teardown` hung in one of two runs
    (torch 2.13). Python's own reference is given back without the lock.
    """
    for part in model.modules():
        if isinstance(part, DistributedDataParallel):
            vars(part)["_core_group"] = part.process_group


def keep_ignored(module: nn.Module, router: MethodRouter) -> None:
    """Keep ignoring what the user made DDP ignore, under the router's names."""
    if ignored := getattr(module, "_ddp_params_and_buffers_to_ignore", None):
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            router, [f"module.{name}" for name in ignored]
        )
