"""Everything about a run's data in one object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.trainer.data_hooks import DataHooks
from core.trainer.events import empty_hook, overrides
from core.trainer.hyperparameters import HasHyperparameters

if TYPE_CHECKING:
    from typing import Self

    from core.contract.checkpoint_io import PathLike
    from core.trainer.trainer import Trainer

_LOADER_HOOKS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")


class DataModule(DataHooks, HasHyperparameters):
    """Downloads, splits and loads data, apart from any model. Meant to be subclassed; see `DataHooks` for the sequence.

    Pass an instance as `datamodule=...` to `fit`, `validate`, `test` or `predict`; it serves all of them.
    """

    trainer: Trainer | None = None
    """The trainer that uses this, from the beginning of a stage on."""

    def state_dict(self) -> dict[str, Any]:
        """Rank 0. What a checkpoint should hold of the data; plain types, tensors and arrays."""
        return {}

    @empty_hook
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All ranks, when `fit` goes on. Put back what `state_dict` gave; loaders are asked for again afterwards."""

    @empty_hook
    def on_exception(self, exception: BaseException) -> None:
        """All ranks. The stage is ending by `exception`."""

    @classmethod
    def load_from_checkpoint(cls, path: PathLike, **arguments: Any) -> Self:
        """Make the data module of a checkpoint again, and let it load its state.

        Args:
            path: of a Trainer's checkpoint.
            arguments: of `__init__`; they come before those that `save_hyperparameters` has kept.

        Raises:
            CheckpointError: there is no checkpoint, or none with a data module.
            ModuleError: an argument that is nowhere, or isn't known.
        """
        from core.trainer.loading import load_datamodule  # who reads no checkpoint waits for none of it

        return load_datamodule(cls, path, arguments)  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "trainer"}

    def __str__(self) -> str:
        hooks = [name for name in _LOADER_HOOKS if overrides(self, name)]
        return f"{type(self).__name__} with {', '.join(hooks) or 'no loaders'}"
