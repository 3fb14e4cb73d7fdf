"""The parser: arguments of the Trainer, the module, the data module, and of each stage."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jsonargparse import ArgumentParser
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from core import CoreError, DataModule, Module, Trainer, did_you_mean
from core.registry import discover
from core_jsonargparse.configured_optimizers import makes_optimizers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from torch import nn

STAGES = {
    "fit": "Train, and validate in between.",
    "validate": "Evaluate on the validation data.",
    "test": "Evaluate on the test data.",
    "predict": "Predict.",
}
_USAGE = "%(prog)s [--config FILE] [--print_config] [--SECTION.NAME VALUE ...]"
"""Instead of the names of all arguments, which would stand above each error."""

_MADE = {"model", "train_dataloaders", "val_dataloaders", "dataloaders", "datamodule"}
"""Arguments that stages take besides their options, by name."""

_UNKNOWN = re.compile(r"(unrecognized arguments: --|not accept option ')(?P<name>[\w.]+)")


class _Parser(ArgumentParser):  # type: ignore[misc]  # which has no annotations here
    """A parser that says what a misspelt argument may mean.

    Attributes:
        stages: parsers of its subcommands.
    """

    stages: Collection[ArgumentParser] = ()

    def error(self, message: str, ex: Exception | None = None) -> Any:
        """End the program with the message."""
        names = {action.dest for parser in (self, *self.stages) for action in parser._actions}
        unknown = _UNKNOWN.search(message)
        if unknown:
            message += did_you_mean(unknown["name"], names)
        return super().error(message, ex)


@dataclass(frozen=True)
class Arguments:
    """The arguments of a command line.

    Attributes:
        module: its class; None for any that the config names.
        datamodule: likewise.
        subclasses: whether the config may name a subclass of either.
        trainer_defaults: in place of the Trainer's own.
        configure: adds to a parser.
    """

    module: type[nn.Module] | None
    datamodule: type[DataModule] | None
    subclasses: bool
    trainer_defaults: Mapping[str, Any]
    configure: Callable[[Any], None] | None

    def parser(self) -> tuple[Any, dict[str, Any]]:
        """The parser of the whole command line, and those of the stages, by name."""
        parser = _Parser(
            description="Train and evaluate. Each stage has its own --help.", allow_abbrev=False
        )
        subcommands = parser.add_subcommands(required=True, dest="stage")
        stages = {stage: self.stage_parser(stage) for stage in STAGES}
        parser.stages = stages.values()
        for stage, own in stages.items():
            subcommands.add_subcommand(stage, own, help=STAGES[stage])
        return parser, stages

    def stage_parser(self, stage: str | None) -> Any:
        """The parser of one stage, or of none."""
        _import_short_names()
        description = STAGES.get(stage or "", "Make the parts of a run.")
        parser = _Parser(usage=_USAGE, description=description, allow_abbrev=False)
        parser.add_argument(
            "--config", action="config", help="a config file; arguments after it override it"
        )
        parser.add_argument(
            "--seed_everything",
            type=bool | int,
            default=True,
            help="seed all random generators: a number, True for 0, False to leave them",
        )
        parser.add_class_arguments(Trainer, "trainer", instantiate=False)
        self._add_object(parser, "model", self.module, Module)
        self._add_object(parser, "data", self.datamodule, DataModule)
        if self.module is None or self.subclasses or not makes_optimizers(self.module):
            _add_optimizers(parser)
        if stage is not None:
            parser.add_method_arguments(Trainer, stage, skip=_MADE, as_group=False)
        if stage not in (None, "fit"):
            parser.add_argument(
                "--resume", default="all", help="In configs of fit; other stages take the weights."
            )
        parser.set_defaults(
            {f"trainer.{name}": value for name, value in self.trainer_defaults.items()}
        )
        if self.configure is not None:
            self.configure(parser)
        return parser

    def _add_object(self, parser: Any, key: str, cls: type | None, base: type) -> None:
        if cls is not None and not self.subclasses:
            parser.add_class_arguments(cls, key, fail_untyped=False)
        else:
            required = key == "model" or cls is not None
            parser.add_subclass_arguments(cls or base, key, required=required, fail_untyped=False)


def stage_options(stage: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a stage's method among the values of a config."""
    known = inspect.signature(getattr(Trainer, stage)).parameters.keys() - _MADE
    return {name: config[name] for name in known if name in config}


def _add_optimizers(parser: Any) -> None:
    rest = {"required": False, "instantiate": False, "fail_untyped": False}
    parser.add_subclass_arguments(Optimizer, "optimizer", skip={"params"}, **rest)
    parser.add_subclass_arguments(LRScheduler, "lr_scheduler", skip={"optimizer"}, **rest)
    parser.add_argument(
        "--lr_scheduler_interval",
        type=Literal["epoch", "step"],
        default="epoch",
        help="when the scheduler steps: after every epoch, or every optimizer step",
    )
    parser.add_argument(
        "--lr_scheduler_monitor",
        type=str | None,
        default=None,
        help="name of the metric that the scheduler watches",
    )


def _import_short_names() -> None:
    """Import the callbacks of `core.callbacks`: a class that is imported may be named without its
    package.
    """
    callbacks = importlib.import_module("core.callbacks")
    exports = [spec for provider in discover().providers for spec in provider.specs]
    targets = [spec.target for spec in exports if spec.alias.startswith("core.callbacks.")]
    for name in [*callbacks.__all__, *(target.rpartition(":")[2] for target in targets)]:
        with contextlib.suppress(ImportError, CoreError):  # a broken package that nobody has named
            getattr(callbacks, name)
