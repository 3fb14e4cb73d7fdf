"""The callback of a search for a batch size: tries sizes before the first step, and stops."""

from __future__ import annotations

import gc
import math
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import torch

from core.contract import Capability, ConfigurationError, DeviceError, UnsupportedError
from core_training.callbacks import Callback
from core_training.module.optimization import evaluates_loss
from core_training.stage_data.combined import CombinedLoader
from core_training.tuning.attributes import write_attribute

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from core_training.trainer import Trainer

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

    def __init__(
        self,
        mode: Literal["power", "binsearch"],
        steps_per_trial: int,
        init_val: int,
        max_trials: int,
        attribute: str,
    ) -> None:
        self._mode = mode
        self._num_steps = steps_per_trial
        self._first = init_val
        self._num_trials = max_trials
        self._attribute = attribute
        self.size = 0

    def state_dict(self) -> dict[str, Any]:
        """The result, on its way from ranks in other processes."""
        return {"size": self.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result."""
        self.size = state["size"]

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Search, and let the run end before its first step."""
        _check_ranks(trainer)
        limit = _samples_of_rank(trainer)
        self.size = search_size(
            lambda size: self._fits(trainer, size),
            self._mode,
            int(min(self._first, limit)),
            limit,
            self._num_trials,
        )
        trainer.should_stop = True

    def _fits(self, trainer: Trainer, size: int) -> bool:
        """All ranks. Try a size; the same answer everywhere."""
        owners = [owner for owner in (trainer.datamodule, trainer.module) if owner is not None]
        write_attribute(owners, self._attribute, size)
        trainer.loaders.ask_again()
        _check_attribute_used(trainer, self._attribute, size)
        trainer.loaders.begin_epoch(0)
        fits = _Trial(trainer, self._num_steps).run()
        _free(trainer)
        return fits


class _Trial:
    """A few batches of one size, with all that a step needs memory for."""

    def __init__(self, trainer: Trainer, num_steps: int) -> None:
        assert trainer.running_step is not None
        self._trainer = trainer
        self._num_steps = num_steps
        self._step = trainer.running_step
        self._transfer = trainer.make_transfer() or (lambda batch: batch)
        self._step.ends_window = False  # gradients stay on their rank
        trainer.strategy.session.compares_ranks = False
        self._source = iter(islice(trainer.loaders.open_train(), num_steps))
        self._batch: Any = None

    def run(self) -> bool:
        """All ranks. True if all batches fit into the memory of every rank."""
        return all(
            _agreed(self._trainer, self._fetch) and _agreed(self._trainer, self._train)
            for _ in range(self._num_steps)
        )

    def _fetch(self) -> None:
        batch = next(self._source, None)
        if batch is not None:  # there may be fewer than asked for: the last one stands for them
            self._batch = self._transfer(batch)

    def _train(self) -> None:
        self._trainer.strategy.run_training_step(self._batch, 0, self._step)
        for optimizer in self._step.optimizers:
            optimizer.step()
            optimizer.zero_grad()


def search_size(
    fits: Callable[[int], bool],
    mode: Literal["power", "binsearch"],
    first: int,
    limit: int | float,
    num_trials: int,
) -> int:
    """The largest size that was found to fit.

    Args:
        fits: tries a size.
        mode: double until a size doesn't fit; `"binsearch"` then halves the interval that is left.
        first: to try.
        limit: the largest size to try.
        num_trials: at most.

    Raises:
        DeviceError: not even one sample fits.
    """
    good = 0
    bad: int | float = math.inf
    size = first
    for _ in range(num_trials):
        if fits(size):
            good = size
        else:
            bad = size
        if bad == math.inf:
            following = min(2 * good, limit)
        elif good and mode == "power":
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
        if not is_out_of_memory(error):
            raise
        fits = False
    return trainer.strategy.reduce_boolean_decision(fits)


def is_out_of_memory(error: BaseException) -> bool:
    """True for an error of too little memory, on any device."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        message in text for message in _MESSAGES
    )


def _free(trainer: Trainer) -> None:
    for parameter in trainer.module.parameters():
        parameter.grad = None
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def _leaves(trainer: Trainer) -> Sequence[Any]:
    loader = trainer.loaders.train
    if isinstance(loader, CombinedLoader):
        return [leaf for _, leaf in loader.leaves]
    return [loader]


def _samples_of_rank(trainer: Trainer) -> int | float:
    """Samples of a rank's shard of the smallest data set; infinite if that isn't known."""
    length = min(_length_of(getattr(leaf, "dataset", None)) for leaf in _leaves(trainer))
    if trainer.session.has_peers and length < math.inf:
        length = length // trainer.strategy.data_parallel_size
    return max(1, length)


def _length_of(dataset: Any) -> int | float:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return math.inf


def _check_attribute_used(trainer: Trainer, attribute: str, size: int) -> None:
    for leaf in _leaves(trainer):
        if getattr(leaf, "batch_size", None) not in (None, size):
            raise ConfigurationError(
                f"The search for a batch size has set {attribute}={size}, and the training loader "
                f"makes batches of {leaf.batch_size}. Use the attribute where the loader is made: "
                f"DataLoader(..., batch_size=self.{attribute})."
            )


def _check_ranks(trainer: Trainer) -> None:
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
