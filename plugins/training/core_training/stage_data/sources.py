"""The source of a stage's loaders: the loaders that were passed, or the object whose hook makes
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import Dataset, IterableDataset

from core.contract import ConfigurationError
from core_training.hooks.data_hooks import DataHooks
from core_training.stage_data.collection import is_collection, leaves_of
from core_training.stage_data.combined import CombinedLoader

if TYPE_CHECKING:
    from core.contract import Stage


class Role(NamedTuple):
    """The purpose of a loader.

    Attributes:
        name: as messages call it.
        hook: of the module and the data module.
        argument: of the Trainer's method.
        limit: of the Trainer.
        stage: for which the strategy sets loaders up.
        step: of the module.
    """

    name: str
    hook: str
    argument: str
    limit: str
    stage: Stage
    step: str


TRAIN = Role(
    "training",
    "train_dataloader",
    "train_dataloaders",
    "limit_train_batches",
    "fit",
    "training_step",
)
VALIDATION = Role(
    "validation",
    "val_dataloader",
    "val_dataloaders",
    "limit_val_batches",
    "validate",
    "validation_step",
)
TEST = Role("test", "test_dataloader", "dataloaders", "limit_test_batches", "test", "test_step")
PREDICTION = Role(
    "prediction",
    "predict_dataloader",
    "dataloaders",
    "limit_predict_batches",
    "predict",
    "predict_step",
)


class Source(NamedTuple):
    """Loaders that were passed, or the object whose hook makes them."""

    role: Role
    given: Any = None
    owner: Any = None

    def ask(self) -> Any:
        """All ranks. The loaders as the user made them; None if the hook gives none.

        Raises:
            ConfigurationError: something that is no loader.
        """
        if self.owner is None:
            return self.given
        loaders = getattr(self.owner, self.role.hook)()
        check_loaders(
            loaders,
            f"{type(self.owner).__name__}.{self.role.hook}()",
            may_be_empty=self.role is VALIDATION,
        )
        return loaders


def check_loaders(loaders: Any, where: str, *, may_be_empty: bool = False) -> None:
    """Refuse what can't be a loader, nor several.

    Raises:
        ConfigurationError: with what was probably meant.
    """
    if loaders is None or isinstance(loaders, CombinedLoader):
        return
    if is_collection(loaders) and not list(leaves_of(loaders)) and not may_be_empty:
        raise ConfigurationError(
            f"{where} is an empty {type(loaders).__name__}; expected loaders in it."
        )
    for _, leaf in leaves_of(loaders):
        advice = _advise(leaf)
        if advice is not None:
            raise ConfigurationError(f"{where} has {type(leaf).__name__} {leaf!r:.80}; {advice}.")


def _advise(leaf: object) -> str | None:
    if isinstance(leaf, DataHooks):
        return "expected loaders: pass a DataModule as datamodule=..."
    if isinstance(leaf, Dataset) and not isinstance(leaf, IterableDataset):
        return "expected a loader: wrap the data set in DataLoader(dataset, batch_size=...)"
    if hasattr(leaf, "__iter__") or hasattr(leaf, "__getitem__"):
        return None
    if callable(leaf):
        return "expected a DataLoader or an iterable of batches: call it"
    return "expected a DataLoader or an iterable of batches"
