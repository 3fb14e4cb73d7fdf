"""The loaders that the arguments of a stage name: those that were passed, the data module's, or the
module's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contract import ConfigurationError
from core_training.hooks.data_hooks import DataHooks
from core_training.hooks.events import overrides
from core_training.loops.fit_call import FitCall
from core_training.module.module import has_method, require_method
from core_training.settings.warn_at import warn_caller
from core_training.stage_data.datamodule import DataModule
from core_training.stage_data.sources import TRAIN, VALIDATION, Source, check_loaders

if TYPE_CHECKING:
    from torch import nn

    from core_training.settings.options import TrainerOptions
    from core_training.stage_data.sources import Role


def check_fit_call(
    options: TrainerOptions,
    model: nn.Module,
    train_dataloaders: object,
    val_dataloaders: object,
    datamodule: DataModule | None,
) -> FitCall:
    """The arguments of `fit`, checked."""
    train_dataloaders, datamodule = split_datamodule(train_dataloaders, datamodule, val_dataloaders)
    train = need_source(TRAIN, train_dataloaders, datamodule, model)
    sources = [train, *find_validation(val_dataloaders, datamodule, model)]
    for source in sources:
        if source.owner is None and options.reload_dataloaders_every_n_epochs:
            raise ConfigurationError(
                "reload_dataloaders_every_n_epochs="
                f"{options.reload_dataloaders_every_n_epochs} asks hooks for new loaders, and "
                f"{source.role.argument} were passed as they are. Return them from a DataModule or "
                "hooks of the module."
            )
    return FitCall(model, sources, datamodule)


def check_sources(
    role: Role, module: nn.Module, loaders: object, datamodule: DataModule | None
) -> tuple[list[Source], DataModule | None]:
    """The loaders of a stage without training, and the data module, from the user's arguments."""
    loaders, datamodule = split_datamodule(loaders, datamodule)
    return [need_source(role, loaders, datamodule, module)], datamodule


def find_source(
    role: Role, given: object, datamodule: DataModule | None, module: nn.Module
) -> Source | None:
    """The source of loaders. Arguments come before the data module, and that before the module;
    None without any.

    Raises:
        ConfigurationError: something that is no loader was passed.
    """
    if given is not None:
        check_loaders(given, role.argument, may_be_empty=role is VALIDATION)
        return Source(role, given=given)
    for owner in (datamodule, module):
        if owner is not None and overrides(owner, role.hook):
            return Source(role, owner=owner)
    return None


def need_source(
    role: Role, given: object, datamodule: DataModule | None, module: nn.Module
) -> Source:
    """The source of loaders, as `find_source` finds it.

    Raises:
        ConfigurationError: there is none; says what there is instead.
    """
    source = find_source(role, given, datamodule, module)
    if source is not None:
        return source
    seen = ""
    if datamodule is not None:
        seen = f"; {datamodule} has no {role.hook}()"
    raise ConfigurationError(
        f"No {role.name} loader was given{seen}. Pass {role.argument}=..., or define {role.hook}() "
        f"in a DataModule or in {type(module).__name__}."
    )


def find_validation(
    given: object, datamodule: DataModule | None, module: nn.Module
) -> list[Source]:
    """The source of validation within `fit`, if there is one.

    Loaders that were passed need a `validation_step`. Those of a hook, which may serve several
    modules, are left alone without one, with a warning.
    """
    source = find_source(VALIDATION, given, datamodule, module)
    if source is None:
        return []
    if source.owner is not None and not has_method(module, "validation_step"):
        warn_caller(
            f"{type(module).__name__} has no validation_step(), so that "
            f"{type(source.owner).__name__}.val_dataloader() isn't used.",
        )
        return []
    require_method(module, "validation_step", "validation during fit")
    return [source]


def split_datamodule(
    loaders: object, datamodule: object, *others: object
) -> tuple[object, DataModule | None]:
    """Separate loaders from a data module, which may stand in their place.

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
            f"Both loaders and datamodule={type(datamodule).__name__} were passed, and it isn't "
            "clear which to use. Pass one of them."
        )
    return None, datamodule
