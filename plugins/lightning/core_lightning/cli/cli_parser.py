"""The parser of LightningCLI, which knows the classes of callbacks, optimizers and schedulers that
were added.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim import lr_scheduler as torch_schedulers

from core import Callback, ConfigurationError
from core import Trainer as CoreTrainer
from core_lightning.cli import config_values
from core_lightning.trainer.trainer import Trainer

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace, class_from_function
else:
    try:
        from jsonargparse import ArgumentParser, Namespace, class_from_function
    except ImportError:
        ArgumentParser, Namespace = object, dict

ArgsType = list[str] | dict[str, Any] | Namespace | None
AUTOMATIC = "AUTOMATIC"
"""The link of an optimizer or scheduler that becomes the module's own."""


class ReduceLROnPlateau(torch_schedulers.ReduceLROnPlateau):
    """torch's scheduler, with the name of the metric that it watches."""

    def __init__(self, optimizer: Optimizer, monitor: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(optimizer, *args, **kwargs)
        self.monitor = monitor


LRSchedulerTypeTuple = (torch_schedulers.LRScheduler, ReduceLROnPlateau)


class LightningArgumentParser(ArgumentParser):  # type: ignore[misc]  # jsonargparse has no types
    """jsonargparse's parser, for the parts of a run.

    Attributes:
        callback_keys: sections that are callbacks.
        optimizers: sections that are optimizers, each with its class, or classes, and what it is
            linked to.
        lr_schedulers: likewise.
    """

    def __init__(
        self,
        *args: Any,
        description: str = "Train and evaluate. Each subcommand has its own --help.",
        env_prefix: str = "PL",
        default_env: bool = False,
        **kwargs: Any,
    ) -> None:
        """Create a parser; `default_env` takes values from variables such as
        `PL_TRAINER__MAX_EPOCHS`.
        """
        if ArgumentParser is object:
            raise ConfigurationError(
                "LightningCLI needs jsonargparse. Install it: pip install "
                "'jsonargparse[signatures]'."
            )
        config_values.register()
        kwargs.setdefault("parser_mode", config_values.MODE)
        super().__init__(
            *args, description=description, env_prefix=env_prefix, default_env=default_env, **kwargs
        )
        self.callback_keys: list[str] = []
        self.optimizers: dict[str, tuple[Any, str]] = {}
        self.lr_schedulers: dict[str, tuple[Any, str]] = {}

    def add_lightning_class_args(
        self,
        lightning_class: Any,
        nested_key: str,
        subclass_mode: bool = False,
        required: bool = True,
    ) -> list[str]:
        """Add a section: the arguments of a Trainer, module, data module or callback, or of a
        function that makes one.

        With `subclass_mode` the config names a subclass.
        """
        kind = (
            lightning_class
            if isinstance(lightning_class, type)
            else class_from_function(lightning_class)
        )
        if issubclass(kind, Callback):
            self.callback_keys.append(nested_key)
        if issubclass(kind, CoreTrainer):
            return self._add_trainer(kind, nested_key)
        if subclass_mode:
            options = {"fail_untyped": False, "required": required}
            return self.add_subclass_arguments(kind, nested_key, **options)  # type: ignore[no-any-return]
        return self.add_class_arguments(kind, nested_key, fail_untyped=False, sub_configs=True)  # type: ignore[no-any-return]

    def add_optimizer_args(
        self,
        optimizer_class: Any = (Optimizer,),
        nested_key: str = "optimizer",
        link_to: str = AUTOMATIC,
    ) -> None:
        """Add the arguments of an optimizer, of a class or of those subclasses of several that the
        config names.

        `link_to` is an argument that gets it; by default it becomes the module's own.
        """
        self._add_class(optimizer_class, nested_key, skip="params")
        self.optimizers[nested_key] = (optimizer_class, link_to)

    def add_lr_scheduler_args(
        self,
        lr_scheduler_class: Any = LRSchedulerTypeTuple,
        nested_key: str = "lr_scheduler",
        link_to: str = AUTOMATIC,
    ) -> None:
        """Add the arguments of a scheduler; see `add_optimizer_args`."""
        self._add_class(lr_scheduler_class, nested_key, skip="optimizer")
        self.lr_schedulers[nested_key] = (lr_scheduler_class, link_to)

    def _add_class(self, kind: Any, key: str, *, skip: str) -> None:
        options: dict[str, Any] = {"instantiate": False, "fail_untyped": False, "skip": {skip}}
        if isinstance(kind, tuple):
            self.add_subclass_arguments(kind, key, required=False, **options)
        else:
            self.add_class_arguments(kind, key, sub_configs=True, **options)

    def _add_trainer(self, kind: type, key: str) -> list[str]:
        # The types of core's own arguments are those of Lightning's; the defaults are what
        # Lightning has.
        options: dict[str, Any] = {"fail_untyped": False, "instantiate": False, "sub_configs": True}
        if kind is not Trainer:
            return self.add_class_arguments(kind, key, **options)  # type: ignore[no-any-return]
        added: list[str] = self.add_class_arguments(CoreTrainer, key, **options)
        for name, item in inspect.signature(Trainer).parameters.items():
            if f"{key}.{name}" in added:
                self.set_defaults({f"{key}.{name}": item.default})
        return added


def described(kind: type, arguments: Any = None) -> dict[str, Any]:
    """The path of a class, and its arguments."""
    given = arguments.as_dict() if hasattr(arguments, "as_dict") else arguments
    return {"class_path": f"{kind.__module__}.{kind.__name__}", "init_args": given or {}}
