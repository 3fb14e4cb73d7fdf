"""Parameters that come or go while training runs: torch's wrapper averages those that were to be
trained at first.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

from core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

GRADIENTS_STAY = (
    "DDP averages gradients of the others only, so that the ranks would drift apart. Unfreeze it "
    "before fit or in on_train_epoch_start, where the module is wrapped anew (not with a "
    "ddp_comm_hook); or leave it trainable, in a group with lr=0. In a loop of your own, call "
    "fabric.setup with your own module again."
)
IN_TIME = (
    "Do that before fit or in on_train_epoch_start, where the module is wrapped anew (not with a "
    "ddp_comm_hook); or, instead of freezing it, leave it trainable, in a group with lr=0. In a "
    "loop of your own, call fabric.setup with your own module again."
)


class WrappedParameters:
    """The parameters of a module as they were when its wrapper was made.

    Attributes:
        trained: those whose gradients the wrapper averages, with their names, in its order.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.trained = _trained(module)
        self._all = set(module.parameters())

    def changes(self) -> list[str]:
        """The names of those that were frozen, unfrozen or replaced since; the module still has
        that of a new one.
        """
        now = _trained(self._module)
        names = {
            name
            for own, name in (*self.trained.items(), *now.items())
            if (own in now) != (own in self.trained)
        }
        return sorted(names)

    def new_parameters(self) -> list[Tensor]:
        """Those that have come since, in the module's order."""
        return [own for own in self._module.parameters() if own not in self._all]

    def fate(self, parameter: Tensor) -> str | None:
        """`"replaced"` or `"frozen"` if it has become that since; else None."""
        if all(own is not parameter for own in self._module.parameters()):
            return "replaced"
        return None if parameter.requires_grad else "frozen"


def _trained(module: nn.Module) -> dict[Tensor, str]:
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    return {
        own: name
        for name, own in module.named_parameters()
        if own.requires_grad and name not in ignored
    }


def refuse_difference(names: Sequence[str], reduce: Callable[..., Tensor]) -> None:
    """All ranks. Compare what has changed on each since its modules were wrapped.

    Raises:
        ConfigurationError: on all ranks, with the names of what has changed on this one.
    """
    digest = zlib.crc32("\n".join(names).encode())
    # The largest digest, and of the negative ones that of the smallest: equal if all ranks have the
    # same.
    largest, smallest = reduce(torch.tensor([digest, -digest]), reduce_op="max").tolist()
    if largest != -smallest:
        raise ConfigurationError(
            "Ranks have frozen, unfrozen or replaced different parameters, this one "
            f"{', '.join(map(repr, names)) or 'none'}. All ranks must train the same ones: change "
            "them by what all of them know, such as the number of the epoch."
        )
