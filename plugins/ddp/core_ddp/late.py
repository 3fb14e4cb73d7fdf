"""Parameters that are unfrozen while training runs: torch's wrapper averages those that were to be trained at first."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

from core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

GRADIENTS_STAY = (
    "DDP averages gradients of the others only, so that the ranks would drift apart. Unfreeze it before fit or in "
    "on_train_epoch_start, where the module is wrapped anew (not with a ddp_comm_hook); or leave it trainable, in a "
    "group with lr=0. In a loop of your own, call fabric.setup with your own module again."
)


def refuse_difference(names: Sequence[str], reduce: Callable[..., Tensor]) -> None:
    """All ranks. Compare what each has unfrozen.

    Raises:
        ConfigurationError: on all ranks, with what this one has unfrozen.
    """
    digest = zlib.crc32("\n".join(names).encode())
    # The largest digest, and of the negative ones that of the smallest: equal if all ranks have the same.
    largest, smallest = reduce(torch.tensor([digest, -digest]), reduce_op="max").tolist()
    if largest != -smallest:
        raise ConfigurationError(
            f"Ranks have unfrozen different parameters, this one {', '.join(map(repr, names)) or 'none'}. All ranks "
            "must train the same ones: unfreeze by what all of them know, such as the number of the epoch."
        )
