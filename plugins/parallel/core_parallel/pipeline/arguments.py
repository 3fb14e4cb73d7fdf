"""The arguments with which the user's step calls the model: taken from the step, which is left
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from core import ModuleError
from core.contract import refuse as note_or_raise
from core_parallel.following.microbatches import is_mixed
from core_parallel.modules import open_blocks
from core_parallel.pipeline.user_step import refuse_without_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from core_parallel.pipeline.chain import Chain
    from core_parallel.pipeline.stage_module import Arguments


class _Taken(BaseException):
    """The first stage has the arguments of the model. Nothing in the user's step notices it, see
    `open_blocks`.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.arguments: Arguments = (args, kwargs)


def taken_from(step: Callable[[Any], Any], batch: Any, chain: Chain) -> Arguments:
    """The arguments with which the user's step for a batch calls the model of a chain.

    Raises:
        ModuleError: it doesn't call the model, or does so within a block that would end there.
    """
    try:
        with chain.answering(_take):
            step(batch)
    except _Taken as taken:
        return taken.arguments
    refuse_without_call(chain)


def refuse(arguments: Arguments, model: nn.Module) -> None:
    """Refuse arguments of the model that a microbatch can't have by itself.

    Raises:
        ModuleError: one wants a gradient, or mixes samples.
    """
    for one in tree_leaves(arguments):
        is_parameter = isinstance(one, nn.Parameter)
        if isinstance(one, Tensor) and one.requires_grad and one.is_leaf and not is_parameter:
            text = (
                f"The training step gives the model a tensor of shape {tuple(one.shape)} that "
                "wants a gradient, as adversarial training does. With a schedule gradients are "
                "there when the step has ended: leave schedule out."
            )
            note_or_raise(ModuleError(text), axis="pipeline")
    if is_mixed(arguments):
        text = (
            "The training step mixes the samples of a batch, as mixup does, before it calls "
            f"{type(model).__name__}: what that is given for a sample follows from others, and "
            "with a schedule the step runs for one microbatch at a time. Mix them in "
            "on_after_batch_transfer or the collate_fn, or leave schedule out."
        )
        note_or_raise(ModuleError(text), axis="pipeline")


def _take(*args: Any, **kwargs: Any) -> Any:
    place = open_blocks.around_call()
    if place is not None:
        raise ModuleError(
            f"The training step calls the model within a block of `with` or `try` ({place}). With "
            "a schedule the step is left at that call, and what the block has opened would not "
            "hold in the stages. End the block before the call, move it into the model, or leave "
            "schedule out."
        )
    raise _Taken(args, kwargs)
