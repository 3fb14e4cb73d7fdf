"""LightningCLI: a command line made of the type hints of a module, a data module and the Trainer,
by jsonargparse.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau as TorchReduceLROnPlateau

from core import ConfigurationError, rank_zero_warn
from core.text import first_paragraph
from core_lightning.cli import config_values
from core_lightning.cli.cli_parser import (
    AUTOMATIC,
    ArgsType,
    LightningArgumentParser,
    ReduceLROnPlateau,
    described,
)
from core_lightning.cli.saved_config import SaveConfigCallback
from core_lightning.module.module import LightningDataModule, LightningModule
from core_lightning.trainer.trainer import Trainer
from core_lightning.utilities.lists import as_list
from core_lightning.utilities.seeding import seed_everything

OptimizerCallable = Callable[[Iterable], Optimizer]  # type: ignore[type-arg]  # jsonargparse looks at it
LRSchedulerCallable = Callable[[Optimizer], LRScheduler | ReduceLROnPlateau]

_DATA = {"model", "datamodule"}


class LightningCLI:
    """A program's command line: what it parses is made, and the Trainer's method that it names is
    called.

    `python train.py fit --model.width 64 --trainer.max_epochs 2 --config my.yaml`; `--help` lists
    the arguments, and `--print_config` the values. A subclass adds arguments in
    `add_arguments_to_parser`, links them, and acts in `before_fit`, `after_fit` and their like. See
    docs/config-files.md for `core.cli_for`, which needs no class.

    Attributes:
        config: the parsed values, by jsonargparse.
        config_init: the same, with objects made of them.
        model: the module.
        datamodule: the data module, or None.
        trainer: the Trainer.
        subcommand: the method that was called; None with `run=False`.
    """

    def __init__(
        self,
        model_class: type[LightningModule] | Callable[..., LightningModule] | None = None,
        datamodule_class: type[LightningDataModule]
        | Callable[..., LightningDataModule]
        | None = None,
        save_config_callback: type[SaveConfigCallback] | None = SaveConfigCallback,
        save_config_kwargs: dict[str, Any] | None = None,
        trainer_class: type[Trainer] | Callable[..., Trainer] = Trainer,
        trainer_defaults: dict[str, Any] | None = None,
        seed_everything_default: bool | int = True,
        parser_kwargs: dict[str, Any] | None = None,
        parser_class: type[LightningArgumentParser] = LightningArgumentParser,
        subclass_mode_model: bool = False,
        subclass_mode_data: bool = False,
        args: ArgsType = None,
        run: bool = True,
        auto_configure_optimizers: bool = True,
        load_from_checkpoint_support: bool = True,
    ) -> None:
        """Parse, make everything, and run.

        Args:
            model_class: a class, or a function that returns a module; None for any that the config
                names.
            datamodule_class: likewise; None for any, or none.
            trainer_defaults: arguments of the Trainer in place of its own; callbacks among them are
                always there.
            seed_everything_default: a number; True for 0, False to seed nothing.
            parser_kwargs: arguments of the parsers; those of one subcommand under its name.
            subclass_mode_model: let the config name a subclass.
            args: in place of the program's own arguments: words, or a dict of values.
            run: False to make everything and run nothing.
            load_from_checkpoint_support: without effect: hyperparameters are what `__init__` of the
                module receives.
        """
        self.save_config_callback = save_config_callback
        self.save_config_kwargs = save_config_kwargs or {}
        self.trainer_class, self.trainer_defaults = trainer_class, trainer_defaults or {}
        self.seed_everything_default = seed_everything_default
        self.parser_kwargs = parser_kwargs or {}
        self.parser_class, self.auto_configure_optimizers = parser_class, auto_configure_optimizers
        self.model_class, self.datamodule_class = model_class, datamodule_class
        self.subclass_mode_model = model_class is None or subclass_mode_model
        self.subclass_mode_data = datamodule_class is None or subclass_mode_data
        self._subcommand_parsers: dict[str, LightningArgumentParser] = {}
        self._method_arguments: dict[str, list[str]] = {}

        common = {
            name: value
            for name, value in self.parser_kwargs.items()
            if name not in self.subcommands()
        }
        self.parser = self.init_parser(**common)
        if run:
            self._add_subcommands()
        else:
            self._add_arguments(self.parser)
        self.parse_arguments(self.parser, args)
        self.subcommand: str | None = self.config["subcommand"] if run else None
        self._take_hparams_of_checkpoint()
        self._seed()
        self.before_instantiate_classes()
        self.instantiate_classes()
        self.after_instantiate_classes()
        if self.subcommand is not None:
            self._run(self.subcommand)

    # the parsers ----------------------------------------------------------------------------------

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """A new parser, which takes config files."""
        parser = self.parser_class(**kwargs)
        parser.add_argument(
            "-c", "--config", action="config", help="a config file; arguments after it override it"
        )
        return parser

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The Trainer's methods, each with the arguments that aren't on the command line. May be
        overridden.
        """
        loaders = _DATA | {"dataloaders"}
        fit = _DATA | {"train_dataloaders", "val_dataloaders"}
        return {"fit": fit, "validate": loaders, "test": loaders, "predict": loaders}

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the seed."""
        parser.add_argument(
            "--seed_everything",
            type=bool | int,
            default=self.seed_everything_default,
            help="seed all random generators: a number, True for 0, False to leave them",
        )

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the arguments of Trainer, module and data module."""
        parser.add_lightning_class_args(self.trainer_class, "trainer")
        defaults = {
            f"trainer.{name}": value
            for name, value in self.trainer_defaults.items()
            if name != "callbacks"
        }
        parser.set_defaults(defaults)
        parser.add_lightning_class_args(
            self.model_class or LightningModule, "model", subclass_mode=self.subclass_mode_model
        )
        parser.add_lightning_class_args(
            self.datamodule_class or LightningDataModule,
            "data",
            subclass_mode=self.subclass_mode_data,
            required=self.datamodule_class is not None,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add arguments of the program's own, and links between arguments. Meant to be
        overridden.
        """

    @staticmethod
    def link_optimizers_and_lr_schedulers(parser: LightningArgumentParser) -> None:
        """Link those optimizers and schedulers that were added with a `link_to`."""
        for key, (kind, link_to) in {**parser.optimizers, **parser.lr_schedulers}.items():
            options = {}
            if not isinstance(kind, tuple):
                options["compute_fn"] = partial(described, kind)
            if link_to != AUTOMATIC:
                parser.link_arguments(key, link_to, **options)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse words, or a dict of values, into `config`."""
        if args is not None and len(sys.argv) > 1:
            rank_zero_warn(
                f"LightningCLI(args={args!r:.80}): the words after the program's name aren't "
                "looked at."
            )
        words: Any = args
        if args is None:
            words = sys.argv[1:]
        if isinstance(words, list | tuple):
            self.config: Any = parser.parse_args(config_values.words_with_homes(words))
        else:
            self.config = parser.parse_object(words)

    def _add_subcommands(self) -> None:
        added = self.parser.add_subcommands()
        for name, skipped in self.subcommands().items():
            method = getattr(self.trainer_class, name, None) or getattr(Trainer, name)
            text = first_paragraph(method.__doc__)
            parser = self.init_parser(**{"description": text, **self.parser_kwargs.get(name, {})})
            self._add_arguments(parser)
            owner = self.trainer_class if isinstance(self.trainer_class, type) else Trainer
            self._method_arguments[name] = parser.add_method_arguments(
                owner, name, skip=set(skipped)
            )
            self._subcommand_parsers[name] = parser
            added.add_subcommand(name, parser, help=text)

    def _add_arguments(self, parser: LightningArgumentParser) -> None:
        self.add_default_arguments_to_parser(parser)
        self.add_core_arguments_to_parser(parser)
        self.add_arguments_to_parser(parser)
        if self.auto_configure_optimizers:
            if not parser.optimizers:
                parser.add_optimizer_args()
            if not parser.lr_schedulers:
                parser.add_lr_scheduler_args()
        self.link_optimizers_and_lr_schedulers(parser)

    def _own_parser(self) -> LightningArgumentParser:
        return self.parser if self.subcommand is None else self._subcommand_parsers[self.subcommand]

    # what is made ---------------------------------------------------------------------------------

    def before_instantiate_classes(self) -> None:
        """Act on `config`. Meant to be overridden."""

    def instantiate_classes(self) -> None:
        """Make data module, module and Trainer."""
        self.config_init: Any = self.parser.instantiate(self.config)
        self.datamodule = self._get(self.config_init, "data")
        self.model = self._get(self.config_init, "model")
        self._give_optimizers()
        self.trainer = self.instantiate_trainer()

    def after_instantiate_classes(self) -> None:
        """Act on what was made. Meant to be overridden."""

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Make the Trainer, with arguments that override the config's."""
        options = {**_as_dict(self._get(self.config_init, "trainer")), **kwargs}
        parser = self._own_parser()
        callbacks = as_list(options.get("callbacks"))
        callbacks += [self._get(self.config_init, key) for key in parser.callback_keys]
        callbacks += as_list(self.trainer_defaults.get("callbacks"))
        if self.save_config_callback and not options.get("fast_dev_run"):
            callbacks.append(
                self.save_config_callback(parser, self._own(self.config), **self.save_config_kwargs)
            )
        return self.trainer_class(**{**options, "callbacks": callbacks})

    @staticmethod
    def configure_optimizers(
        lightning_module: LightningModule, optimizer: Optimizer, lr_scheduler: Any | None = None
    ) -> Any:
        """Answer in the module's place, with an optimizer and a scheduler of the config. May be
        overridden.
        """
        if lr_scheduler is None:
            return optimizer
        if isinstance(lr_scheduler, TorchReduceLROnPlateau):
            watched = {"scheduler": lr_scheduler, "monitor": getattr(lr_scheduler, "monitor", None)}
            return {"optimizer": optimizer, "lr_scheduler": watched}
        return [optimizer], [lr_scheduler]

    def _give_optimizers(self) -> None:
        parser = self._own_parser()
        if not self.auto_configure_optimizers:
            return
        optimizer = self._make(parser.optimizers, self.model.parameters())
        if optimizer is None:
            return
        rates = self._make(parser.lr_schedulers, optimizer)
        answer = partial(self.configure_optimizers, optimizer=optimizer, lr_scheduler=rates)
        self.model.configure_optimizers = MethodType(answer, self.model)

    def _make(self, added: dict[str, tuple[Any, str]], argument: Any) -> Any:
        """The only optimizer or scheduler that is the module's; None if the config has none."""
        keys = [key for key, (_, link_to) in added.items() if link_to == AUTOMATIC]
        if not keys:
            return None
        if len(keys) > 1:
            raise ConfigurationError(
                f"{type(self).__name__} has several optimizers or schedulers, {keys}, and at most "
                "one of each is given to the module. Link the others: "
                "add_optimizer_args(link_to='model...')."
            )
        kind, _ = added[keys[0]]
        found = self._get(self.config_init, keys[0])
        if not isinstance(kind, tuple):
            found = described(kind, found)
        return found and instantiate_class(argument, _as_dict(found))

    # what is run ----------------------------------------------------------------------------------

    def _run(self, subcommand: str) -> None:
        getattr(self, f"before_{subcommand}", lambda: None)()
        config = self.config_init[subcommand]
        options = {
            name: config[name] for name in self._method_arguments[subcommand] if name in config
        }
        options["model"] = self.model
        if self.datamodule is not None:
            options["datamodule"] = self.datamodule
        getattr(self, subcommand, getattr(self.trainer, subcommand))(**options)
        getattr(self, f"after_{subcommand}", lambda: None)()

    def _seed(self) -> None:
        seed = self._get(self.config, "seed_everything")
        if seed is False:
            return
        if seed is True:
            seed = None
        self._own(self.config)["seed_everything"] = seed_everything(seed, workers=True)

    def _take_hparams_of_checkpoint(self) -> None:
        """Set the module's arguments to a checkpoint's hyperparameters, as far as it is a file with
        plain ones.
        """
        path = self.subcommand and self._own(self.config).get("ckpt_path")
        if not path or not Path(path).is_file():
            return
        saved = torch.load(path, weights_only=True, map_location="cpu")
        hparams = saved.get("hyper_parameters") or {}
        hparams.pop("_instantiator", None)
        if not hparams:
            return
        class_path = hparams.pop("_class_path", None)
        if class_path is not None:
            hparams = {"class_path": class_path, "dict_kwargs": hparams}
        self.config = self.parser.parse_object({self.subcommand: {"model": hparams}}, self.config)

    def _get(self, config: Any, key: str) -> Any:
        return self._own(config).get(key)

    def _own(self, config: Any) -> Any:
        """The part for the subcommand."""
        return config if self.subcommand is None else config[self.subcommand]


def instantiate_class(args: Any, init: dict[str, Any]) -> Any:
    """An object of the class that `init["class_path"]` names, of one argument or a tuple, and those
    in `init_args`.
    """
    home, _, name = init["class_path"].rpartition(".")
    if not isinstance(args, tuple):
        args = (args,)
    kind = getattr(import_module(home), name)
    return kind(*args, **_as_dict(init.get("init_args")))


def _as_dict(values: Any) -> dict[str, Any]:
    if hasattr(values, "as_dict"):
        values = values.as_dict()
    return dict(values or {})
