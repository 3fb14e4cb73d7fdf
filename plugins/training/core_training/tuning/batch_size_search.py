"""The callback of a search for a batch size: tries sizes before the first step, and stops."""

from __future__ import annotations

import gc
import math
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from core.contract import Capability, ConfigurationError, DeviceError, UnsupportedError
from core_training.callbacks import Callback
from core_training.copies.copied_fit import loaders_in
from core_training.module.optimization import evaluates_loss
from core_training.tuning.attributes import write_attribute

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from core_training.trainer import Trainer
    from core_training.tuning.batch_size_finder import BatchSizeFinder

# What is said where no exception of a class of its own is raised: by the CPU; by CUDA's runtime,
# MPS and others; by cuBLAS and cuDNN, which ask the device for memory by themselves, and where
# cuDNN has too little to try what it could.
_MESSAGES = (
    "can't allocate memory",
    "out of memory",
    "ALLOC_FAILED",
    "ALLOCATION_FAILED",
    "CUDNN_STATUS_NOT_SUPPORTED",
    "Unable to find a valid cuDNN algorithm",
    "unable to find an engine to execute this computation",
)


class BatchSizeSearch(Callback):
    """Finds the largest size whose steps fit into the memory of every rank.

    Gradients of a trial stay on their rank, so that one that runs out of memory leaves no other
    waiting; after each batch the ranks exchange how it went.

    Attributes:
        size: the result.
    """

    def __init__(self, finder: BatchSizeFinder) -> None:
        self._finder = finder
        self.size = 0

    def state_dict(self) -> dict[str, Any]:
        """The result, on its way from ranks in other processes."""
        return {"size": self.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result."""
        self.size = state["size"]

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Search, and let the run end before its first step."""
        strategy = trainer.strategy
        if any(evaluates_loss(optimizer) for optimizer in strategy.optimizers):
            raise ConfigurationError(
                "A search for a batch size steps the optimizer without its loss, and this one "
                "evaluates it itself. Try sizes in a loop with Trainer(max_steps=3)."
            )
        if trainer.session.has_peers and (
            Capability.NO_SYNC not in strategy.capabilities or trainer.options.sync_batchnorm
        ):
            raise UnsupportedError(
                "A search for a batch size on several ranks trains each rank by itself, which "
                f"{type(strategy).__name__} can't, or sync_batchnorm=True forbids. Search on one "
                "device.",
                capability=Capability.NO_SYNC,
            )
        self.size = self._search(trainer)
        trainer.should_stop = True

    def _search(self, trainer: Trainer) -> int:
        """Double until a size doesn't fit; `"binsearch"` then halves the interval that is left.

        Raises:
            DeviceError: not even one sample fits.
        """
        limit = _samples_of_rank(trainer)
        size = int(min(self._finder.init_val, limit))
        good = 0
        bad: int | float = math.inf
        for _ in range(self._finder.max_trials):
            if self._fits(trainer, size):
                good = size
            else:
                bad = size
            if bad == math.inf:
                following = min(2 * good, limit)
            elif good and self._finder.mode == "power":
                break
            else:
                following = (good + bad) // 2
            if following in (good, bad):
                break
            size = int(following)
        if not good:
            raise DeviceError(
                f"Not even a batch size of {size} fits into memory. Use a smaller model, or larger "
                "devices."
            )
        return good

    def _fits(self, trainer: Trainer, size: int) -> bool:
        """All ranks. Try a size; the same answer everywhere."""
        owners = [owner for owner in (trainer.datamodule, trainer.module) if owner is not None]
        attribute = self._finder.batch_arg_name
        write_attribute(owners, attribute, size)
        trainer.loaders.ask_again()
        for loader in loaders_in(trainer.loaders.train):
            if getattr(loader, "batch_size", None) not in (None, size):
                raise ConfigurationError(
                    f"The search for a batch size has set {attribute}={size}, and the training "
                    f"loader makes batches of {loader.batch_size}. Use the attribute where the "
                    f"loader is made: DataLoader(..., batch_size=self.{attribute})."
                )
        trainer.loaders.begin_epoch(0)
        fits = _try_batches(trainer, self._finder.steps_per_trial)
        for parameter in trainer.module.parameters():
            parameter.grad = None
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        return fits


def _try_batches(trainer: Trainer, num_steps: int) -> bool:
    """All ranks. True if a few batches fit into the memory of every rank, with all that a step
    needs.
    """
    step = trainer.running_step
    assert step is not None
    step.ends_window = False  # gradients stay on their rank
    trainer.strategy.session.compares_ranks = False
    transfer = trainer.make_transfer() or (lambda batch: batch)
    source = iter(islice(trainer.loaders.open_train(), num_steps))
    batch: Any = None

    def fetch() -> None:
        nonlocal batch
        following = next(source, None)
        if following is not None:  # there may be fewer than asked for: the last one stands for them
            batch = transfer(following)

    def train() -> None:
        trainer.strategy.run_training_step(batch, 0, step)
        for optimizer in step.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return all(_agreed(trainer, fetch) and _agreed(trainer, train) for _ in range(num_steps))


def _agreed(trainer: Trainer, part: Callable[[], None]) -> bool:
    """All ranks. Do something that may need more memory than there is. True if no rank ran out of
    it.

    Raises:
        Exception: of any other kind, as it is.
    """
    fits = True
    try:
        part()
    except (RuntimeError, MemoryError) as error:
        is_kind = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not is_kind and not any(message in str(error) for message in _MESSAGES):
            raise
        fits = False
    return trainer.strategy.reduce_boolean_decision(fits)


def _samples_of_rank(trainer: Trainer) -> int | float:
    """Samples of a rank's shard of the smallest data set; infinite if that isn't known."""
    length = min(
        _length_of(getattr(leaf, "dataset", None)) for leaf in loaders_in(trainer.loaders.train)
    )
    if trainer.session.has_peers and length < math.inf:
        length = length // trainer.strategy.data_parallel_size
    return max(1, length)


def _length_of(dataset: Any) -> int | float:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return math.inf
