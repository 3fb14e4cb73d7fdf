"""The source of a stage's loaders: the user's arguments, the data module, or the module itself."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import Dataset, IterableDataset

from core.contract import ConfigurationError
from core.trainer.data.collection import is_collection, leaves_of
from core.trainer.data.combined import CombinedLoader
from core.trainer.data.data_hooks import DataHooks
from core.trainer.data.datamodule import DataModule
from core.trainer.hooks.events import overrides
from core.trainer.module.module import has_method, require_method

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from core.contract import Stage
    from core.trainer.settings.options import TrainerOptions


class Role(NamedTuple):
    """The purpose of a loader.

    Attributes:
        name: as messages call it.
        hook: of the module and the data module.
        argument: of the Trainer's method.
        limit: of the Trainer.
        stage: for which the strategy sets loaders up.
    """

    name: str
    hook: str
    argument: str
    limit: str
    stage: Stage


TRAIN = Role("training", "train_dataloader", "train_dataloaders", "limit_train_batches", "fit")
VALIDATION = Role("validation", "val_dataloader", "val_dataloaders", "limit_val_batches", "validate")
TEST = Role("test", "test_dataloader", "dataloaders", "limit_test_batches", "test")
PREDICTION = Role("prediction", "predict_dataloader", "dataloaders", "limit_predict_batches", "predict")


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
        check_loaders(loaders, f"{type(self.owner).__name__}.{self.role.hook}()", may_be_empty=self.role is VALIDATION)
        return loaders


def find_source(role: Role, given: Any, datamodule: DataModule | None, module: nn.Module) -> Source | None:
    """The source of loaders. Arguments come before the data module, and that before the module; None without any.

    Raises:
        ConfigurationError: something that is no loader was passed.
    """
    if given is not None:
        check_loaders(given, role.argument, may_be_empty=role is VALIDATION)
        return Source(role, given=given)
    owners = (owner for owner in (datamodule, module) if owner is not None and overrides(owner, role.hook))
    return next((Source(role, owner=owner) for owner in owners), None)


def need_source(source: Source | None, role: Role, datamodule: DataModule | None, module: nn.Module) -> Source:
    """The source.

    Raises:
        ConfigurationError: there is none; says what there is instead.
    """
    if source is not None:
        return source
    seen = f"; {datamodule} has no {role.hook}()" if datamodule is not None else ""
    raise ConfigurationError(
        f"No {role.name} loader was given{seen}. Pass {role.argument}=..., or define {role.hook}() in a DataModule or "
        f"in {type(module).__name__}."
    )


def find_validation(given: Any, datamodule: DataModule | None, module: nn.Module) -> list[Source]:
    """The source of validation within `fit`, if there is one.

    Loaders that were passed need a `validation_step`. Those of a hook, which may serve several modules, are left alone
    without one, with a warning.
    """
    source = find_source(VALIDATION, given, datamodule, module)
    if source is None:
        return []
    if source.owner is not None and not has_method(module, "validation_step"):
        warnings.warn(
            f"{type(module).__name__} has no validation_step(), so that {type(source.owner).__name__}.val_dataloader() "
            "isn't used.",
            stacklevel=3,
        )
        return []
    require_method(module, "validation_step", "validation during fit")
    return [source]


def check_reload(options: TrainerOptions, sources: Sequence[Source]) -> None:
    """Refuse to reload loaders that no hook can make anew.

    Raises:
        ConfigurationError: with what can.
    """
    given = [source.role.argument for source in sources if source.owner is None]
    if options.reload_dataloaders_every_n_epochs and given:
        raise ConfigurationError(
            f"reload_dataloaders_every_n_epochs={options.reload_dataloaders_every_n_epochs} asks hooks for new "
            f"loaders, and {given[0]} were passed as they are. Return them from a DataModule or hooks of the module."
        )


def take_datamodule(loaders: Any, datamodule: Any, *others: Any) -> tuple[Any, DataModule | None]:
    """Tell loaders from a data module, which may stand in their place.

    Raises:
        ConfigurationError: both were passed, or something else as the data module.
    """
    if isinstance(loaders, DataHooks) and datamodule is None:
        loaders, datamodule = None, loaders
    if datamodule is None:
        return loaders, None
    if not isinstance(datamodule, DataModule):
        raise ConfigurationError(
            f"datamodule is {type(datamodule).__name__}; expected an instance of core.DataModule"
            f"{', not the class' if isinstance(datamodule, type) else ''}."
        )
    if any(other is not None for other in (loaders, *others)):
        raise ConfigurationError(
            f"Both loaders and datamodule={type(datamodule).__name__} were passed, and it isn't clear which to use. "
            "Pass one of them."
        )
    return None, datamodule


def check_loaders(loaders: Any, where: str, *, may_be_empty: bool = False) -> None:
    """Refuse what can't be a loader, nor several.

    Raises:
        ConfigurationError: with what was probably meant.
    """
    if loaders is None or isinstance(loaders, CombinedLoader):
        return
    if is_collection(loaders) and not list(leaves_of(loaders)) and not may_be_empty:
        raise ConfigurationError(f"{where} is an empty {type(loaders).__name__}; expected loaders in it.")
    for _, leaf in leaves_of(loaders):
        if (advice := _advise(leaf)) is not None:
            raise ConfigurationError(f"{where} has {type(leaf).__name__} {leaf!r:.80}; {advice}.")


def _advise(leaf: Any) -> str | None:
    if isinstance(leaf, DataHooks):
        return "expected loaders: pass a DataModule as datamodule=..."
    if isinstance(leaf, Dataset) and not isinstance(leaf, IterableDataset):
        return "expected a loader: wrap the data set in DataLoader(dataset, batch_size=...)"
    if hasattr(leaf, "__iter__") or hasattr(leaf, "__getitem__"):
        return None
    return "expected a DataLoader or an iterable of batches" + (": call it" if callable(leaf) else "")
