"""The DataModule: all that concerns a run's data in one object."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from core.contract import empty_hook
from core_training.hooks.data_hooks import DataHooks
from core_training.hooks.events import overrides
from core_training.hparams.hyperparameters import HasHyperparameters

if TYPE_CHECKING:
    from typing import Self

    from core.contract import PathLike

_LOADER_HOOKS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")


class DataModule(DataHooks, HasHyperparameters):
    """Downloads, splits and loads data, apart from any model. Meant to be subclassed; see
    `DataHooks` for the sequence.

    Pass an instance as `datamodule=...` to `fit`, `validate`, `test` or `predict`; it serves all of
    them.
    """

    trainer: Any = None
    """The trainer that uses this, from the beginning of a stage on."""

    def state_dict(self) -> dict[str, Any]:
        """Rank 0. The state of the data for a checkpoint; plain types, tensors and arrays."""
        return {}

    @empty_hook
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All ranks, when `fit` goes on. Restore what `state_dict` returned; loaders are made again
        afterwards.
        """

    @empty_hook
    def on_exception(self, exception: BaseException) -> None:
        """All ranks. The stage is ending by `exception`."""

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **arguments: Any,
    ) -> Self:
        """Make a data module of data sets: that for training is shuffled, unless it is an iterable
        one.

        Args:
            train_dataset: one or several, in a list or dict; None for none.
            val_dataset: one, or a list of them.
            test_dataset: one, or a list of them.
            predict_dataset: one, or a list of them.
            batch_size: samples in a batch.
            num_workers: of each loader.
            arguments: of `__init__`.
        """
        module = cls(**arguments)
        given = (train_dataset, val_dataset, test_dataset, predict_dataset)
        for hook, datasets in zip(_LOADER_HOOKS, given, strict=True):
            if datasets is not None:
                setattr(
                    module,
                    hook,
                    partial(_make, datasets, batch_size, num_workers, hook == "train_dataloader"),
                )
        return module

    @classmethod
    def load_from_checkpoint(
        cls, path: PathLike, *, hparams_file: PathLike | None = None, **arguments: Any
    ) -> Self:
        """Make the data module of a checkpoint again, and let it load its state.

        Args:
            path: of a Trainer's checkpoint.
            hparams_file: a local `.json` or `.yaml` whose hyperparameters count in place of the
                checkpoint's.
            arguments: of `__init__`; they come before those that `save_hyperparameters` has kept.

        Raises:
            CheckpointError: there is no checkpoint, or none with a data module.
            ModuleError: an argument that is nowhere, or isn't known.
        """
        # who reads no checkpoint waits for none of it
        from core_training.hparams.from_checkpoint import load_datamodule

        return load_datamodule(cls, path, arguments, hparams_file)  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "trainer"}

    def __str__(self) -> str:
        hooks = [name for name in _LOADER_HOOKS if overrides(self, name)]
        return f"{type(self).__name__} with {', '.join(hooks) or 'no loaders'}"


def _make(datasets: Any, batch_size: int, num_workers: int, shuffle: bool) -> object:
    """Loaders in the structure of the data sets."""
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    options = (batch_size, num_workers, shuffle)
    if isinstance(datasets, Mapping):
        return {name: _make(dataset, *options) for name, dataset in datasets.items()}
    if isinstance(datasets, list | tuple) and all(isinstance(each, Dataset) for each in datasets):
        return [_make(dataset, *options) for dataset in datasets]
    shuffles = shuffle and not isinstance(datasets, IterableDataset)
    return DataLoader(datasets, batch_size, shuffle=shuffles, num_workers=num_workers)
